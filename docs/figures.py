"""The figures of the algorithms' pages, each computed by the library: ``python docs/figures.py``.

Writes ``docs/images/algorithms/NAME.svg``; names on the command line make only those. Nothing is read
from data: plans say how much noise there will be. Colours are Okabe and Ito's, which colour-blind
readers can tell apart, and line styles differ as well.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.papers.tran_cutkosky import algorithm_1
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

import sordino
from sordino.parts.mechanisms import Workload
from sordino.parts.schedules import Exponential, Quadratic
from sordino.report import BLUE, GREY, INK, VERMILION

FOLDER = Path(__file__).parent / "images" / "algorithms"
GREEN, ORANGE, PURPLE = "#009E73", "#E69F00", "#CC79A7"
STYLES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-"},
    {"color": VERMILION, "linestyle": (0, (5, 2))},
    {"color": GREEN, "linestyle": (0, (1, 1.2))},
    {"color": ORANGE, "linestyle": (0, (5, 2, 1, 2))},
    {"color": PURPLE, "linestyle": (0, (8, 3))},
    {"color": GREY, "linestyle": "-"},
)
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5}


def panels(count: int) -> tuple[Figure, list[Any]]:
    """An empty figure with so many panels side by side."""
    figure = Figure(figsize=(7.6, 3.5), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.1))
    axes = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    for one in axes:
        one.set_axisbelow(True)
        one.grid(True, color=GREY, alpha=0.25, linewidth=0.8)
        one.tick_params(labelsize=9, colors=INK)
        for side, spine in one.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(INK)
    return figure, axes


def name(axes: Any, title: str, x: str, y: str, *, zero: bool = True) -> None:
    """Title and axes in words; the vertical axis begins at 0 unless told."""
    axes.set_title(title, fontsize=10.5, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)
    if zero:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)


def curves(axes: Any, named: dict[str, Any], x: Any = None) -> None:
    """One line for each name, over the steps unless `x` is given."""
    for style, (label, values) in zip(STYLES, named.items(), strict=False):
        at = np.arange(1, len(values) + 1) if x is None else x
        axes.plot(at, values, linewidth=2, label=label, **style)


def legend(figure: Figure, axes: Any, columns: int | None = None) -> None:
    """One legend below all panels, where it can never cover a curve."""
    handles, labels = axes.get_legend_handles_labels()
    found = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns or len(labels),
        frameon=False,
        fontsize=9.5,
    )
    for text in found.get_texts():
        text.set_color(INK)


def dp_gd() -> Figure:
    """Three ways to spread one budget over the steps."""
    figure, (left, right) = panels(2)
    shapes: dict[str, Any] = {
        "uniform": "uniform",
        "exponential, 1.5 : 1": Exponential(1.5),
        "quadratic, condition 10": Quadratic(tuple(np.geomspace(0.1, 1, 20)), eta=1.0),
    }
    plans = {
        label: sordino.plan("dp-gd", examples=1000, steps=40, schedule=shape, **BUDGET)
        for label, shape in shapes.items()
    }
    noise = {label: plan.noise_per_step() for label, plan in plans.items()}
    curves(left, noise)
    curves(right, {label: np.cumsum(s**-2.0) / np.sum(s**-2.0) for label, s in noise.items()})
    name(left, "Noise in each step", "step", "std per coordinate of the mean")
    name(right, "Budget spent so far", "step", "share of mu squared")
    legend(figure, left)
    return figure


def dp_sgd() -> Figure:
    """What secret batches save, and a schedule at its amplified cost."""
    figure, (left, right) = panels(2)
    epochs = [1, 2, 4, 8, 16]
    kinds = {"secret (Poisson) batches": "poisson", "public batches, fixed order": "fixed"}
    needed = {
        label: [
            sordino.plan(
                "dp-sgd", examples=10_000, batch_size=250, epochs=k, sampling=kind, **BUDGET
            ).noise_multiplier
            for k in epochs
        ]
        for label, kind in kinds.items()
    }
    curves(left, needed, epochs)
    left.set_xticks(epochs)
    name(left, "Noise that (1, 1e-5) needs", "epochs", "std of a sum over the clip")
    left.legend(frameon=False, fontsize=9, labelcolor=INK)
    shapes = {"dp-sgd, uniform": "uniform", "dp-psgd, optimal": "optimal"}
    noise = {
        label: sordino.plan(
            "dp-psgd", examples=10_000, batch_size=250, epochs=4, schedule=shape, **BUDGET
        ).noise_per_step()
        for label, shape in shapes.items()
    }
    curves(right, noise)
    name(right, "Spread over four epochs", "step", "std per coordinate of the mean")
    right.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower left")
    return figure


def dp_memf() -> Figure:
    """Mechanisms at one guarantee: in each step, and in the model."""
    figure, (left, right) = panels(2)
    kinds = {
        "independent": "independent",
        "banded": "banded",
        "BLT": "blt",
        "square root": "toeplitz",
        "dense": "dense",
    }
    plans = {
        label: sordino.plan(
            "dp-memf",
            examples=12_800,
            batch_size=50,
            epochs=1,
            momentum=0.0,
            mechanism=kind,
            **BUDGET,
        )
        for label, kind in kinds.items()
    }
    curves(left, {label: plan.noise_per_step() for label, plan in plans.items()})
    curves(right, {label: plan.error_per_step() for label, plan in plans.items()})
    name(left, "Noise in each step", "step", "std per coordinate of the mean")
    name(right, "Noise that adds up in the model", "step", "std at learning rate 1")
    legend(figure, left)
    return figure


def dp_srg_memf() -> Figure:
    """What recursion costs at one clip, and the clip at which it breaks even."""
    figure, (left, right) = panels(2)
    decays = [0.0, 0.0821, 0.2, 0.4, 0.6, 0.8, 0.9]
    common: dict[str, Any] = {"examples": 6000, "batch_size": 50, **BUDGET}
    lost = {}
    for label, epochs in {"one epoch": 1, "six epochs": 6}.items():
        found = [
            sordino.plan(
                "dp-srg-memf", epochs=epochs, decay=c, mechanism="blt", **common
            ).relative_error
            for c in decays
        ]
        lost[label] = np.array(found) / found[0]
    curves(left, lost, decays)
    curves(right, {label: 1 / values for label, values in lost.items()}, decays)
    for axes in (left, right):
        axes.axvline(0.0821, color=GREY, linestyle=":", linewidth=1.2)
    name(left, "Noise against signal, at one clip", "decay c", "relative to dp-memf (c = 0)")
    name(right, "Clip of differences that breaks even", "decay c", "over the clip of gradients")
    right.annotate("the paper's c", (0.0821, 0.06), xytext=(6, 0), textcoords="offset points")
    legend(figure, left)
    return figure


def dp_srgd() -> Figure:
    """Noise shaped for the coupled sequences, against noise shaped for plain sums."""
    figure, (left, right) = panels(2)
    kinds = {"own optimum (auto)": "auto", "tree": "tree", "independent": "independent"}
    plans = {
        label: sordino.plan(
            "dp-srgd", examples=12_800, batch_size=100, epochs=1, mechanism=kind, **BUDGET
        )
        for label, kind in kinds.items()
    }
    curves(left, {label: plan.noise_per_step() for label, plan in plans.items()})
    curves(right, {label: plan.error_per_step() for label, plan in plans.items()})
    name(left, "Noise in each difference", "step", "std per coordinate of the mean")
    name(right, "Noise that reaches y", "step", "std at learning rate 1")
    legend(figure, left)
    return figure


def _one_pass(recipe: str) -> sordino.Plan:
    return sordino.plan(recipe, examples=12_800, batch_size=100, epochs=1, **BUDGET)


def dp_nesterov() -> Figure:
    """Bounds and noise that grow with the weights, and what reaches y beside dp-srgd."""
    figure, (left, right) = panels(2)
    plans = {one: _one_pass(one) for one in ("dp-nesterov", "dp-srgd")}
    curves(left, {one: plan.noise_per_step() for one, plan in plans.items()})
    curves(right, {one: plan.error_per_step() for one, plan in plans.items()})
    name(left, "Noise in each release", "step", "std per coordinate of the mean")
    name(right, "Noise that reaches y", "step", "std at learning rate 1")
    legend(figure, left)
    return figure


def dp_srg() -> Figure:
    """Noise in the steps' direction S / t, and in the iterates beside the accelerated ones."""
    figure, (left, right) = panels(2)
    plans = {one: _one_pass(one) for one in ("dp-srg", "dp-srgd")}
    sums = plans["dp-srg"].training._error(Workload.prefix())
    curves(left, {"S / t": sums / np.arange(1, sums.size + 1), "S": sums})
    left.set_yscale("log")
    curves(right, {one: plan.error_per_step() for one, plan in plans.items()})
    name(left, "Noise in the sum and the estimate", "step", "std", zero=False)
    name(right, "Noise that reaches the iterates", "step", "std at learning rate 1")
    for axes in (left, right):
        axes.legend(frameon=False)
    return figure


def dp_srm() -> Figure:
    """The estimate's noise over time, and how much of slow noise is left against the signal."""
    figure, (left, right) = panels(2)
    common: dict[str, Any] = {
        "examples": 10_000,
        "batch_size": 250,
        "epochs": 2,
        "noise_multiplier": 1.0,
    }
    gamma, T = 0.1, 80
    named = {"dp-sgd": np.full(T, sordino.plan("dp-sgd", **common).noise_per_step()[0])}
    for C2 in (0.001, 0.01, 0.1):
        plan = sordino.plan("dp-srm", gamma=gamma, difference_clip=C2, **common)
        steps, kept = plan.noise_per_step(), 0.0
        variance = []
        for t in range(T):
            kept = (1 - gamma) ** 2 * kept * (t > 0) + steps[t] ** 2
            variance.append(kept)
        named[f"dp-srm, C2 = {C2:g}"] = np.sqrt(variance)
    curves(left, named)
    left.set_yscale("log")
    name(left, "Noise in the estimate", "step", "std per coordinate", zero=False)
    ratios = np.geomspace(0.01, 10, 60)
    gain = 1 + (1 - gamma) * ratios
    right.plot(ratios, gain, linewidth=2, color=BLUE)
    right.set_xscale("log")
    right.axvline(1.0, color=GREY, linestyle=":", linewidth=1.2)
    right.axhline(1.0, color=GREY, linestyle=":", linewidth=1.2)
    right.plot([0.1], [1 + (1 - gamma) * 0.1], "o", color=VERMILION)
    right.annotate(
        "the default",
        (0.1, 1.09),
        xytext=(-4, 8),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    right.annotate(
        "C2 = gamma C1",
        (1.0, 8.5),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    name(right, "Slow noise against the signal", "C2 over gamma C1", "times that of dp-sgd")
    legend(figure, left)
    return figure


def dp_mu2() -> Figure:
    """Noise of a step is taken back by the next: what is left in the averaged iterate."""
    figure, (left, right) = panels(2)
    kinds = {
        "leaky (default)": {"mechanism": "leaky"},
        "all taken back": {"mechanism": "cancelling"},
        "the paper's growing noise": {"mechanism": "cancelling", "schedule": "participation"},
        "independent": {"mechanism": "independent"},
    }
    plans = {
        label: sordino.plan("dp-mu2", examples=10_000, batch_size=100, epochs=1, **kind, **BUDGET)
        for label, kind in kinds.items()
    }
    curves(left, {label: plan.noise_per_step() for label, plan in plans.items()})
    curves(right, {label: plan.error_per_step() for label, plan in plans.items()})
    name(left, "Noise in each correction", "step", "std per coordinate of the mean")
    right.set_yscale("log")
    name(right, "Noise in the average x", "step", "std at learning rate 1", zero=False)
    legend(figure, left)
    return figure


def dp_nsgd() -> Figure:
    """Noise in the momentum: the printed calibration, the exact tree, a factorization."""
    figure, (left, right) = panels(2)
    N, T, alpha = 64, 256, 0.1
    common: dict[str, Any] = {"examples": N, "batch_size": 1, "momentum": 1 - alpha, **BUDGET}
    named = {"factorization (default)": "auto", "tree, exact": "tree", "independent": "independent"}
    plans = {
        label: sordino.plan("dp-nsgd", mechanism=kind, steps=T, adjacency="replace-one", **common)
        for label, kind in named.items()
    }
    average = Workload.ema(alpha)
    noise = {
        label: plan.noise_multiplier * plan.mechanism.workload_error(average)
        for label, plan in plans.items()
    }
    printed = algorithm_1(epsilon=1.0, delta=1e-5, epoch_steps=N, steps=T, alpha=alpha)
    noise["tree, as printed"] = (
        noise["tree, exact"] * printed.noise / plans["tree, exact"].noise_multiplier
    )
    curves(left, noise)
    name(left, "Noise in the momentum", "step", "std over the clip")
    epochs = [1, 2, 4, 8, 16]
    error = {
        label: [
            sordino.plan("dp-nsgd", mechanism=kind, epochs=k, **common).relative_error
            for k in epochs
        ]
        for label, kind in named.items()
    }
    curves(right, error, epochs)
    right.set_xticks(epochs)
    name(right, "Noise against signal in the model", "epochs", "over the way of a gradient")
    legend(figure, left)
    return figure


def dp_nsgd_sr() -> Figure:
    """The bound on one example's vector, and what it does to the noise."""
    figure, (left, right) = panels(2)
    B, epochs = 20, 6
    common: dict[str, Any] = {"examples": 2000, "batch_size": 100, "epochs": epochs, **BUDGET}
    plain = sordino.plan("dp-nsgd", **common)
    bounds = {"dp-nsgd": np.ones(B * epochs)}
    noise = {"dp-nsgd": plain.noise_per_step()}
    for C2 in (0.3, 0.1, 0.02):
        label = f"dp-nsgd-sr, C2 = {C2:g}"
        plan = sordino.plan("dp-nsgd-sr", difference_clip=C2, gamma=C2, **common)
        bounds[label] = plan.contribution.bounds(B * epochs)[0]
        noise[label] = plan.noise_per_step()
    curves(left, bounds)
    curves(right, noise)
    for axes in (left, right):
        axes.axvline(B + 0.5, color=GREY, linestyle=":", linewidth=1.2)
    left.annotate("second epoch", (B + 0.5, 0.6), xytext=(5, 0), textcoords="offset points")
    name(left, "What one example may add", "step", "norm bound over C1")
    name(right, "Noise in each release", "step", "std per coordinate of the mean")
    legend(figure, left, 2)
    return figure


def dp_ftrl() -> Figure:
    """The tree's prefix sums step by step, beside noise that has no tree."""
    figure, (axes,) = panels(1)
    common: dict[str, Any] = {"examples": 12_800, "batch_size": 100, "epochs": 1, **BUDGET}
    found = {
        "tree (dp-ftrl)": sordino.plan("dp-ftrl", **common),
        "tree, all nodes read": sordino.plan("dp-ftrl", mechanism="tree-full", **common),
        "BLT (dp-memf)": sordino.plan("dp-memf", mechanism="blt", momentum=0.0, **common),
        "independent": sordino.plan("dp-memf", mechanism="independent", momentum=0.0, **common),
    }
    for style, (label, plan) in zip(STYLES, found.items(), strict=False):
        at = np.arange(1, plan.population.steps + 1)
        axes.step(at, plan.error_per_step(), where="mid", label=label, linewidth=1.7, **style)
    name(axes, "Noise in the sum of all gradients so far", "step", "std at learning rate 1")
    legend(figure, axes)
    return figure


def dp_agd() -> Figure:
    """One run on synthetic rows: where its budget goes, and which steps it takes."""
    from sordino import Logistic

    figure, (left, right) = panels(2)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 10)).astype(np.float32) / np.sqrt(10)
    y = (X @ rng.normal(size=10) > 0).astype(np.float32)
    plan = sordino.plan("dp-agd", examples=5000, steps=40, **BUDGET)
    start = np.zeros(10, np.float32)
    history = sordino.train(plan, Logistic(), start, (X, y), insecure_seed=0).history
    at = [row["step"] for row in history]
    total = plan.guarantee.mu**2
    spent = [row["spent"] / total for row in history]
    left.plot(at, spent, color=BLUE, linewidth=2, marker="o", markersize=3.5)
    right.plot(at, [row["step size"] for row in history], "o", color=VERMILION, markersize=4.5)
    name(left, "Budget spent so far", "iteration", "share of mu squared")
    name(right, "Step that the noisy search chose", "iteration", "length of the step")
    return figure


def rrpsgd() -> Figure:
    """One example a step is the worst way to spend a budget."""
    figure, (axes,) = panels(1)
    sizes = [1, 4, 16, 64, 256, 1000]
    error = {}
    for epsilon in (0.5, 2.0):
        error[f"epsilon {epsilon:g}"] = [
            sordino.plan(
                "dp-sgd",
                examples=1000,
                batch_size=b,
                epochs=8,
                epsilon=epsilon,
                delta=1e-5,
                momentum=0.0,
            ).relative_error
            for b in sizes
        ]
    for style, (label, values) in zip(STYLES, error.items(), strict=False):
        axes.plot(sizes, values, marker="o", markersize=4, linewidth=2, label=label, **style)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{b:,}" for b in sizes])
    axes.minorticks_off()
    name(
        axes,
        "Eight epochs over 1,000 examples, Poisson batches",
        "batch size (rrpsgd: 1)",
        "noise over the way of a gradient",
    )
    legend(figure, axes)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "dp-gd": dp_gd,
    "dp-sgd": dp_sgd,
    "dp-memf": dp_memf,
    "dp-srg-memf": dp_srg_memf,
    "dp-srgd": dp_srgd,
    "dp-srg": dp_srg,
    "dp-nesterov": dp_nesterov,
    "dp-srm": dp_srm,
    "dp-mu2": dp_mu2,
    "dp-nsgd": dp_nsgd,
    "dp-nsgd-sr": dp_nsgd_sr,
    "dp-ftrl": dp_ftrl,
    "dp-agd": dp_agd,
    "rrpsgd": rrpsgd,
}


def write(names: list[str]) -> None:
    """Make the figures of these names, or all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    metadata = dict.fromkeys(("Creator", "Date"))
    for one in names or list(FIGURES):
        with rc_context({"svg.fonttype": "path", "svg.hashsalt": "sordino"}):
            FIGURES[one]().savefig(
                FOLDER / f"{one}.svg", metadata=metadata, facecolor="white", transparent=False
            )
        print(f"wrote {one}.svg")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    write(sys.argv[1:])
