"""Tune the peers of an experiment on public rows, run them, and store their figures.

    bash benchmarks/peers/setup.sh .bench          # the peers' environments, once
    python -m benchmarks.peers.measure [NAME]      # the experiment; g by default

Each contender that names a peer gets its grid of benchmarks/experiments/peers/grids.toml scored at every
budget of every population: on the public folds that the experiment's `tuning` declares, with one seed each.
The best point is then run on all rows with the experiment's seeds. What is done is in
benchmarks/experiments/peers/NAME.json after each budget and is not done again: delete entries to measure
them anew. Environments are found through SORDINO_PEERS, data through SORDINO_DATA.
"""

import itertools
import json
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.lab.cells import Cell, cells_of
from benchmarks.lab.data import PreparedData, public_folds
from benchmarks.lab.experiment import Experiment, read_experiment
from benchmarks.lab.machine import machine
from benchmarks.lab.running import prepared_rows
from benchmarks.lab.tasks import peers
from benchmarks.lab.tasks.outside import checkout

from sordino import SordinoError
from sordino._base.files import write_atomically

# Public trials use another seed than the final runs.
TRIAL_SEED = 0


def candidates(grids: dict[str, Any], cell: Cell) -> Iterator[dict[str, Any]]:
    """All points of a cell's grid."""
    given = dict(grids[cell.settings["peer"]])
    given.update(given.pop("on", {}).get(cell.population.name, {}))
    grid = dict(given.get("grid", {}))
    if "rates" in given:
        assert cell.budget is not None
        start = dict(given["start"])[cell.budget.epsilon]
        # Three digits: a rate is a setting to print, not the last bit of a product.
        grid["learning_rate"] = [float(f"{start * rate:.3g}") for rate in given["rates"]]
    for values in itertools.product(*grid.values()):
        yield {**given["settings"], **dict(zip(grid, values, strict=True))}


def measured(cell: Cell, experiment: Experiment, grids: dict[str, Any]) -> dict[str, Any]:
    """Tune and run one cell."""
    root, peer = checkout("peers", "accuracy.py"), cell.settings["peer"]
    python = peers.interpreter(root, peers.PEERS[peer])
    if python is None:
        raise SordinoError(f"the environment of {peer} is missing; run benchmarks/peers/setup.sh")
    assert cell.budget is not None
    rows = prepared_rows(cell.population, None)
    folds = public_folds(rows, experiment.tuning)
    points = list(candidates(grids, cell))
    examples = len(rows.train[1])
    named: dict[str, PreparedData] = {"all": rows} | {str(i): fold for i, fold in enumerate(folds)}
    with peers.rows_on_disk(named) as files:
        jobs = [
            peers.job_of(cell, files[str(i)], examples, point, [TRIAL_SEED])
            for point in points
            for i in range(len(folds))
        ]
        answers = [one["accuracy"][0] for one in peers.asked(root, peer, python, jobs)]
        means = np.mean(np.reshape(answers, (len(points), len(folds))), axis=1)
        best = int(np.argmax(means))
        seeds = list(range(cell.seeds[0], sum(cell.seeds)))
        final = peers.job_of(cell, files["all"], examples, points[best], seeds)
        answer = next(peers.asked(root, peer, python, [final]))
    return {
        "population": cell.population.name,
        "contender": cell.contender,
        "epsilon": cell.budget.epsilon,
        "delta": cell.budget.delta,
        "settings": points[best],
        "score": float(means[best]),
        "scored": [
            {"settings": point, "score": float(mean)}
            for point, mean in zip(points, means, strict=True)
        ],
        "seeds": seeds,
        **answer,
        "machine": {name: machine()[name] for name in ("processor", "cores", "system")},
    }


def main(name: str = "g") -> None:
    """Measure what is not measured yet."""
    root = checkout("peers", "accuracy.py")
    experiments = root / "benchmarks" / "experiments"
    experiment = read_experiment(experiments / f"{name}.toml")
    grids = tomllib.loads((experiments / "peers" / "grids.toml").read_text(encoding="utf-8"))
    known = peers.stored(root, name)
    for cell in cells_of(experiment, quick=False):
        assert cell.budget is not None
        place = (cell.population.name, cell.contender, cell.budget.epsilon)
        if cell.settings["peer"] == peers.OWN or place in known:
            continue
        known[place] = measured(cell, experiment, grids)
        text = json.dumps({"measured": list(known.values())}, indent=1)
        write_atomically(peers.figures_path(root, name), text + "\n")
        print(f"{cell.name}: {np.mean(known[place]['accuracy']):.2f} %", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
