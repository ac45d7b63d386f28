"""Experiments are read, checked, and cut into cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lab.cells import cells_of, trials_of
from benchmarks.lab.experiment import find_experiments, named_experiments, read_experiment
from sordino._base.errors import SordinoError
from sordino.planning.recipes import RECIPES

from .helpers import TOY, write_toy

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_cells_are_every_contender_on_every_budget(tmp_path: Path) -> None:
    experiment = read_experiment(write_toy(tmp_path))
    cells = cells_of(experiment, quick=False)
    assert [cell.contender for cell in cells] == ["dp-gd", "dp-sgd", "dp-memf", "sgd"]
    assert cells[0].settings == {"steps": 10, "learning_rate": 8.0}
    assert cells[0].seeds == (1000, 3)
    assert cells[-1].budget is None  # not private: no budget
    assert cells_of(experiment, quick=True)[0].seeds == (1000, 2)
    assert len({cell.key for cell in cells}) == len(cells)


def test_a_key_follows_from_what_bears_on_figures(tmp_path: Path) -> None:
    first = cells_of(read_experiment(write_toy(tmp_path)), quick=False)
    reworded = TOY.replace("Printed nowhere", "Printed elsewhere").replace("A toy", "Another")
    again = cells_of(read_experiment(write_toy(tmp_path, text=reworded)), quick=False)
    assert [cell.key for cell in again] == [cell.key for cell in first]
    other = TOY.replace("settings = { steps = 10 }", "settings = { steps = 11 }")
    changed = cells_of(read_experiment(write_toy(tmp_path, text=other)), quick=False)
    assert [a.key == b.key for a, b in zip(first, changed, strict=True)] == [
        False,
        True,
        True,
        True,
    ]


def test_grids_become_trials(tmp_path: Path) -> None:
    (trial,) = trials_of(read_experiment(write_toy(tmp_path, chosen=False)))
    assert trial.candidates == ({"learning_rate": 1.0}, {"learning_rate": 8.0})
    assert trial.settings == {"steps": 10}


def test_settings_that_are_not_chosen_are_missed(tmp_path: Path) -> None:
    experiment = read_experiment(write_toy(tmp_path, chosen=False))
    with pytest.raises(SordinoError, match="python -m benchmarks run toy --tune"):
        cells_of(experiment, quick=False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "A toy"', 'tile = "A toy"', "no field 'tile'"),
        ('recipe = "dp-sgd"', 'recipe = "dp-sdg"', "did you mean 'dp-sgd'"),
        ('"error", "log_loss"', '"errors", "log_loss"', "did you mean 'error'"),
        ('population = "synthetic"', 'population = "sinthetic"', "population 'sinthetic'"),
        ("epsilon = 1.0, delta", "epsilon = -1.0, delta", "epsilon"),
        ('label = "dp-sgd"', 'label = "dp-gd"', "may be used once"),
        ("seeds = 3", "seeds = 0", "seeds"),
        ("[[contenders]]", "[[contenders", "not valid TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TOY
    with pytest.raises(SordinoError, match=r"toy.toml") as caught:
        read_experiment(write_toy(tmp_path, text=TOY.replace(old, new, 1)))
    assert message in str(caught.value)


def test_experiments_are_found_by_name_and_by_file(tmp_path: Path) -> None:
    path = write_toy(tmp_path)
    assert named_experiments(["toy"], tmp_path) == [path]
    assert named_experiments([str(path)], None) == [path]
    assert named_experiments([], tmp_path) == [path]
    with pytest.raises(SordinoError, match="did you mean 'toy'"):
        named_experiments(["tot"], tmp_path)
    with pytest.raises(SordinoError, match="checkout"):
        named_experiments([], None)


def test_the_experiments_of_this_repository_are_complete() -> None:
    experiments = {
        name: read_experiment(path) for name, path in find_experiments(EXPERIMENTS).items()
    }
    for name, experiment in experiments.items():
        assert experiment.name == name
        assert cells_of(experiment, quick=True)
        assert (
            "public" in experiment.protocol or experiment.task == "speed"
        )  # nothing is chosen there
    used = {contender.recipe for contender in experiments["a"].contenders}
    # Recipes that came after the experiment was last run in full.
    later = {"dp-nesterov", "dp-srg"}
    assert used >= {recipe.name for recipe in RECIPES.values() if recipe.private} - later
