"""Run experiments: what is finished is skipped, the rest goes to the workers, then all is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab.cells import Cell, Trial, cells_of, trials_of
from benchmarks.lab.experiment import Experiment, read_experiment, settings_path
from benchmarks.lab.results import Results, import_pyarrow
from benchmarks.lab.store import Store
from benchmarks.lab.workers import run_all
from sordino import SordinoError
from sordino._base.files import write_atomically


@dataclass(frozen=True)
class Progress:
    """Called with what there is to do, with every piece that is done, and with what should be known."""

    begin: Callable[[int, int], None]
    done: Callable[[str], None]
    tell: Callable[[str], None]


def run_experiments(
    paths: list[Path],
    *,
    quick: bool,
    data: str | None,
    out: Path,
    jobs: int,
    progress: Progress,
) -> list[Results]:
    """Run what is not finished, write every experiment's files, and return what they say.

    Populations whose files are not there are left out, and their pages say so.
    """
    from benchmarks.lab.page import index_page

    import_pyarrow()  # found missing now, not after an hour
    experiments = [read_experiment(path) for path in paths]
    store = Store(out)
    cells = {e.name: cells_of(e, quick=quick) for e in experiments}
    missing = _missing([cell for group in cells.values() for cell in group], store, data)
    for name, why in missing.items():
        progress.tell(f"left out: everything on {name}; {why}")
    present = {
        name: [cell for cell in group if _can_run(cell, store, missing)]
        for name, group in cells.items()
    }
    if missing and not any(present.values()):
        raise SordinoError(next(iter(missing.values())))
    _run(
        [cell for group in present.values() for cell in group],
        store,
        data=data,
        jobs=jobs,
        progress=progress,
    )
    result = []
    for experiment in experiments:
        kept = present[experiment.name]
        if not kept:
            continue
        parts = [_stored(store, cell) for cell in kept]
        reported = {cell.population.name for cell in kept}
        left = {cell.population.name: None for cell in cells[experiment.name]}
        results = Results(
            experiment, tuple(parts), quick, tuple(name for name in left if name not in reported)
        )
        write_results(results, out)
        result.append(results)
    write_atomically(out / "index.md", index_page(result))
    return result


def _missing(cells: list[Cell], store: Store, data: str | None) -> dict[str, str]:
    """The data sets that unfinished cells want and that cannot be read, with the reason."""
    from benchmarks.lab.presence import absent

    wanted = {cell.population.data for cell in cells if store.read(cell) is None}
    return absent(wanted, data)


def _can_run(cell: Cell, store: Store, missing: Mapping[str, str]) -> bool:
    return cell.population.data not in missing or store.read(cell) is not None


def tune_experiments(
    paths: list[Path], *, data: str | None, out: Path, jobs: int, progress: Progress
) -> list[Path]:
    """Choose all settings that are left to grids, and write them beside the experiments."""
    experiments = {path: read_experiment(path) for path in paths}
    trials = {path: trials_of(experiment) for path, experiment in experiments.items()}
    store = Store(out)
    _run(
        [trial for group in trials.values() for trial in group],
        store,
        data=data,
        jobs=jobs,
        progress=progress,
    )
    written = []
    for path, group in trials.items():
        if not group:
            continue
        target = settings_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        chosen = [_stored(store, trial)["chosen"] for trial in group]
        write_atomically(target, _settings_text(experiments[path], chosen))
        written.append(target)
    return written


def write_results(results: Results, out: Path) -> None:
    """The experiment's Parquet file, page, times and figure."""
    from benchmarks.lab.figure import result_figure
    from benchmarks.lab.page import page, times_page

    name = results.experiment.name
    out.mkdir(parents=True, exist_ok=True)
    results.write_parquet(out / f"{name}.parquet")
    write_atomically(out / f"{name}.md", page(results))
    write_atomically(out / f"{name}-times.md", times_page(results))
    figure = result_figure(results)
    for kind in ("svg", "png"):
        write_atomically(out / f"{name}.{kind}", _drawn(figure, kind))


def _drawn(figure: Any, kind: str) -> bytes:
    """The picture, without the date and the version of what drew it."""
    import io

    from matplotlib import rc_context

    fields = ("Creator", "Date", "Format", "Type") if kind == "svg" else ("Software",)
    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "sordino"}):
        figure.savefig(buffer, format=kind, metadata=dict.fromkeys(fields), facecolor="white")
    return buffer.getvalue()


def _run(
    work: list[Cell | Trial] | list[Cell] | list[Trial],
    store: Store,
    *,
    data: str | None,
    jobs: int,
    progress: Progress,
) -> None:
    left = [piece for piece in work if store.read(piece) is None]
    progress.begin(len(work), len(work) - len(left))
    for piece in run_all(left, data=data, out=store.folder, jobs=jobs):
        progress.done(piece.name)


def _stored(store: Store, piece: Cell | Trial) -> dict[str, Any]:
    result = store.read(piece)
    assert result is not None, piece.name
    return result


def _settings_text(experiment: Experiment, chosen: list[Mapping[str, Any]]) -> str:
    lines = [
        f"# Chosen by `python -m benchmarks run {experiment.name} --tune` on public rows only; see `protocol` in "
        "the experiment.",
        "# `score` is the mean of the first measure over the public folds.",
    ]
    for one in chosen:
        lines += ["", "[[chosen]]"]
        lines += [f"{name} = {_toml(value)}" for name, value in one.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name} = {_toml(item)}" for name, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # In full: budgets that follow from mu are found again by their epsilon.
        return repr(value)
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
