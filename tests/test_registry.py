"""Things known by name: added once, found by other packages' entry points, gone after a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sordino
from sordino import SordinoError
from sordino._base.registry import Registry

MODULE = """
from dataclasses import dataclass
from typing import ClassVar
import jax
import numpy as np
from sordino import Recipe
from sordino.parts.contributions import Contribution, Rule, WeightedRule
from sordino.parts.schedules import NoiseSchedule
from sordino.parts.mechanisms import Independent

@dataclass(frozen=True)
class Halved(Contribution):
    kind: ClassVar[str] = "tiny/halved"
    def rule(self): return WeightedRule()
    def terms(self, steps): return {**super().terms(steps), "now": np.full(steps, 0.5)}
    def describe(self): return "half of a gradient"

@dataclass(frozen=True)
class Rising(NoiseSchedule):
    kind: ClassVar[str] = "tiny-rising"
    def relative_noise(self, steps): return None
    def describe(self): return "the same noise, said by another package"

@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tiny(Independent):
    kind: ClassVar[str] = "tiny-noise"
    @classmethod
    def fit(cls, workload, participation, *, bands=None): return cls(participation.steps)
    @classmethod
    def from_json(cls, data): return cls(data["steps"])

@dataclass(frozen=True)
class Unclipped(Rule):
    def combine(self, gradients, clip, terms): return gradients

@dataclass(frozen=True)
class Loose(Halved):
    kind: ClassVar[str] = "tiny/loose"
    def rule(self): return Unclipped()

RECIPE = Recipe("dp-tiny", "half of every gradient", Halved, mechanisms=("tiny-noise",))
LOOSE = Recipe("dp-loose", "the same without a clip", Loose, mechanisms=("tiny-noise",))
MISNAMED = RECIPE
"""
POINTS = """
[sordino.recipes]
dp-tiny = tiny_dp:RECIPE
dp-loose = tiny_dp:LOOSE
dp-broken = tiny_dp.nothing:RECIPE
dp-other = tiny_dp:MISNAMED

[sordino.schedules]
tiny-rising = tiny_dp:Rising

[sordino.mechanisms]
tiny-noise = tiny_dp:Tiny
"""


def test_names_are_added_once_and_found() -> None:
    table: Registry[int] = Registry("number")
    assert table.add("one", 1) == 1
    table.add("two", 2)
    assert table["one"] == 1
    assert table.names() == ("one", "two") == tuple(table)
    assert len(table) == 2
    assert "three" not in table
    assert 3 not in table  # type: ignore[comparison-overlap]
    assert table.get("three") is None
    with pytest.raises(SordinoError, match="there is another number called 'one' already"):
        table.add("one", 3)
    with pytest.raises(SordinoError, match="there is no number 'tow'; did you mean 'two'"):
        table["tow"]
    with pytest.raises(SordinoError, match="there is no number 7; known are one, two"):
        table[7]  # type: ignore[index]


def test_what_is_added_for_a_while_is_gone_afterwards() -> None:
    table: Registry[int] = Registry("number")
    table.add("one", 1)
    with table.temporary():
        table.add("two", 2)
        assert "two" in table
    assert table.names() == ("one",)


def test_what_is_added_can_be_refused() -> None:
    def positive(name: str, item: int) -> int:
        if item <= 0:
            raise SordinoError(f"{name} must be positive")
        return item

    table: Registry[int] = Registry("number", admit=positive)
    with pytest.raises(SordinoError, match="minus must be positive"):
        table.add("minus", -1)
    assert not table.names()


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which another distribution is installed."""
    (tmp_path / "tiny_dp").mkdir()
    (tmp_path / "tiny_dp" / "__init__.py").write_text(MODULE)
    info = tmp_path / "tiny_dp-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-dp\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    here = Path(sordino.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{here}", "COLUMNS": "200"}


def test_another_package_adds_a_recipe(package: dict[str, str]) -> None:
    """Listed, planned, saved and read back; what cannot be imported is said, and breaks nothing else."""
    listed = subprocess.run(
        [sys.executable, "-m", "sordino", "recipes"],
        env=package,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "half of every gradient" in listed.stdout
    assert "dp-sgd" in listed.stdout
    said = " ".join(listed.stderr.split())
    assert "the recipe 'dp-broken' of the package tiny-dp cannot be used" in said
    assert "No module named 'tiny_dp.nothing'" in said
    assert "goes by its name, 'dp-tiny', not 'dp-other'" in said
    assert "Traceback" not in said
    code = """if True:
        import warnings; warnings.simplefilter("ignore")
        import sordino, sys
        facts = dict(examples=40, epsilon=8.0, delta=1e-3, steps=4)
        assert "tiny_dp" not in sys.modules
        sordino.plan("dp-gd", **facts)
        assert "tiny_dp" not in sys.modules, "loaded though every name was known"
        plan = sordino.plan("dp-tiny", batch_size=10, schedule="tiny-rising", **facts)
        assert sordino.Plan.from_json(plan.to_json()) == plan
        assert type(plan.mechanism).__name__ == "Tiny"
        for name in ("dp-broken", "dp-tinny"):
            try:
                sordino.plan(name, **facts)
            except sordino.SordinoError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], env=package, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    broken, misspelt = done.stdout.splitlines()
    assert "'dp-broken' of the package tiny-dp cannot be used (tiny_dp.nothing:RECIPE)" in broken
    assert misspelt == "there is no recipe 'dp-tinny'; did you mean 'dp-tiny'?"


def test_what_another_package_adds_is_checked_like_the_rest(package: dict[str, str]) -> None:
    """`check_recipe` passes its recipe, and fails the copy that forgets the clip."""
    code = """if True:
        import warnings; warnings.simplefilter("ignore")
        from sordino import audit
        def reference(gradients, numbers, t):
            return audit.clipped(gradients[t] / 2, numbers["clip"])
        print(audit.check_recipe("dp-tiny", reference=reference, runs=2000).verdict())
        try:
            audit.check_recipe("dp-loose", reference=reference, runs=2000)
        except audit.RecipeCheckError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], env=package, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    good, bad = done.stdout.split("dp-loose passes ")
    assert good.startswith("dp-tiny passes 8 of 8 checks:")
    assert good.count(": passed") == 8
    assert "the bound: FAILED" in bad
    assert "the claim: FAILED: dp-loose leaks more than its plan states" in bad
    assert "the algorithm: FAILED: in step 1 the sum of a batch is" in bad
