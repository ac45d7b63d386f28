"""What an experiment is, and how it is read from its TOML file.

    name = "a"
    title = "Non-convex logistic regression"
    [[populations]]
    name = "a9a"
    data = "a9a"
    loss = { kind = "nonconvex-logistic", lam = 1e-3 }
    budgets = [{ epsilon = 0.2, delta = 1e-5 }]
    [[contenders]]
    label = "dp-gd"
    recipe = "dp-gd"
    settings = { steps = 50, clip = 1.0 }
    grid = { learning_rate = [1.0, 2.0] }

Settings that come from a grid are chosen by ``python -m benchmarks run NAME --tune`` on public rows only and
kept in ``settings/NAME.toml`` beside the experiment.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lab.measures import MEASURES
from benchmarks.lab.tasks import TASKS
from sordino import SordinoError
from sordino._base.errors import (
    known_fields,
    nearest,
    one_line,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino.parts.sampling import checked_budget
from sordino.planning.recipes import recipe_named
from sordino.privacy import ADJACENCIES, epsilon_from_mu

Settings = Mapping[str, Any]
SETTINGS_FOLDER = "settings"
SUFFIX = ".toml"
LAYOUTS = ("dots", "lines")


@dataclass(frozen=True)
class TargetBudget:
    """What a private contender may spend: epsilon at delta, or mu of mu-GDP, which gives the epsilon.

    Attributes:
      quick: whether it takes part in a quick run.
    """

    epsilon: float = math.nan
    delta: float = math.nan
    adjacency: str = "zero-out"
    mu: float | None = None
    quick: bool = True

    def __post_init__(self) -> None:
        require_choice("adjacency", self.adjacency, ADJACENCIES)
        if self.mu is not None:
            follows = epsilon_from_mu(require_positive("mu", self.mu), self.delta)
            if not math.isnan(self.epsilon) and self.epsilon != follows:
                raise SordinoError("a budget is given by epsilon or by mu, not by both")
            object.__setattr__(self, "epsilon", follows)
        checked_budget(self.epsilon, self.delta)

    @property
    def spent(self) -> dict[str, Any]:
        """As `sordino.plan` takes it."""
        return {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self.adjacency}

    @property
    def short(self) -> str:
        """What distinguishes it from others, in few letters."""
        return f"epsilon {self.epsilon:g}" if self.mu is None else f"mu {self.mu:g}"

    def __str__(self) -> str:
        if self.mu is not None:
            return f"mu {self.mu:g} (epsilon {self.epsilon:.3g} at delta {self.delta:g})"
        return f"epsilon {self.epsilon:g}, delta {self.delta:g}"


@dataclass(frozen=True)
class PopulationSpec:
    """A data set, how its rows are prepared, the loss, and the budgets to train it with.

    Attributes:
      rows: see `benchmarks.lab.data.RowRule`.
      unit: a public bound, or a typical value, of the norm of a row. Settings are given for rows of
        norm 1 and converted: clips are multiples of it, learning rates of its inverse square, lengths
        of steps of its inverse.
      options: whatever else the experiment's task wants to know.
      quick: whether it takes part in a quick run.
      panel, x: where it stands in a figure of lines; see `Experiment.layout`.
      x_title: of that panel, if not the experiment's.
      note: facts about the preparation that a reader should know.
    """

    name: str
    data: str = ""
    loss: Settings = field(default_factory=dict)
    budgets: tuple[TargetBudget, ...] = ()
    rows: Settings = field(default_factory=dict)
    unit: float = 1.0
    options: Settings = field(default_factory=dict)
    quick: bool = True
    panel: str = ""
    x: float | None = None
    x_title: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        require_positive("unit", self.unit)

    @property
    def stages(self) -> tuple[TargetBudget | None, ...]:
        """Its budgets; None alone where there is nothing to spend."""
        return self.budgets or (None,)


@dataclass(frozen=True)
class Contender:
    """One way to train: a recipe with its settings.

    Attributes:
      settings: arguments of `sordino.plan`; ``batches`` stands for a batch size of so many per epoch.
      on: settings for single populations, by name.
      grid: settings to choose from on public rows, each with its candidates.
      quick: whether it takes part in a quick run, or the settings that are different there.
      populations: names of those it takes part in; all by default.
      epsilons: of the budgets it is run with; all by default.
      private: whether it needs a budget; follows from the recipe, where there is one.
      like: another contender whose chosen settings it has too.
      task: if not the experiment's; see `benchmarks.lab.tasks`.
      seeds: how many at most, if fewer than the experiment has.
    """

    label: str
    recipe: str = ""
    settings: Settings = field(default_factory=dict)
    on: Mapping[str, Settings] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    quick: bool | Settings = True
    populations: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = ()
    adjacency: str | None = None
    private: bool = True
    like: str = ""
    task: str = ""
    seeds: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.seeds is not None:
            require_count("seeds", self.seeds)
        if self.recipe:
            object.__setattr__(self, "private", recipe_named(self.recipe).private)

    @property
    def in_quick(self) -> bool:
        """Whether it takes part in a quick run."""
        return self.quick is not False

    def settings_on(self, population: str) -> dict[str, Any]:
        """Settings without those that a grid decides."""
        return {**self.settings, **self.on.get(population, {})}

    def candidates(self) -> Iterator[dict[str, Any]]:
        """Every point of the grid."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))


@dataclass(frozen=True)
class Printed:
    """A figure of the paper, to stand beside ours; with no budget, in all of the population's tables."""

    population: str
    label: str
    values: Mapping[str, float]
    epsilon: float | None = None
    mu: float | None = None

    def is_at(self, budget: TargetBudget | None) -> bool:
        return (self.epsilon is None and self.mu is None) or _same(self, budget)


@dataclass(frozen=True)
class Target:
    """What the best private contender should reach on one population and budget.

    Attributes:
      contender: the one that it is about, if not the best.
      measure: if not the first.
    """

    population: str
    epsilon: float | None = None
    mu: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    contender: str = ""
    measure: str = ""

    def is_at(self, budget: TargetBudget | None) -> bool:
        return _same(self, budget)

    def reached(self, value: float) -> bool:
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        if self.at_most is not None and self.at_least is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return f"at least {self.at_least:g}"


def _same(one: Printed | Target, budget: TargetBudget | None) -> bool:
    """Whether a figure is about this budget."""
    if budget is None:
        return one.epsilon is None and one.mu is None
    return budget.mu == one.mu if one.mu is not None else budget.epsilon == one.epsilon


@dataclass(frozen=True)
class Tuning:
    """How settings are chosen: on a public part of the training rows, never on test rows.

    Attributes:
      share: of the training rows that is declared public.
      folds: the public part is cut into so many; each is scored once by runs on the others. Such a run
        has the steps, the batches per epoch and the noise on every mean of the real plan, with as
        many rows as there are; see `benchmarks.lab.running.shrunk`.
      seeds: noise seeds per fold.
    """

    share: float = 0.1
    folds: int = 3
    seeds: int = 2

    def __post_init__(self) -> None:
        require_fraction("share", self.share)
        require_count("folds", self.folds, minimum=2)
        require_count("seeds", self.seeds)


@dataclass(frozen=True)
class Chosen:
    """Settings that tuning found for one contender on one population and budget."""

    population: str
    contender: str
    settings: Settings
    epsilon: float | None = None
    score: float | None = None


@dataclass(frozen=True)
class Experiment:
    """Everything about one table.

    Attributes:
      source: where the printed figures come from.
      protocol: how settings were chosen, and what else a reader must know to judge the table.
      measures: columns of the table, by name in `benchmarks.lab.measures`; the first decides.
      seeds, quick_seeds: how many noise seeds; they are ``first_seed``, ``first_seed + 1``, ...
      task: what a cell does; see `benchmarks.lab.tasks`.
      layout: "dots" (a table and a panel per population and budget, a row per contender) or "lines" (a
        table and a panel for all populations of the same ``panel``, a line per contender, over
        their ``x`` or, without one, over epsilon).
      x_title, x_log, y_log: of a figure of lines.
    """

    name: str
    title: str
    source: str
    protocol: str
    measures: tuple[str, ...]
    seeds: int
    quick_seeds: int
    populations: tuple[PopulationSpec, ...]
    contenders: tuple[Contender, ...]
    printed: tuple[Printed, ...] = ()
    targets: tuple[Target, ...] = ()
    tuning: Tuning = field(default_factory=Tuning)
    chosen: tuple[Chosen, ...] = ()
    first_seed: int = 1000
    task: str = "train"
    layout: str = "dots"
    x_title: str = "epsilon"
    x_log: bool = False
    y_log: bool = False

    def __post_init__(self) -> None:
        require_choice("task", self.task, TASKS)
        require_choice("layout", self.layout, LAYOUTS)
        for contender in self.contenders:
            if require_choice("task", contender.task or self.task, TASKS) == "train":
                recipe_named(contender.recipe)
            if contender.like:
                require_choice("like", contender.like, [one.label for one in self.contenders])
        names = [population.name for population in self.populations]
        if not self.populations or not self.contenders or not self.measures:
            raise SordinoError("an experiment needs populations, contenders and measures")
        for measure in self.measures:
            require_choice("measure", measure, MEASURES)
        for count in ("seeds", "quick_seeds"):
            require_count(count, getattr(self, count))
        for target in self.targets:
            require_choice("measure", target.measure or self.headline, MEASURES)
        named = [one.population for one in self.printed]
        named += [one.population for one in self.targets]
        named += [one.population for one in self.chosen]
        named += [name for one in self.contenders for name in (*one.populations, *one.on)]
        for name in named:
            require_choice("population", name, names)
        labels = [contender.label for contender in self.contenders]
        for listed in (names, labels):
            if len(set(listed)) != len(listed):
                raise SordinoError(f"each name may be used once, got {', '.join(listed)}")

    @property
    def headline(self) -> str:
        """The measure that decides."""
        return self.measures[0]

    def settings_of(
        self, contender: Contender, population: str, budget: TargetBudget | None
    ) -> dict[str, Any]:
        """All settings of a contender, those that tuning found among them."""
        given = contender.settings_on(population)
        if contender.like:
            other = next(one for one in self.contenders if one.label == contender.like)
            return {**self.settings_of(other, population, budget), **given}
        if not contender.grid:
            return given
        epsilon = None if budget is None else budget.epsilon
        for one in self.chosen:
            if (one.population, one.contender, one.epsilon) == (
                population,
                contender.label,
                epsilon,
            ):
                return {**given, **one.settings}
        raise SordinoError(
            f"the settings of {contender.label!r} on {population} are not chosen yet; run "
            f"`python -m benchmarks run {self.name} --tune`"
        )


def read_experiment(path: Path) -> Experiment:
    """The experiment in a TOML file, with the settings that lie beside it."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        beside = settings_path(path)
        if beside.is_file():
            result = tomllib.loads(beside.read_text(encoding="utf-8"))
            data["chosen"] = result.get("chosen", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SordinoError(f"{str(path)!r} is not valid TOML: {one_line(error)}") from None
    try:
        return _experiment(data)
    except SordinoError as error:
        raise SordinoError(f"in {str(path)!r}: {error}") from None


def settings_path(path: Path) -> Path:
    """Where the chosen settings of the experiment at `path` lie."""
    return path.parent / SETTINGS_FOLDER / path.name


def find_experiments(folder: Path) -> dict[str, Path]:
    """The experiments of a folder, by name."""
    return {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def named_experiments(names: list[str], folder: Path | None) -> list[Path]:
    """The files of the named experiments (names in `folder`, or paths); all of them for no name."""
    known = {} if folder is None else find_experiments(folder)
    if not names:
        if not known:
            raise SordinoError(
                "there is no folder benchmarks/experiments here; name an experiment's file, or run "
                "this in a checkout of Sordino"
            )
        return list(known.values())
    result = []
    for name in names:
        if name in known:
            result.append(known[name])
        elif name.endswith(SUFFIX) and Path(name).is_file():
            result.append(Path(name))
        else:
            raise SordinoError(f"there is no experiment {shown(name)}{nearest(name, known)}")
    return result


def _experiment(data: dict[str, Any]) -> Experiment:
    parts: dict[str, Callable[[Any], Any]] = {
        "populations": _population,
        "contenders": _contender,
        "printed": partial(_made, Printed, "a printed figure"),
        "targets": partial(_made, Target, "a target"),
        "chosen": partial(_made, Chosen, "a chosen setting"),
    }
    for name, read in parts.items():
        if name in data:
            if not isinstance(data[name], list):
                raise SordinoError(f"{name} must be a list of tables, got {shown(data[name])}")
            data[name] = tuple(read(one) for one in data[name])
    if "tuning" in data:
        data["tuning"] = _made(Tuning, "tuning", data["tuning"])
    if "measures" in data:
        data["measures"] = tuple(data["measures"])
    return Experiment(**known_fields("an experiment", data, Experiment))


def _population(data: Any) -> PopulationSpec:
    given = known_fields("a population", data, PopulationSpec)
    given["budgets"] = tuple(
        _made(TargetBudget, "a budget", one) for one in given.get("budgets", ())
    )
    return PopulationSpec(**given)


def _contender(data: Any) -> Contender:
    given = known_fields("a contender", data, Contender)
    given["grid"] = {name: tuple(values) for name, values in given.get("grid", {}).items()}
    for name in ("populations", "epsilons"):
        given[name] = tuple(given.get(name, ()))
    return Contender(**given)


def _made(cls: type, what: str, data: Any) -> Any:
    return cls(**known_fields(what, data, cls))
