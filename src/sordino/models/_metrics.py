"""What noisy answers about held-out persons say: metrics, with intervals for chance and noise together.

All of it is computed from an `EvaluationAnswer` and costs no privacy. An interval is the metric plus or
minus a quantile of Student's t times its standard deviation over redraws: persons are drawn from the
de-noised weights, and noise by its public law (papers/06, section 6.3). Whole persons are drawn: rows of
one person that differ would make the metric more certain than is said, never less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.stats import t as student

from sordino._base.errors import DAMAGE, SordinoError, one_line
from sordino._base.types import Json
from sordino.models._evaluation import REGRESSION, EvaluationAnswer, part_noise
from sordino.privacy import plural
from sordino.report import (
    CALIBRATION,
    ERRORS,
    ROC,
    EvaluationFacts,
    ScoreCurve,
    errors_figure,
    scores_figure,
    to_svg,
)

Array: TypeAlias = NDArray[np.float64]
Parts: TypeAlias = Mapping[str, Array]

REDRAWS = 200
CONFIDENCE = 0.95
# One-sided 95 %: how sure it must be that the model is right more often than its largest class.
_ONE_SIDED = 1.64
# Curves are given at as many places, and calibration for at most so many groups of persons.
_POINTS, _GROUPS = 101, 10
# Redraws of more persons than this are no different.
_MOST = 10**9
# More classes than this make no readable picture.
_MOST_CURVES = 6


@dataclass(frozen=True)
class EvaluationScore:
    """A metric, its standard deviation, and its 95 % interval."""

    value: float
    sd: float
    low: float
    high: float

    def text(self, digits: int = 3) -> str:
        return f"{self.value:.{digits}f} (95 % interval {self.low:.{digits}f} to {self.high:.{digits}f})"


@dataclass(frozen=True)
class EvaluationMetrics:
    """How good the released model is on held-out persons, each of whom counts once.

    Attributes:
      answer: what was released; all else follows from it.
      scores: by name. Of classes: auc (over the classes: the mean), accuracy, balanced_accuracy, log_loss
        (probabilities clipped to half a cell), brier (two classes), and majority_accuracy, which is of
        always the largest class. Of a regression: mean_absolute_error, root_mean_squared_error,
        median_absolute_error and absolute_error_90 (nine of ten errors are at most that).
      classes: names, and for each its persons, its recall and its AUC against all others.
      confusion: persons by true and predicted class (of two classes: at probability 0.5).
      confusion_sd: of each of them.
      curves: "roc CLASS", "calibration", "errors".
      no_better_than_majority: whether it cannot be said that the model is right more often than always
        answering with the largest class; None for a regression.
    """

    answer: EvaluationAnswer = field(repr=False, compare=False)
    persons: EvaluationScore
    scores: Mapping[str, EvaluationScore]
    classes: tuple[str, ...] = ()
    class_persons: tuple[EvaluationScore, ...] = ()
    recalls: tuple[EvaluationScore, ...] = ()
    aucs: tuple[EvaluationScore, ...] = ()
    confusion: tuple[tuple[float, ...], ...] = ()
    confusion_sd: tuple[tuple[float, ...], ...] = ()
    curves: tuple[ScoreCurve, ...] = field(default=(), repr=False)
    majority: str | None = None
    no_better_than_majority: bool | None = None

    def to_json(self) -> Json:
        """Plain data."""
        data = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            **data,
            "answer": self.answer.to_json(),
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            "persons": asdict(self.persons),
            **{name: [asdict(x) for x in data[name]] for name in _LISTS},
            "classes": list(self.classes),
            **{name: [list(row) for row in data[name]] for name in ("confusion", "confusion_sd")},
        }

    @classmethod
    def from_json(cls, data: Json) -> EvaluationMetrics:
        """What `to_json` wrote; it comes from strangers."""

        def scores(name: str) -> tuple[EvaluationScore, ...]:
            return tuple(_score(item) for item in data[name])

        def table(name: str) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple(float(value) for value in row) for row in data[name])

        try:
            flag, majority = data["no_better_than_majority"], data["majority"]
            return cls(
                EvaluationAnswer.from_json(data["answer"]),
                _score(data["persons"]),
                {str(name): _score(item) for name, item in data["scores"].items()},
                tuple(str(name) for name in data["classes"]),
                scores("class_persons"),
                scores("recalls"),
                scores("aucs"),
                table("confusion"),
                table("confusion_sd"),
                tuple(ScoreCurve.from_json(item) for item in data["curves"]),
                None if majority is None else str(majority),
                None if flag is None else bool(flag),
            )
        except SordinoError:
            raise
        except DAMAGE as error:
            raise SordinoError(f"metrics cannot be read: {one_line(error)}") from None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """For a terminal: short sentences, the main thing first."""
        count = plural(max(0, round(self.persons.value)), self.answer.unit)
        half = self.persons.high - self.persons.value
        result = [f"{name}: {text}" for name, text in self.rows()]
        result.append(f"measured on about {count} who were held out (± {half:,.0f})")
        return result + self.warnings()

    def rows(self) -> list[tuple[str, str]]:
        """The metrics as (name, text)."""
        if self.answer.task == REGRESSION:
            return [(_NAMES[name], _number(score)) for name, score in self.scores.items()]
        return [(_NAMES[name], score.text()) for name, score in self.scores.items()]

    def warnings(self) -> list[str]:
        """What the reader must know before using the numbers; often nothing."""
        result = []
        if self.no_better_than_majority:
            result.append(
                "the model is not shown to be right more often than always answering "
                f"{one_line(self.majority, 40)!r}; judge it by AUC and balanced accuracy, and try "
                "class_weight='balanced' if the other classes matter"
            )
        few = [
            name
            for name, persons in zip(self.classes, self.class_persons, strict=True)
            if _is_vague(persons)
        ]
        if few:
            names = ", ".join(repr(one_line(name, 40)) for name in few[:_MOST_CURVES])
            result.append(f"too few {self.answer.unit}s were held out to say much about {names}")
        return result

    def facts(self) -> EvaluationFacts:
        """What a report shows."""
        two = len(self.classes) == 2
        if self.answer.task == REGRESSION:
            svg = to_svg(errors_figure(self.curves[0]), label=self._label(), prefix="evaluation")
            return EvaluationFacts(svg, self._persons(), self.rows(), self.warnings())
        shown = self._largest()
        recalls = [(self.classes[k], self.recalls[k]) for k in shown]
        bars = [(name, score.value, score.low, score.high) for name, score in recalls]
        curves = [c for c in self.curves if c.kind == CALIBRATION or c.name in dict(recalls)]
        svg = to_svg(scores_figure(curves, bars), label=self._label(), prefix="evaluation")
        table = [
            (name, [f"{count:,.0f} ± {1.96 * sd:,.0f}" for count, sd in zip(row, sds, strict=True)])
            for name, row, sds in zip(self.classes, self.confusion, self.confusion_sd, strict=True)
        ]
        each = (
            []
            if two
            else [
                (name, [auc.text(), recall.text()])
                for name, auc, recall in zip(self.classes, self.aucs, self.recalls, strict=True)
            ]
        )
        return EvaluationFacts(
            svg, self._persons(), self.rows(), self.warnings(), list(self.classes), table, each
        )

    def _persons(self) -> str:
        count = plural(max(0, round(self.persons.value)), self.answer.unit)
        return f"about {count} (± {self.persons.high - self.persons.value:,.0f})"

    def _label(self) -> str:
        return "On held-out data: " + ", ".join(f"{name} {text}" for name, text in self.rows())

    def _largest(self) -> list[int]:
        """The classes that are drawn, in their order."""
        sizes = [-score.value for score in self.class_persons]
        return sorted(np.argsort(sizes, kind="stable")[:_MOST_CURVES].tolist())


_LISTS = ("class_persons", "recalls", "aucs", "curves")
_NAMES = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "majority_accuracy": "accuracy of the largest class",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "brier": "Brier score",
    "mean_absolute_error": "mean absolute error",
    "root_mean_squared_error": "root mean squared error",
    "median_absolute_error": "median absolute error",
    "absolute_error_90": "90 % of absolute errors are at most",
}


def metrics_of(answer: EvaluationAnswer) -> EvaluationMetrics:
    """All metrics; redraws are seeded by the answer, so they are the same each time."""
    rng = np.random.Generator(np.random.Philox(key=int(answer.digest[:32], 16)))
    noisy = {name: part[None] for name, part in answer.weights.items()}
    counts = {name: _redrawn(answer, name, rng) for name in noisy}
    redrawn = {
        name: count + answer.sigma_of(name) * part_noise(name, count.shape, rng)
        for name, count in counts.items()
    }
    if answer.task == REGRESSION:
        return _of_errors(answer, noisy, redrawn)
    majority = answer.majority
    if majority is None:
        majority = int(np.argmax(_of_classes(answer, noisy, 0)["class_persons"][0]))
    return _of_scores(
        answer,
        majority,
        _of_classes(answer, noisy, majority),
        _of_classes(answer, redrawn, majority) | {"chance": _aucs(counts["scores"])},
    )


def denoised(part: str, weights: Array) -> Array:
    """Weights that could be true: not negative, with the running sums (or, of a matrix, the total) kept.

    Along cells the nearest rising running sums; of a matrix the nearest weights that are not negative.
    """
    if part == "matrix":
        flat = weights.reshape(*weights.shape[:-2], -1)
        ordered = -np.sort(-flat, axis=-1)
        total = np.maximum(flat.sum(axis=-1, keepdims=True), 0.0)
        excess = (np.cumsum(ordered, axis=-1) - total) / np.arange(1, flat.shape[-1] + 1)
        last = np.maximum(np.sum(ordered > excess, axis=-1, keepdims=True) - 1, 0)
        level = np.take_along_axis(excess, last, axis=-1)
        return np.maximum(flat - level, 0.0).reshape(weights.shape)
    sums = np.cumsum(weights, axis=-1)
    for place in np.ndindex(sums.shape[:-1]):
        sums[place] = isotonic_regression(sums[place]).x
    return np.diff(np.maximum(sums, 0.0), axis=-1, prepend=0.0)


def _redrawn(answer: EvaluationAnswer, name: str, rng: np.random.Generator) -> Array:
    """Weights of other persons like these, without noise (redraws, *shape)."""
    clean = answer.denoised[name]
    blocks = clean if name == "scores" else clean[None]
    drawn = []
    for block in blocks:
        total = block.sum()
        shares = block.ravel() / total if total > 0 else np.full(block.size, 1 / block.size)
        persons = int(np.clip(round(total), 1, _MOST))
        drawn.append(rng.multinomial(persons, shares, size=REDRAWS).reshape(REDRAWS, *block.shape))
    return np.asarray(np.stack(drawn, axis=1) if name == "scores" else drawn[0], np.float64)


def _aucs(scores: Array) -> Array:
    """Of weights that are not negative (draws, tasks, 2, cells): (draws, tasks); ties count half."""
    below = np.cumsum(scores[:, :, 0], axis=-1) - scores[:, :, 0] / 2
    pairs = np.sum(scores[:, :, 1] * below, axis=-1)
    possible = scores.sum(axis=-1).prod(axis=-1)
    return np.where(possible > 0, pairs / np.maximum(possible, 1e-300), 0.5)


def _of_classes(answer: EvaluationAnswer, parts: Parts, majority: int) -> dict[str, Array]:
    """Metrics of noisy weights of many draws: their first axis is the draw's."""
    cells, count = answer.cells, len(answer.classes)
    clean = denoised("scores", parts["scores"])
    middle = (np.arange(cells) + 0.5) / cells
    sizes = clean.sum(axis=-1)
    result = {"aucs": _aucs(clean)}
    if count == 2:
        cut = round(cells / 2)
        matrix = np.stack(
            [clean[:, 0, :, :cut].sum(axis=-1), clean[:, 0, :, cut:].sum(axis=-1)], axis=-1
        )
    else:
        matrix = parts["matrix"]
    persons = matrix.sum(axis=-1)
    total = np.maximum(persons.sum(axis=-1), 1.0)
    right = np.diagonal(matrix, axis1=-2, axis2=-1)
    recalls = np.clip(right / np.maximum(persons, 1.0), 0.0, 1.0)
    result |= {
        "persons": persons.sum(axis=-1),
        "class_persons": persons,
        "confusion": matrix if count == 2 else denoised("matrix", matrix),
        "recalls": recalls,
        "accuracy": np.clip(right.sum(axis=-1) / total, 0.0, 1.0),
        "majority_accuracy": np.clip(persons[:, majority] / total, 0.0, 1.0),
        "gain": (right.sum(axis=-1) - persons[:, majority]) / total,
        "balanced_accuracy": recalls.mean(axis=-1),
    }
    own = np.maximum(clean[:, :, 1].sum(axis=(-1, -2)), 1.0)
    loss = -np.sum(clean[:, :, 1] @ np.log(middle), axis=-1)
    if count == 2:
        loss -= clean[:, 0, 0] @ np.log1p(-middle)
        squares = clean[:, 0, 0] @ middle**2 + clean[:, 0, 1] @ (1 - middle) ** 2
        result |= {"log_loss": loss / total, "brier": squares / total, "clean": clean[:, 0]}
    else:
        result["log_loss"] = loss / own
    above = np.flip(np.cumsum(np.flip(clean, axis=-1), axis=-1), axis=-1)
    rates = above / np.maximum(sizes, 1e-300)[..., None]
    rates = np.concatenate([rates, np.zeros((*rates.shape[:-1], 1))], axis=-1)[..., ::-1]
    for task in range(answer.tasks):
        result[f"roc {task}"] = np.stack([np.interp(_GRID, *draw) for draw in rates[:, task]])
    return result


# Places of a ROC curve: dense where it rises.
_GRID = np.linspace(0, 1, _POINTS) ** 2


@dataclass(frozen=True)
class _Measured:
    """Metrics, and the same of redraws; both have a first axis for the draw."""

    value: Mapping[str, Array]
    redraws: Mapping[str, Array]
    sigma: float

    def interval(
        self, name: str, persons: Array | float, least: float = 0.0, most: float = 1.0
    ) -> tuple[Array, Array, Array, Array]:
        """Value, standard deviation, low and high, each of the metric's own shape."""
        value, sd = self.value[name][0], self.redraws[name].std(axis=0, ddof=1)
        half = self.quantile(persons) * sd
        return value, sd, np.clip(value - half, least, most), np.clip(value + half, least, most)

    def quantile(self, persons: Array | float) -> Array:
        """Redraws of few persons understate how far off few persons are, so Student's t is wider.

        The fewer there are beside the noise, the fewer degrees of freedom. The rule was tuned by
        simulation, which the tests repeat.
        """
        freedom = np.maximum(3.0, np.asarray(persons) / (2 + 5 * self.sigma))
        return np.asarray(student.ppf((1 + CONFIDENCE) / 2, freedom))

    def scores(
        self, name: str, persons: Array | float, least: float = 0.0, most: float = 1.0
    ) -> tuple[EvaluationScore, ...]:
        columns = (np.atleast_1d(x) for x in self.interval(name, persons, least, most))
        return tuple(
            EvaluationScore(*(float(x) for x in row)) for row in zip(*columns, strict=True)
        )

    def score(
        self, name: str, persons: Array | float, least: float = 0.0, most: float = 1.0
    ) -> EvaluationScore:
        return self.scores(name, persons, least, most)[0]

    def curve(self, kind: str, name: str, of: str, x: Array, persons: Array | float) -> ScoreCurve:
        y, _, low, high = self.interval(of, persons)
        return ScoreCurve(kind, name, *(tuple(line.tolist()) for line in (x, y, low, high)))


def _of_scores(
    answer: EvaluationAnswer, majority: int, value: dict[str, Array], redraws: dict[str, Array]
) -> EvaluationMetrics:
    two = len(answer.classes) == 2
    names = tuple(str(value) for value in answer.classes)
    curves = []
    measured = _Measured(value, redraws, float(answer.sigma_of("scores")[-1, 0]))
    everybody = float(value["persons"][0])
    sizes = value["class_persons"][0]
    rarest = np.minimum(sizes, everybody - sizes)
    for task in range(answer.tasks):
        name = names[1] if two else names[task]
        persons = rarest[1] if two else rarest[task]
        curves.append(measured.curve(ROC, name, f"roc {task}", _GRID, persons))
    if two:
        x, value["calibration"], redraws["calibration"] = _calibration(
            value["clean"], redraws["clean"], answer.sigma
        )
        persons = everybody / len(x)
        curves.append(measured.curve(CALIBRATION, "", "calibration", x, persons))
    class_persons = measured.scores("class_persons", sizes, most=np.inf)
    # Of a class that noise could have made up, nothing is known.
    vague = np.array([_is_vague(score) for score in class_persons])
    aucs = measured.scores("aucs", np.array([min(rarest)]) if two else rarest)
    recalls = [
        _unknown(score) if lost else score
        for score, lost in zip(measured.scores("recalls", sizes), vague, strict=True)
    ]
    if two:
        aucs = tuple(_unknown(auc) if vague.any() else auc for auc in aucs * 2)
    else:
        aucs = tuple(_unknown(auc) if lost else auc for auc, lost in zip(aucs, vague, strict=True))
    # Of a mean over classes each adds its part.
    several = float(min(rarest)) * max(1, len(names) - 1)
    auc = aucs[0] if two else _mean_auc(measured, several)
    balanced = measured.score("balanced_accuracy", several)
    scores = {
        "auc": _unknown(auc) if vague.any() else auc,
        "accuracy": measured.score("accuracy", everybody),
        "majority_accuracy": measured.score("majority_accuracy", everybody),
        "balanced_accuracy": _unknown(balanced) if vague.any() else balanced,
        "log_loss": measured.score("log_loss", everybody, most=np.inf),
    }
    if two:
        scores["brier"] = measured.score("brier", everybody)
    gain = measured.score("gain", everybody, least=-np.inf, most=np.inf)
    _, spread, _, _ = measured.interval("confusion", everybody)
    return EvaluationMetrics(
        answer=answer,
        persons=measured.score("persons", everybody, most=np.inf),
        scores=scores,
        classes=names,
        class_persons=class_persons,
        recalls=tuple(recalls),
        aucs=aucs,
        confusion=_table(value["confusion"][0]),
        confusion_sd=_table(spread),
        curves=tuple(curves),
        majority=names[majority],
        no_better_than_majority=bool(gain.value - _ONE_SIDED * gain.sd <= 0),
    )


def _mean_auc(measured: _Measured, persons: float) -> EvaluationScore:
    """Each class has its own noise; chance is that of the same persons, and taken for the same in each."""
    count = measured.value["aucs"].shape[1]
    chance = measured.redraws["chance"].std(axis=0, ddof=1)
    noise = np.maximum(measured.redraws["aucs"].var(axis=0, ddof=1) - chance**2, 0.0)
    sd = float(np.sqrt(chance.mean() ** 2 + noise.sum() / count**2))
    value, half = float(measured.value["aucs"].mean()), sd * float(measured.quantile(persons))
    return EvaluationScore(value, sd, max(0.0, value - half), min(1.0, value + half))


def _calibration(clean: Array, redraws: Array, sigma: float) -> tuple[Array, Array, Array]:
    """Groups of persons with similar predictions: the mean prediction, and the share of the second class.

    Groups are equally large, and so large that noise does not make them: 20 sigma and 50 persons.
    """
    cells = clean.shape[-1]
    everybody = clean[0].sum(axis=0)
    total = max(float(everybody.sum()), 1.0)
    groups = int(np.clip(total / (50 + 20 * sigma), 1, _GROUPS))
    # The group of each cell, by where its middle person is.
    place = (np.cumsum(everybody) - everybody / 2) / total
    group = np.minimum((place * groups).astype(np.int64), groups - 1)
    member = (group[:, None] == np.unique(group[everybody > 0])).astype(np.float64)
    if not member.size:
        member = np.ones((cells, 1))
    middle = (np.arange(cells) + 0.5) / cells
    x = (everybody * middle) @ member / np.maximum(everybody @ member, 1e-300)

    def share(weights: Array) -> Array:
        sums = weights @ member
        return np.asarray(sums[:, 1] / np.maximum(sums.sum(axis=1), 1e-300))

    return x, share(clean), share(redraws)


def _of_errors(answer: EvaluationAnswer, noisy: Parts, redrawn: Parts) -> EvaluationMetrics:
    assert answer.bounds is not None
    width = answer.bounds[1] - answer.bounds[0]
    edges = (np.arange(answer.cells + 1) / answer.cells) ** 2
    first = denoised("errors", noisy["errors"])
    sums = np.concatenate([[0.0], np.cumsum(first[0, 0])])
    # As far as all but one in two hundred are.
    furthest = edges[min(int(np.searchsorted(sums, 0.995 * sums[-1])), answer.cells)]
    x = np.linspace(0, max(float(furthest), float(edges[1])), _POINTS)

    def numbers(clean: Array) -> dict[str, Array]:
        weights = clean[:, 0]
        total = weights.sum(axis=1)
        shares = weights / np.maximum(total, 1e-300)[:, None]
        middle = (edges[1:] + edges[:-1]) / 2
        square = (edges[1:] ** 2 + edges[1:] * edges[:-1] + edges[:-1] ** 2) / 3
        reached = np.concatenate([np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)], axis=1)
        result = {
            "persons": total,
            "mean_absolute_error": shares @ middle * width,
            "root_mean_squared_error": shares @ square * width**2,
            "errors": np.stack([np.interp(x, edges, row) for row in reached]),
        }
        for name, part in (("median_absolute_error", 0.5), ("absolute_error_90", 0.9)):
            found = [np.interp(part, row, edges) for row in reached]
            result[name] = np.array(found) * width
        return result

    value, redraws = numbers(first), numbers(denoised("errors", redrawn["errors"]))
    median = value["median_absolute_error"]
    # Weights that are not negative have too many large errors: redraws tell how many. Half of all persons
    # have an error of the median or more.
    for name, least in (
        ("mean_absolute_error", median / 2),
        ("root_mean_squared_error", median**2 / 2),
    ):
        value[name] = np.maximum(2 * value[name] - redraws[name].mean(), least)
    measured = _Measured(value, redraws, float(answer.sigma_of("errors")[0]))
    persons = float(value["persons"][0])
    scores = {name: measured.score(name, persons, most=width) for name in value if name in _NAMES}
    squared = measured.score("root_mean_squared_error", persons, most=width**2)
    root = np.sqrt([squared.value, squared.low, squared.high]).tolist()
    scores["root_mean_squared_error"] = EvaluationScore(
        root[0], (root[2] - root[1]) / (2 * float(measured.quantile(persons))), *root[1:]
    )
    return EvaluationMetrics(
        answer=answer,
        persons=measured.score("persons", persons, most=np.inf),
        scores=scores,
        curves=(measured.curve(ERRORS, "", "errors", x * width, persons),),
    )


def _is_vague(persons: EvaluationScore) -> bool:
    return persons.value < 2 * (persons.high - persons.value)


def _unknown(score: EvaluationScore) -> EvaluationScore:
    return EvaluationScore(score.value, score.sd, 0.0, 1.0)


def _table(values: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in values)


def _number(score: EvaluationScore) -> str:
    return f"{score.value:.4g} (95 % interval {score.low:.4g} to {score.high:.4g})"


def _score(data: Json) -> EvaluationScore:
    return EvaluationScore(*(float(data[name]) for name in ("value", "sd", "low", "high")))
