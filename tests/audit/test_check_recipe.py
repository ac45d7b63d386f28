"""`check_recipe`: good recipes pass, and every promise that is broken on purpose is found by its check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from sordino import LeastSquares, Plan, Recipe, RunKey, SordinoError
from sordino.audit import (
    ContractCheck,
    ContractReport,
    RecipeCheckError,
    check_recipe,
    clipped,
    reference_plan,
)
from sordino.audit._contract import (
    changes_by_hand,
    comfortable_plan,
    file_problems,
    learning_problems,
    mu_problems,
    noise_problems,
    reference_problems,
    resumption_problems,
)
from sordino.audit._plans import small_plan
from sordino.audit._whitebox import Neighbours
from sordino.engine._run import TrainingRun
from sordino.parts.contributions import CONTRIBUTIONS, Contribution, Gradient, Recursive, Rule
from sordino.planning import RECIPES

CHECKS = [
    "the stated mu",
    "the bound",
    "the noise",
    "the claim",
    "the algorithm",
    "resumption",
    "learning",
    "plans as files",
]


def gradient(gradients: Sequence[np.ndarray], numbers: dict[str, Any], t: int) -> np.ndarray:
    return clipped(gradients[t], numbers["clip"])


def recursive(gradients: Sequence[np.ndarray], numbers: dict[str, Any], t: int) -> np.ndarray:
    before = numbers["recursion"] * gradients[t - 1] if t else 0.0
    return clipped(gradients[t] - before, numbers["clip"])


def pair(gradients: Sequence[np.ndarray], numbers: dict[str, Any], t: int) -> list[np.ndarray]:
    return [clipped(gradients[s], numbers["clip"]) for s in (t, max(t - 1, 0))]


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("dp-gd", gradient),
        ("dp-sgd", gradient),
        pytest.param("dp-srg-memf", recursive, marks=pytest.mark.slow),
        pytest.param("dp-memf", gradient, marks=pytest.mark.slow),
    ],
)
def test_recipes_of_the_library_pass(name: str, reference: Callable[..., Any]) -> None:
    report = check_recipe(name, reference=reference)
    assert report.passed
    assert [check.name for check in report.checks] == CHECKS
    assert not any(check.skipped for check in report.checks)
    assert report.audit is not None
    assert report.audit.runs == 10_000
    assert report.verdict().startswith(f"{name} passes 8 of 8 checks:\n  the stated mu: passed\n")


def test_what_does_not_apply_is_said() -> None:
    report = check_recipe("storm", reference=pair)
    assert report.audit is None
    assert [check.name for check in report.checks] == CHECKS
    why = [check.skipped for check in report.checks]
    assert why == [*["it promises no privacy"] * 4, "", "", "", ""]
    assert "storm passes 4 of 4 checks" in report.verdict()
    assert "the claim: not checked: it promises no privacy" in report.verdict()
    adaptive = check_recipe("dp-agd")
    assert [check.name for check in adaptive.checks if not check.skipped] == CHECKS[-2:]


@dataclass(frozen=True)
class Unclipped(Rule):
    def combine(self, gradients: tuple[Any, ...], clip: Any, terms: Any) -> tuple[Any, ...]:
        return (gradients[0],)


@dataclass(frozen=True)
class TwiceTheClip(Rule):
    def combine(self, gradients: tuple[Any, ...], clip: Any, terms: Any) -> tuple[Any, ...]:
        return (clip(gradients[0], 2 * terms["clip"]),)


@dataclass(frozen=True)
class Loose(Gradient):
    kind: ClassVar[str] = "test/loose"

    def rule(self) -> Rule:
        return Unclipped()


@dataclass(frozen=True)
class Doubled(Gradient):
    kind: ClassVar[str] = "test/doubled"

    def rule(self) -> Rule:
        return TwiceTheClip()


@dataclass(frozen=True)
class Modest(Gradient):
    """States a bound that no example comes near: not unsafe, but noise for nothing."""

    kind: ClassVar[str] = "test/modest"

    def bounds(self, steps: int) -> np.ndarray:
        return 2 * super().bounds(steps)


@dataclass(frozen=True)
class Forgetful(Recursive):
    """The change of a gradient, of which half is said to be kept and nothing is."""

    kind: ClassVar[str] = "test/forgetful"

    def terms(self, steps: int) -> Any:
        return {**super().terms(steps), "before": np.zeros(steps)}


def broken(contribution: type[Contribution], **options: Any) -> Recipe:
    return Recipe("dp-broken", "broken on purpose", contribution, options=options)


@pytest.mark.parametrize(
    ("recipe", "reference", "failing"),
    [
        (broken(Loose), gradient, {"the bound", "the claim", "the algorithm"}),
        (broken(Doubled), gradient, {"the bound", "the claim", "the algorithm"}),
        (broken(Modest), gradient, {"the bound", "the claim"}),
        (broken(Forgetful, decay=0.5), recursive, {"the algorithm"}),
        (broken(Gradient, learning_rate=1e-6), gradient, {"learning"}),
    ],
    ids=["no-clip", "twice-the-clip", "bound-too-large", "other-algorithm", "learns-nothing"],
)
def test_a_broken_promise_is_found_by_its_check(
    recipe: Recipe, reference: Any, failing: set[str]
) -> None:
    if recipe.contribution is Forgetful:
        recipe = replace(recipe, contribution=lambda clip, decay: Forgetful(clip, decay))
        with RECIPES.temporary(), CONTRIBUTIONS.temporary():
            CONTRIBUTIONS.add(Forgetful.kind, Forgetful)
            with pytest.raises(RecipeCheckError) as caught:
                check_recipe(recipe, reference=reference, runs=2000)
    else:
        with pytest.raises(RecipeCheckError) as caught:
            check_recipe(recipe, reference=reference, runs=2000)
    report = caught.value.report
    assert {check.name for check in report.checks if check.problems} == failing, report.verdict()
    assert str(caught.value) == report.verdict()
    assert f"dp-broken passes {8 - len(failing)} of 8 checks" in report.verdict()
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, SordinoError)
    # It was known for the time of the check only.
    assert "dp-broken" not in RECIPES
    assert "test/loose" not in CONTRIBUTIONS


def test_lines_say_how_much_is_wrong() -> None:
    assert ContractCheck("a").line() == "a: passed"
    assert ContractCheck("a", ("x", "y", "z")).line() == "a: FAILED: x (and 2 more)"
    assert ContractReport("dp-x", (ContractCheck("a", ("x",)),)).passed is False
    with pytest.raises(SordinoError, match="there is no recipe 'dp-nothing'"):
        check_recipe("dp-nothing")


def test_references_that_do_not_fit() -> None:
    plan = small_plan("dp-gd", noise_multiplier=1.0)
    assert reference_problems(plan, gradient) == []
    (wrong,) = reference_problems(plan, lambda g, n, t: gradient(g, n, t) * (t < 3))
    assert wrong.startswith("in step 4 the sum of a batch is")
    (fails,) = reference_problems(plan, lambda g, n, t: n["nothing"])
    assert fails == "the reference fails in step 1: KeyError: 'nothing'"
    assert reference_problems(plan, pair) == ["the reference has 2 channels, not 1"]


def test_less_noise_than_planned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = reference_plan("dp-gd")
    honest = Plan.noise_stds
    monkeypatch.setattr(Plan, "noise_stds", lambda self: honest(self) / 2)
    assert any("can move the releases by" in problem for problem in mu_problems(plan))
    (problem,) = noise_problems(Neighbours.of(plan))
    assert "standard errors from the planned one" in problem


def test_a_run_that_cannot_be_resumed_is_found() -> None:
    plan = small_plan("dp-memf", noise_multiplier=1.0)
    data = np.eye(plan.population.examples, 3, dtype=np.float32), np.ones(7, np.float32)

    class Amnesiac(TrainingRun):
        def restore(self, state: Any) -> None:
            super().restore(state._replace(params=jax.tree.map(np.zeros_like, state.params)))

    def begin(kind: type[TrainingRun]) -> Callable[[int], TrainingRun]:
        def start(seed: int) -> TrainingRun:
            key = RunKey.from_insecure_seed(seed)
            start = np.zeros(3, np.float32)
            return kind(plan, LeastSquares(), start, data, key=key, watched=True)

        return start

    assert resumption_problems(begin(TrainingRun)) == []
    problems = resumption_problems(begin(Amnesiac))
    assert "resumed at step 1, the next release is another one" in problems
    assert "resumed before the last step, the result is another one" in problems
    assert resumption_problems(lambda _: begin(TrainingRun)(5)) == [
        "two run keys have the same noise"
    ]


def test_a_run_that_learns_nothing_is_found() -> None:
    plan = comfortable_plan("dp-gd", learning_rate=1e-6)
    # (Its direction is right: so are the labels.)
    assert learning_problems(plan) == ["1.000 of a quadratic's loss is left"]


def test_plans_that_are_read_carelessly_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan("dp-gd", epsilon=3.0, delta=1e-3)
    assert file_problems(plan) == []
    other = small_plan("dp-gd", epsilon=4.0, delta=1e-3)
    monkeypatch.setattr(Plan, "from_json", classmethod(lambda cls, data: other))
    problems = file_problems(plan)
    assert "read back from a file, its hash is another one" in problems
    assert sum("changed by hand, a plan is read" in p for p in problems) == len(
        changes_by_hand(plan)
    )
