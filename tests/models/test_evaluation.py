"""Private evaluation: what one person moves, what the metrics are, and how often their intervals hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.special import expit, softmax
from scipy.stats import norm
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
)

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino.models import _evaluation
from sordino.models._evaluation import EvaluationAnswer, held_out, run_evaluation
from sordino.models._metrics import EvaluationMetrics, denoised
from sordino.models._prefix import column_norms, prefix_error
from sordino.planning import Evaluation

# mu of (1, 1e-5) when a tenth of delta is spent elsewhere.
SIGMA = 1 / 0.2663649
EXACT = 1e-9
KEY = RunKey.from_insecure_seed(0)
CLASSES: dict[str, Any] = {"binary": ("no", "yes"), "classes": ("red", "green", "blue")}


def asked(
    task: str, truth: Any, scores: Any, owners: Any = None, *, sigma: float = EXACT, **more: Any
) -> Any:
    if task == "regression":
        more.setdefault("bounds", (0.0, 10.0))
    else:
        more.setdefault("classes", CLASSES[task])
    key = more.pop("key", KEY)
    return run_evaluation(Evaluation(task, sigma, 0.2), truth, scores, owners, key, **more)


def rows_of(task: str, count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    if task == "regression":
        return rng.uniform(0, 10, count), rng.uniform(-2, 12, count)
    classes = len(CLASSES[task])
    truth = rng.integers(classes, size=count)
    if task == "binary":
        return truth, rng.random(count)
    return truth, softmax(3 * rng.standard_normal((count, classes)), axis=1)


def binormal(
    positives: int, negatives: int, separation: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Persons with calibrated probabilities; the AUC is ``Phi(separation / sqrt(2))``."""
    truth = np.repeat([1, 0], [positives, negatives])
    score = rng.standard_normal(len(truth)) + separation * truth
    prior = np.log(positives / negatives)
    return truth, expit(separation * (score - separation / 2) + prior)


def moved(before: EvaluationAnswer, after: EvaluationAnswer) -> float:
    """How far apart two answers without noise are, in standard deviations of the noise."""
    squares = 0.0
    for part, weights in before.weights.items():
        difference = (after.weights[part] - weights) / before.sigma_of(part)
        if part != "matrix":
            cells = difference.shape[-1]
            k = np.arange(1, cells)
            root = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
            scaled = (difference / column_norms(cells)).reshape(-1, cells)
            difference = np.stack([fftconvolve(row, root)[:cells] for row in scaled])
        squares += float(np.sum(difference**2))
    return squares**0.5


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers without noise, to see what stands behind it."""
    monkeypatch.setattr(_evaluation, "part_noise", lambda part, shape, rng: np.zeros(shape))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
@pytest.mark.parametrize("rows", [1, 3, 50])
def test_one_person_costs_what_the_query_says(task: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    others, near = rows_of(task, 200, rng)
    whose = rng.integers(40, size=200)
    before = asked(task, others, near, whose, sigma=2.0)
    furthest = 0.0
    for _ in range(60):
        truth, scores = rows_of(task, rows, rng)
        if rng.random() < 0.3:  # all rows alike: the worst case
            truth, scores = np.repeat(truth[:1], rows), np.repeat(scores[:1], rows, axis=0)
        everything = [np.concatenate(pair) for pair in ((others, truth), (near, scores))]
        after = asked(task, *everything, np.append(whose, np.full(rows, 40)), sigma=2.0)
        furthest = max(furthest, moved(before, after))
    assert furthest <= 0.5 * (1 + 1e-9)
    # Rows that agree use all of the budget; 50 of them weigh a little less than 1, rounded down.
    assert furthest == pytest.approx(0.5, rel=3e-6)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
def test_replacing_a_person_costs_at_most_root_two(task: str) -> None:
    rng = np.random.default_rng(5)
    furthest = 0.0
    for rows in (1, 4) * 30:
        one, other = (asked(task, *rows_of(task, rows, rng), np.zeros(rows, int)) for _ in range(2))
        furthest = max(furthest, EXACT * moved(one, other))
    assert 1.0 < furthest <= 2**0.5 * (1 + 1e-9)


@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
def test_rows_that_do_not_fit_add_nothing_and_nothing_is_said(task: str) -> None:
    rng = np.random.default_rng(1)
    truth, scores = rows_of(task, 30, rng)
    owners = rng.integers(6, size=30)
    bad_truth: list[Any] = (
        [np.nan, np.inf, 3.0, 3.0, 3.0] if task == "regression" else [-1, 7, 1, 1, 1]
    )
    bad = np.repeat(scores[:1], 5, axis=0)
    bad[2:4] = np.array([np.nan, -np.inf]).reshape((2,) + (1,) * (bad.ndim - 1))
    more = asked(
        task,
        np.append(truth, np.array(bad_truth, truth.dtype)),
        np.concatenate([scores, bad]),
        np.append(owners, [0, 1, 2, 3, -1]),
    )
    assert more.to_json() == asked(task, truth, scores, owners).to_json()


@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("sigma", [EXACT, 3.0, 1e30])
def test_any_table_has_an_answer_of_one_form(task: str, rows: int, sigma: float) -> None:
    """Warnings are errors here; what is said may not depend on who was held out."""
    truth, scores = rows_of(task, rows, np.random.default_rng(2))
    answer = asked(task, truth, scores, sigma=sigma)
    empty = asked(task, *rows_of(task, 0, np.random.default_rng(2)), sigma=sigma)
    shapes = {name: part.shape for name, part in answer.weights.items()}
    assert shapes == {name: part.shape for name, part in empty.weights.items()}
    metrics = answer.metrics()
    assert list(metrics.scores) == list(empty.metrics().scores)
    assert all(np.isfinite([s.value, s.sd, s.low, s.high]).all() for s in metrics.scores.values())
    assert metrics.lines()
    if sigma == 1e30:
        for name, part in answer.weights.items():  # one key, one noise: the rows are drowned
            np.testing.assert_array_equal(part, empty.weights[name])


def test_noise_is_what_the_query_says() -> None:
    sums = np.stack(
        [
            asked(
                "classes", [], np.zeros((0, 3)), sigma=2.0, key=RunKey.from_insecure_seed(seed)
            ).weights["scores"]
            for seed in range(400)
        ]
    ).cumsum(axis=-1)
    found = sums.std(axis=0)
    # Own persons 2 sigma, others 2 sigma sqrt(2).
    for half, factor in ((1, 4.0), (0, 4.0 * 2**0.5)):
        expected = np.broadcast_to(factor * prefix_error(256), (3, 256))
        np.testing.assert_allclose(found[:, half], expected, rtol=0.2)
    halves = sums[:, :, :, -1].reshape(400, -1)
    assert np.abs(np.corrcoef(halves.T) - np.eye(6)).max() < 0.2


def test_noise_belongs_to_the_key() -> None:
    truth, scores = rows_of("binary", 50, np.random.default_rng(3))
    one = asked("binary", truth, scores, sigma=1.0)
    assert one.to_json() == asked("binary", truth, scores, sigma=1.0).to_json()
    other = asked("binary", truth, scores, sigma=1.0, key=RunKey.from_insecure_seed(1))
    assert not np.isclose(one.weights["scores"], other.weights["scores"]).any()


def test_binary_metrics_are_those_of_scikit_learn_with_persons_as_weights() -> None:
    rng = np.random.default_rng(4)
    truth, scores = binormal(800, 2400, 1.2, rng)
    owners = rng.integers(900, size=len(truth))
    weight = 1 / np.bincount(owners)[owners]
    metrics = asked("binary", truth, scores, owners).metrics()
    guessed = scores > 0.5
    value = {name: score.value for name, score in metrics.scores.items()}
    assert value["auc"] == pytest.approx(
        roc_auc_score(truth, scores, sample_weight=weight), abs=1e-3
    )
    assert value["accuracy"] == pytest.approx(
        accuracy_score(truth, guessed, sample_weight=weight), abs=1e-5
    )
    assert value["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(truth, guessed, sample_weight=weight), abs=1e-5
    )
    assert value["log_loss"] == pytest.approx(
        log_loss(truth, scores, sample_weight=weight), abs=1e-3
    )
    assert value["brier"] == pytest.approx(
        brier_score_loss(truth, scores, sample_weight=weight), abs=1e-4
    )
    assert metrics.persons.value == pytest.approx(len(np.unique(owners)), rel=1e-5)
    assert metrics.majority == "no"
    assert metrics.no_better_than_majority is False
    (calibration,) = [curve for curve in metrics.curves if curve.kind == "calibration"]
    assert len(calibration.x) == 10
    inside = [
        low <= x <= high
        for x, low, high in zip(calibration.x, calibration.low, calibration.high, strict=True)
    ]
    assert sum(inside) >= 8


def test_thresholds_are_free() -> None:
    truth, scores = binormal(100, 300, 1.2, np.random.default_rng(4))
    answer = asked("binary", truth, scores)
    for threshold in (0.25, 0.5):
        expected = [[np.sum((scores > threshold)[truth == k] == j) for j in (0, 1)] for k in (0, 1)]
        np.testing.assert_allclose(answer.confusion(threshold), expected, atol=1e-5)
    with pytest.raises(SordinoError, match="the threshold must be between 0 and 1"):
        answer.confusion(2.0)
    with pytest.raises(SordinoError, match="two classes"):
        asked("classes", [0], np.eye(3)[:1]).confusion()


def test_a_model_that_cannot_tell_says_no() -> None:
    """As `predict` does where the decision is exactly 0."""
    answer = asked("binary", [0, 1, 1], [0.5, 0.5, 0.5])
    np.testing.assert_allclose(answer.confusion(), [[1, 0], [2, 0]], atol=1e-6)


def test_metrics_of_several_classes_are_those_of_scikit_learn() -> None:
    truth, scores = rows_of("classes", 3000, np.random.default_rng(6))
    metrics = asked("classes", truth, scores).metrics()
    value = {name: score.value for name, score in metrics.scores.items()}
    guessed = np.argmax(scores, axis=1)
    aucs = [roc_auc_score(truth == k, scores[:, k]) for k in range(3)]
    assert [auc.value for auc in metrics.aucs] == pytest.approx(aucs, abs=2e-3)
    assert value["auc"] == pytest.approx(np.mean(aucs), abs=2e-3)
    assert value["accuracy"] == pytest.approx(accuracy_score(truth, guessed), abs=1e-6)
    assert value["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(truth, guessed), abs=1e-6
    )
    clipped = np.clip(scores[np.arange(3000), truth], 1 / 512, 1)
    assert value["log_loss"] == pytest.approx(-np.mean(np.log(clipped)), abs=0.05)
    np.testing.assert_allclose(np.sum(metrics.confusion, axis=1), np.bincount(truth), rtol=1e-6)
    assert metrics.no_better_than_majority  # these scores know nothing
    assert [curve.name for curve in metrics.curves] == ["red", "green", "blue"]


def test_errors_of_a_regression() -> None:
    rng = np.random.default_rng(7)
    truth = rng.uniform(0, 10, 4000)
    guessed = truth + rng.laplace(0, 0.3, 4000)
    metrics = asked("regression", truth, guessed).metrics()
    error = np.abs(truth - guessed)
    value = {name: score.value for name, score in metrics.scores.items()}
    assert value["mean_absolute_error"] == pytest.approx(error.mean(), rel=0.01)
    assert value["root_mean_squared_error"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=0.01)
    assert value["median_absolute_error"] == pytest.approx(np.median(error), rel=0.02)
    assert value["absolute_error_90"] == pytest.approx(np.quantile(error, 0.9), rel=0.02)
    assert metrics.no_better_than_majority is None


def test_denoised_weights_could_be_true() -> None:
    rng = np.random.default_rng(8)
    noisy = rng.standard_normal((5, 2, 30))
    assert denoised("scores", noisy).min() >= 0
    assert denoised("scores", noisy).cumsum(axis=-1)[..., -1] == pytest.approx(
        np.maximum(noisy.cumsum(axis=-1)[..., -1], denoised("scores", noisy).sum(axis=-1))
    )
    matrix = 3 + rng.standard_normal((4, 3, 3)) * 3
    clean = denoised("matrix", matrix)
    assert clean.min() == 0
    np.testing.assert_allclose(clean.sum(axis=(1, 2)), matrix.sum(axis=(1, 2)))
    true = np.arange(12.0).reshape(1, 2, 6)
    np.testing.assert_allclose(denoised("scores", true), true)


@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
def test_answers_and_metrics_are_read_back_bit_for_bit(task: str) -> None:
    answer = asked(task, *rows_of(task, 300, np.random.default_rng(9)), sigma=3.0)
    written = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    again = EvaluationAnswer.from_json(written)
    assert again.to_json() == answer.to_json()
    assert again.metrics() == answer.metrics()
    metrics = answer.metrics()
    data = json.loads(json.dumps(metrics.to_json(), allow_nan=False))
    assert EvaluationMetrics.from_json(data) == metrics
    assert EvaluationMetrics.from_json(data).answer.digest == answer.digest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", "binormal"),
        ("sigma", -1.0),
        ("sigma", "much"),
        ("cells", 1),
        ("cells", 1 << 40),
        ("classes", [["a"], "b"]),
        ("classes", ["a"]),
        ("majority", 9),
        ("weights", {}),
        ("weights", {"scores": {"float64": "?"}}),
    ],
)
def test_damaged_answers_are_refused(field: str, value: Any) -> None:
    data = asked("binary", [0, 1], [0.1, 0.2]).to_json()
    with pytest.raises(SordinoError):
        EvaluationAnswer.from_json(data | {field: value})
    del data[field]
    with pytest.raises(SordinoError):
        EvaluationAnswer.from_json(data)


def test_damaged_metrics_are_refused() -> None:
    data = asked("binary", [0, 1], [0.1, 0.2]).metrics().to_json()
    for name in data:
        with pytest.raises(SordinoError):
            EvaluationMetrics.from_json({key: data[key] for key in data if key != name})


def test_what_the_caller_did_wrong_is_said() -> None:
    with pytest.raises(SordinoError, match="at least two"):
        asked("binary", [0], [0.5], classes=("no",))
    with pytest.raises(SordinoError, match="bounds of its target"):
        asked("regression", [0.0], [0.5], bounds=None)
    with pytest.raises(SordinoError, match="finite and rise"):
        asked("regression", [0.0], [0.5], bounds=(1, 1))
    for truth, scores, owners in (([0], [0.5, 0.5], None), ([0, 1], [0.5, 0.5], np.zeros(3, int))):
        with pytest.raises(SordinoError, match="for each of the same rows"):
            asked("binary", truth, scores, owners)


def test_held_out_persons_are_drawn_by_their_id_alone() -> None:
    ids = [f"p{number}" for number in range(4000)]
    chosen = held_out(KEY, ids, 4000, 0.1)
    assert 0.08 < chosen.mean() < 0.12
    some = [*ids[::-1], ids[7], None]
    again = held_out(KEY, some, len(some), 0.1)
    np.testing.assert_array_equal(again[:4000], chosen[::-1])
    assert again[4000] == chosen[7]
    assert not again[4001]
    # A larger share keeps who was held out; another key draws anew.
    assert not np.any(chosen & ~held_out(KEY, ids, 4000, 0.3))
    assert np.mean(chosen == held_out(RunKey.from_insecure_seed(1), ids, 4000, 0.1)) < 0.9
    for share, expected in ((0.0, 0.0), (1.0, 1.0)):
        assert held_out(KEY, ids, 4000, share).mean() == expected
    assert held_out(KEY, [None], 1, 1.0).tolist() == [False]


def test_rows_without_ids_are_drawn_one_by_one() -> None:
    chosen = held_out(KEY, None, 4000, 0.1)
    assert 0.08 < chosen.mean() < 0.12
    np.testing.assert_array_equal(held_out(KEY, None, 100, 0.1), chosen[:100])
    assert not held_out(KEY, None, 0, 0.1).size


def test_a_rare_class_is_flagged_and_a_common_one_is_not() -> None:
    """As with car crashes (4.5 % deaths) and incomes (25 % high), papers/06, section 6.4."""
    rng = np.random.default_rng(10)
    rare = asked("binary", *binormal(224, 5020, 1.7, rng), sigma=SIGMA).metrics()
    assert rare.no_better_than_majority
    assert rare.scores["auc"].value > 0.8
    assert "more often than always answering 'no'" in str(rare)
    assert "class_weight='balanced'" in str(rare)
    common = asked("binary", *binormal(1472, 4561, 1.8, rng), sigma=SIGMA).metrics()
    assert common.no_better_than_majority is False
    assert "always answering" not in str(common)


def test_the_largest_class_is_the_released_one() -> None:
    truth, scores = binormal(500, 500, 2.0, np.random.default_rng(11))
    by = {m: asked("binary", truth, scores, majority=m).metrics() for m in (0, 1)}
    assert (by[0].majority, by[1].majority) == ("no", "yes")


def test_too_few_persons_make_no_claims() -> None:
    metrics = asked(
        "binary", *binormal(12, 600, 2.0, np.random.default_rng(12)), sigma=SIGMA
    ).metrics()
    for name in ("auc", "balanced_accuracy"):
        assert (metrics.scores[name].low, metrics.scores[name].high) == (0.0, 1.0)
    assert metrics.scores["accuracy"].low > 0.9
    assert "too few persons were held out to say much about 'yes'" in str(metrics)


def test_lines_are_short_and_the_unit_is_named() -> None:
    answer = asked("binary", *binormal(400, 600, 1.0, np.random.default_rng(13)), sigma=1.0)
    lines = replace(answer, unit="patient").metrics().lines()
    assert lines[0].startswith("AUC: 0.7")
    assert all(len(line) < 200 for line in lines)
    assert any(line.startswith("measured on about 1,0") and "patients" in line for line in lines)


def simulated(
    positives: int, negatives: int, separation: float, draws: int, seed: int = 0
) -> NDArray[np.float64]:
    """(value, sd, low, high) of the AUC in many evaluations."""
    rng = np.random.default_rng(seed)
    found = []
    for draw in range(draws):
        rows = binormal(positives, negatives, separation, rng)
        auc = (
            asked("binary", *rows, sigma=SIGMA, key=RunKey.from_insecure_seed(draw))
            .metrics()
            .scores["auc"]
        )
        found.append((auc.value, auc.sd, auc.low, auc.high))
    return np.array(found)


def coverage(found: NDArray[np.float64], separation: float) -> float:
    true = norm.cdf(separation / 2**0.5)
    return float(np.mean((found[:, 2] <= true) & (true <= found[:, 3])))


@pytest.mark.parametrize(("separation", "sd"), [(0.8, 0.0095), (1.2, 0.0076), (1.7, 0.0070)])
def test_error_bars_are_as_large_as_errors(separation: float, sd: float) -> None:
    found = simulated(1200, 4000, separation, 25)
    assert found[:, 1].mean() == pytest.approx(sd, rel=0.2)
    assert coverage(found, separation) >= 0.85


def test_rare_classes_have_wider_bars() -> None:
    found = simulated(250, 5000, 1.2, 25)
    assert found[:, 1].mean() == pytest.approx(0.0195, rel=0.2)
    assert coverage(found, 1.2) >= 0.85
    half = (found[:, 3] - found[:, 2]) / 2
    assert (half / found[:, 1]).mean() > 2.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positives", "negatives", "least", "most"), [(1200, 4000, 0.93, 0.97), (250, 5000, 0.93, 1.0)]
)
@pytest.mark.parametrize("separation", [0.8, 1.2, 1.7])
def test_intervals_hold_as_often_as_they_say(
    positives: int, negatives: int, separation: float, least: float, most: float
) -> None:
    found = simulated(positives, negatives, separation, 500)
    assert least <= coverage(found, separation) <= most
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positives", "negatives", "separation", "expected"),
    [(1472, 4561, 1.8, 0.0024), (224, 5020, 1.7, 0.0139)],
)
def test_noise_moves_the_auc_little(
    positives: int, negatives: int, separation: float, expected: float
) -> None:
    """As on two tables of papers/06, section 6.2, which have as many persons."""
    rng = np.random.default_rng(0)
    errors = []
    for draw in range(100):
        truth, scores = binormal(positives, negatives, separation, rng)
        key = RunKey.from_insecure_seed(draw)
        found = asked("binary", truth, scores, sigma=SIGMA, key=key).metrics().scores["auc"].value
        errors.append(found - roc_auc_score(truth, scores))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(expected, rel=0.2)
