"""The examples run, and the models they train are worth showing."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
WORTH = {
    "equinox_mlp": 0.8,
    "federated": 0.65,
    "flax_cnn": 0.75,
    "own_loop": 0.9,
    "own_recipe": 0.9,
    "parties": 0.8,
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(WORTH)


@pytest.mark.usefixtures("own_recipes")
@pytest.mark.parametrize("name", WORTH)
def test_example(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other frameworks' deprecations
        spec.loader.exec_module(module)
        assert module.main() > WORTH[name]
