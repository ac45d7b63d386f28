"""``python -m benchmarks accountant``: the accountant beside exact values, and on random settings.

Three tables: epsilon of known noise beside exact values (contour integrals in 30 digits), noise for known
budgets beside an independent prototype's, and random settings (log-uniform rate 1e-6 to 1, steps 1 to
1e6, epsilon 1e-3 to 50, delta 1e-14 to 1e-3), each of which must end within its budget, in at most 5
seconds of CPU time and 300 MB of memory beyond what imports take. Some of them are planned, saved
and loaded as well.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.growth import peak_mb
from sordino import SordinoError
from sordino import plan as make_plan
from sordino.app import err, out
from sordino.planning import Plan
from sordino.privacy import SampledRelease, calibrate_noise, composed_epsilon

Kind = tuple[str, str]
REMOVE: Kind = ("poisson", "add-remove")
REPLACE: Kind = ("poisson", "replace-one")
EXCHANGE: Kind = ("without-replacement", "replace-one")

# Noise, rate, steps, delta, the pair of distributions and the reference's epsilon; whether it is exact.
STATED: tuple[tuple[float, float, int, float, Kind, float, bool], ...] = (
    (1.0, 0.01, 1000, 1e-5, REMOVE, 1.82823667, True),
    (1.0, 0.01, 10**4, 1e-5, REMOVE, 6.18771239, True),
    (1.0, 1e-3, 10**6, 1e-10, REMOVE, 8.88300042, True),
    (5.0, 0.1, 1000, 1e-14, REMOVE, 4.97745886, True),
    (0.8, 0.05, 200, 1e-8, REMOVE, 11.0577882, True),
    (2.0, 1.0, 1, 1e-6, REMOVE, 2.25408464, True),
    (5.0, 0.1, 1000, 1e-6, REPLACE, 6.387778, False),
    (5.0, 0.1, 1000, 1e-6, EXCHANGE, 7.662225, False),
    (2.0, 0.02, 500, 1e-7, REPLACE, 2.217989, False),
    (2.0, 0.02, 500, 1e-7, EXCHANGE, 4.144165, False),
)
# Rate, steps, epsilon, delta, the prototype's multiplier (None: it had none worth having).
CALIBRATED: tuple[tuple[float, int, float, float, float | None], ...] = (
    (1e-4, 10**4, 1.0, 1e-7, 0.592606),
    (1 / 32561, 8 * 32561, 1.0, 1e-6, 0.535682),
    (1e-6, 10**5, 50.0, 1e-9, 0.176577),
    (0.01, 10**5, 1.0, 1e-6, 13.3850),
    (0.01, 1000, 1e-3, 1e-12, 1711.69),
    (1e-4, 10**5, 1.0, 1e-12, 0.794164),
    (1e-7, 10**6, 1.0, 1e-10, 0.419145),
    (0.1, 500, 3.0, 1e-14, 5.74029),
    (1e-3, 10**6, 50.0, 1e-3, 0.486110),
    (0.5, 10**6, 1e-3, 1e-14, 3.07414e6),
    (1.0, 10**6, 1.0, 1e-9, 5495.52),
    (256 / 60000, 14070, 2.0, 1e-5, 1.22447),
    (1e-7, 1000, 1e-3, 1e-14, None),
    (1e-7, 10**6, 1.0, 1e-14, None),
)
# What plans are made of: enough examples for the smallest rate.
EXAMPLES = 10**6
SLOWEST_S, MEDIAN_S, MOST_MB = 5.0, 0.5, 300.0
NO_NOISE = "next to no noise"


@dataclass
class Row:
    """One setting: what was asked, what was found, and CPU seconds."""

    rate: float
    steps: int
    delta: float
    kind: str
    epsilon: float
    noise: float
    seconds: float
    reference: float | None = None
    asked: float | None = None
    note: str = ""


@dataclass
class Report:
    """Everything that was measured; `failures` in words."""

    stated: list[Row] = field(default_factory=list)
    calibrated: list[Row] = field(default_factory=list)
    random: list[Row] = field(default_factory=list)
    planned: list[Row] = field(default_factory=list)
    memory_mb: float = 0.0
    failures: list[str] = field(default_factory=list)


def stated_rows() -> list[Row]:
    """Epsilon of known noise."""
    rows = []
    for s, rate, steps, delta, kind, known, exact in STATED:
        part = SampledRelease(s, 1.0, rate, steps, *kind)
        began = time.process_time()
        found = composed_epsilon((part,), delta)
        seconds = time.process_time() - began
        note = "exact" if exact else "prototype"
        rows.append(Row(rate, steps, delta, " ".join(kind), found, s, seconds, known, None, note))
    return rows


def calibrated_row(
    rate: float, steps: int, epsilon: float, delta: float, kind: Kind, known: float | None = None
) -> Row:
    """Noise for a budget, and the epsilon that is stated for it."""

    def release(std: float) -> SampledRelease:
        return SampledRelease(std, 1.0, rate, steps, *kind)

    began = time.process_time()
    note = ""
    try:
        noise = calibrate_noise(release, epsilon, delta)
        reached = composed_epsilon((release(noise),), delta)
    except SordinoError as error:
        if NO_NOISE not in str(error):
            raise
        noise, reached, note = 0.0, 0.0, NO_NOISE
    seconds = time.process_time() - began
    name = " ".join(kind)
    return Row(rate, steps, delta, name, reached, noise, seconds, known, epsilon, note)


def drawn(rng: np.random.Generator) -> tuple[float, int, float, float]:
    """Rate, steps, epsilon, delta: log-uniform."""
    rate, steps = 10 ** rng.uniform(-6, 0), int(10 ** rng.uniform(0, 6))
    return rate, steps, 10 ** rng.uniform(-3, math.log10(50)), 10 ** rng.uniform(-14, -3)


def planned_row(rate: float, steps: int, epsilon: float, delta: float) -> Row:
    """The same as a plan of dp-sgd on Poisson batches, saved and loaded."""
    batch = max(1, round(rate * EXAMPLES))
    began = time.process_time()
    note, noise, reached = "", 0.0, 0.0
    try:
        plan = make_plan(
            "dp-sgd",
            examples=EXAMPLES,
            batch_size=batch,
            steps=steps,
            epsilon=epsilon,
            delta=delta,
            sampling="poisson",
        )
    except SordinoError as error:
        if NO_NOISE not in str(error):
            raise
        note = NO_NOISE
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            plan.save(path)
            loaded = Plan.load(path)
        noise, reached = plan.noise_multiplier, loaded.guarantee.epsilon(delta)
        if loaded.hash != plan.hash or loaded.guarantee != plan.guarantee:
            note = "the loaded plan is another one"
    seconds = time.process_time() - began
    return Row(
        batch / EXAMPLES,
        steps,
        delta,
        " ".join(REMOVE),
        reached,
        noise,
        seconds,
        None,
        epsilon,
        note,
    )


def measure(settings: int, plans: int, seed: int, say: Callable[[str], None]) -> Report:
    """All three tables; `say` is told how far it is."""
    report, rng = Report(), np.random.default_rng(seed)
    make_plan(  # imports what planning needs
        "dp-sgd",
        examples=1000,
        batch_size=10,
        steps=10,
        epsilon=1.0,
        delta=1e-6,
        sampling="poisson",
    )
    before = peak_mb()
    report.stated = stated_rows()
    say("stated")
    for rate, steps, epsilon, delta, known in CALIBRATED:
        report.calibrated.append(calibrated_row(rate, steps, epsilon, delta, REMOVE, known))
    say("calibrated")
    for index in range(settings):
        setting = drawn(rng)
        try:
            report.random.append(calibrated_row(*setting, _kind(index)))
            if index < plans:
                report.planned.append(planned_row(*setting))
        except Exception as error:
            report.failures.append(f"{_words(setting)}, {_kind(index)}: {error}")
        if index % 20 == 19:
            say(f"{index + 1} random settings")
    report.memory_mb = peak_mb() - before
    report.failures += complaints(report)
    return report


def _kind(index: int) -> Kind:
    """Half of all settings are of Poisson batches and one unit more or less."""
    return (REMOVE, REPLACE, REMOVE, EXCHANGE)[index % 4]


def _words(setting: tuple[float, int, float, float]) -> str:
    rate, steps, epsilon, delta = setting
    return f"rate {rate:.3g}, {steps:,} steps, epsilon {epsilon:.3g}, delta {delta:.3g}"


def complaints(report: Report) -> list[str]:
    """What is not as it must be."""
    found = []
    for row in report.stated:
        assert row.reference is not None
        least = row.reference * (1 - (0 if row.note == "exact" else 1.5e-4))
        if not least <= row.epsilon <= row.reference * (1 + 1.5e-4):
            found.append(f"epsilon {row.epsilon} beside {row.reference}: {row}")
    for row in report.calibrated:
        if row.reference is not None and abs(row.noise / row.reference - 1) > 2e-4:
            found.append(f"noise {row.noise} beside {row.reference}: {row}")
    for row in report.calibrated + report.random + report.planned:
        assert row.asked is not None
        if row.epsilon > row.asked:
            found.append(f"epsilon {row.epsilon} exceeds the asked {row.asked}: {row}")
        if row.seconds > SLOWEST_S:
            found.append(f"{row.seconds:.1f} seconds: {row}")
        if row.note not in ("", NO_NOISE):
            found.append(f"{row.note}: {row}")
    if report.random and median(row.seconds for row in report.random) > MEDIAN_S:
        found.append("the median of the random settings is too slow")
    if report.memory_mb > MOST_MB:
        found.append(f"{report.memory_mb:.0f} MB of memory")
    return found


def accountant(
    settings: Annotated[int, typer.Option(min=1, help="Random settings.")] = 500,
    plans: Annotated[int, typer.Option(min=0, help="So many are planned, saved, loaded.")] = 120,
    seed: Annotated[int, typer.Option(help="Of the random settings.")] = 0,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write the tables to this Markdown file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Compare the accountant with exact values, and try it on random settings; no data is read."""
    report = measure(settings, plans, seed, lambda what: err().print(what, style="dim"))
    text = json.dumps(asdict(report), indent=1) if as_json else page_of(report, settings, seed)
    out().print(text, soft_wrap=True, markup=False, highlight=False)
    if page is not None:
        page.write_text(page_of(report, settings, seed), encoding="utf-8")
    if report.failures:
        raise typer.Exit(1)


def page_of(report: Report, settings: int, seed: int) -> str:
    """The report as Markdown."""
    lines = [
        "# The accountant",
        "",
        f"`python -m benchmarks accountant --settings {settings} --seed {seed}`: CPU seconds on one core.",
        "",
        "## Epsilon of known noise",
        "",
        "Exact values are contour integrals in 30 digits; the others an independent prototype's. What is",
        "stated is never below the exact value.",
        "",
        "| noise | rate | steps | delta | batches, neighbours | reference | Sordino | above | CPU s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report.stated:
        assert row.reference is not None
        lines.append(
            f"| {row.noise:g} | {row.rate:g} | {row.steps:,} | {row.delta:g} | {row.kind} | "
            f"{row.reference:.9g} ({row.note}) | {row.epsilon:.9g} | {row.epsilon / row.reference - 1:+.1e} | "
            f"{row.seconds:.2f} |"
        )
    lines += [
        "",
        "## Noise for a budget",
        "",
        "Poisson batches, one unit more or less. The prototype had no usable answer for the last two.",
        "",
        "| rate | steps | epsilon | delta | prototype | Sordino | apart | epsilon reached | CPU s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report.calibrated:
        known = "" if row.reference is None else f"{row.reference:g}"
        apart = "" if row.reference is None else f"{row.noise / row.reference - 1:+.1e}"
        assert row.asked is not None
        lines.append(
            f"| {row.rate:.4g} | {row.steps:,} | {row.asked:g} | {row.delta:g} | {known} | {row.noise:.6g} | "
            f"{apart} | {row.epsilon / row.asked:.5f} of it | {row.seconds:.2f} |"
        )
    lines += ["", "## Random settings", "", *_summary(report), ""]
    if report.failures:
        lines += ["Failures:", "", *(f"- {failure}" for failure in report.failures), ""]
    return "\n".join(lines)


def _summary(report: Report) -> list[str]:
    def facts(rows: list[Row]) -> list[str]:
        times = sorted(row.seconds for row in rows)
        served = [row for row in rows if row.note == ""]
        short: list[Any] = sorted(row.epsilon / (row.asked or 1) for row in served)
        return [
            f"{len(rows):,}",
            f"{len(rows) - len(served):,}",
            f"{max(short, default=math.nan):.6f}",
            f"{median(short) if short else math.nan:.6f}",
            f"{short[0] if short else math.nan:.4f}",
            f"{sum(value < 0.999 for value in short):,}",
            f"{median(times):.2f}",
            f"{times[int(0.9 * len(times))]:.2f}",
            f"{times[-1]:.2f}",
        ]

    names = [
        "settings",
        "refused because they need no noise",
        "epsilon reached of the asked: most",
        "median",
        "least",
        "settings below 0.999",
        "CPU seconds: median",
        "90 % below",
        "worst",
    ]
    columns = [("noise for a budget", facts(report.random))]
    if report.planned:
        columns.append(("plan, save, load", facts(report.planned)))
    head = " | ".join(name for name, _ in columns)
    lines = [f"| | {head} |", "| --- |" + " --- |" * len(columns)]
    for index, name in enumerate(names):
        cells = " | ".join(values[index] for _, values in columns)
        lines.append(f"| {name} | {cells} |")
    lines.append("")
    lines.append(
        "Rate 1e-6 to 1, steps 1 to 1e6, epsilon 1e-3 to 50, delta 1e-14 to 1e-3, all log-uniform. Half are"
        " Poisson batches with one unit more or less, a quarter each replace-one with Poisson batches and with"
        f" batches of fixed size. Peak memory beyond the imports: {report.memory_mb:.0f} MB."
    )
    return lines
