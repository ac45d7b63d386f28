"""A small experiment on data from a formula."""

from __future__ import annotations

from pathlib import Path

TOY = """
name = "toy"
title = "A toy"
source = "Printed nowhere."
protocol = "Settings were chosen on public rows."
measures = ["error", "log_loss", "passes"]
seeds = 3
quick_seeds = 2
tuning = { share = 0.5, folds = 2, seeds = 1 }
targets = [{ population = "synthetic", epsilon = 1.0, at_most = 30.0 }]

[[populations]]
name = "synthetic"
data = "synthetic"
loss = { kind = "logistic" }
budgets = [{ epsilon = 1.0, delta = 1e-5 }]

[[contenders]]
label = "dp-gd"
recipe = "dp-gd"
settings = { steps = 10 }
grid = { learning_rate = [1.0, 8.0] }

[[contenders]]
label = "dp-sgd"
recipe = "dp-sgd"
settings = { sampling = "fixed", batches = 10, epochs = 1 }

[[contenders]]
label = "dp-memf"
recipe = "dp-memf"
settings = { batches = 10, epochs = 1 }

[[contenders]]
label = "sgd"
recipe = "sgd"
settings = { batches = 10, epochs = 1 }

[[printed]]
population = "synthetic"
epsilon = 1.0
label = "DP-X"
values = { error = 25.0, error_std = 1.0 }
"""
CHOSEN = """
[[chosen]]
population = "synthetic"
contender = "dp-gd"
epsilon = 1.0
settings = { learning_rate = 8.0 }
"""


def write_toy(folder: Path, *, chosen: bool = True, text: str = TOY) -> Path:
    """The experiment's file, with its chosen settings beside it."""
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    if chosen:
        (folder / "settings").mkdir(exist_ok=True)
        (folder / "settings" / "toy.toml").write_text(CHOSEN, encoding="utf-8")
    return path
