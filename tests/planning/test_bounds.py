"""Convergence bounds of the papers: closed forms against brute force, limits, and real runs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import sordino
from sordino.engine import train_many
from sordino.parts.schedules._bounds import dynamic_error, uniform_error
from sordino.planning import _bounds as bounds
from tests.support.momentum_bound import largest_eta_0, momentum_gamma, momentum_risk_bound

RNG = np.random.default_rng(7)
# ---- closed forms against sums written out ---------------------------------------------------------


def weights(beta: float, t: int) -> np.ndarray:
    """``beta^(t-s)``, s = 1..t, summing to 1."""
    w = beta ** np.arange(t - 1, -1, -1.0)
    return w / w.sum()


@pytest.mark.parametrize(
    ("beta", "B", "T"), [(0.5, 3, 10), (0.9, 4, 13), (0.99, 5, 4), (0.75, 1, 5)]
)
def test_unevenness_and_lags_by_summing(beta: float, B: int, T: int) -> None:
    t = np.arange(1, T + 1)
    uneven, age = bounds._unevenness(beta, t, B), bounds._mean_age(beta, t)
    for k in t:
        w, place = weights(beta, k), np.arange(k) % B
        u = np.bincount(place, w, minlength=B)
        assert uneven[k - 1] == pytest.approx(np.abs(u - 1 / B).sum(), abs=1e-12)
        assert age[k - 1] == pytest.approx((1 - beta**k) * w @ np.arange(k)[::-1])


def normalized(**change: Any) -> float:
    given: dict[str, Any] = {
        "noise": np.zeros(6),
        "beta": 0.8,
        "rate": 0.1,
        "per_epoch": 3,
        "batch_size": 1,
        "fresh": True,
    }
    given |= {"lipschitz": 1.0, "smoothness": 0.0, "gap": 0.0, "dimension": 4.0}
    return bounds.normalized_norm(**{**given, **change})


def test_drawn_orders_have_this_variance() -> None:
    """Linear losses, so that only the order matters: the mean error over all pairs of orders."""
    beta, B = 0.8, 3
    g = np.array([1.0, -1.0, 0.0])  # mean 0, mean square 2/3: the bound takes G^2 = 1 for it
    exact = []
    for t in range(1, 2 * B + 1):
        w = weights(beta, t)
        errors = [
            (w @ np.concatenate([g[list(a)], g[list(b)]])[:t]) ** 2
            for a in itertools.permutations(range(B))
            for b in itertools.permutations(range(B))
        ]
        exact.append(math.sqrt(np.mean(errors) / np.mean(g**2)))
    assert normalized(beta=beta) == pytest.approx(2 * np.mean(exact))


def test_lags_since_the_epoch_began() -> None:
    """With G = 0 what is left is ``M eta sum_s w_ts ((t-s) + 2 p(s))``, and ``M eta / 2``."""
    beta, B, T = 0.8, 3, 6
    lag = [
        weights(beta, t) @ (np.arange(t)[::-1] + 2 * (np.arange(t) % B)) for t in range(1, T + 1)
    ]
    value = normalized(lipschitz=0.0, smoothness=2.0)
    assert value == pytest.approx(0.2 / 2 + 2 * 0.2 * np.mean(lag))
    fixed = [weights(beta, t) @ np.arange(t)[::-1] for t in range(1, T + 1)]
    value = normalized(lipschitz=0.0, smoothness=2.0, fresh=False)
    assert value == pytest.approx(0.2 / 2 + 2 * 0.2 * np.mean(fixed))


def test_noise_and_gap_of_normalized_steps() -> None:
    noise = np.linspace(0.1, 0.2, 6)
    total = 1 - 0.8 ** np.arange(1, 7)
    value = normalized(lipschitz=0.0, noise=noise, gap=3.0)
    assert value == pytest.approx(3.0 / (0.1 * 6) + 2 * np.mean(2 * noise / total))


def test_one_order_for_all_epochs_does_not_average_out() -> None:
    """papers/00, erratum 11: with alpha = 1/N what Theorem 9 needs stays of the order of G."""
    left = []
    for N in (100, 1000):
        given = {
            "noise": np.zeros(100 * N),
            "beta": 1 - 1 / N,
            "per_epoch": N,
            "gap": 0.0,
            "rate": 1.0,
        }
        fixed, fresh = (normalized(**given, fresh=fresh) for fresh in (False, True))
        left.append(fixed)
        assert fixed > 0.4
        assert fresh < 2 / math.sqrt(N)
    assert left[0] == pytest.approx(left[1], rel=0.05)


@pytest.mark.parametrize(("gamma", "alpha", "T"), [(0.9, 1e-4, 63), (0.99, 1e-3, 20), (0.5, 1, 3)])
def test_plain_descent_is_the_pages_bound(gamma: float, alpha: float, T: int) -> None:
    """papers/04: E_uni(T) and, with the best schedule, E_dyn(T), relative to the gap."""
    M, gap = 2.0, 3.0
    rates, R = np.full(T, 1 / M), 1.0
    unit = alpha * 2 * R * M * gap  # d G^2 / N^2
    given = {"smoothness": M, "curvature": (1 - gamma) * M, "gap": gap}
    uniform = bounds.contracted_gap(np.full(T, unit * T / R), rates, **given)
    assert uniform == pytest.approx(gap * uniform_error(T, gamma, alpha))
    q = gamma ** (T - np.arange(1.0, T + 1))
    best = unit * np.sqrt(q).sum() / (R * np.sqrt(q))
    dynamic = bounds.contracted_gap(best, rates, **given)
    assert dynamic == pytest.approx(gap * dynamic_error(T, gamma, alpha))


@pytest.mark.parametrize(("beta", "kappa"), [(0.0, 3.0), (0.5, 4.0), (0.9, 10.0)])
def test_momentum_is_the_corrected_theorem(beta: float, kappa: float) -> None:
    eta_0, M, gap = bounds.momentum_limit(beta, kappa), 2.0, 3.0
    assert eta_0 == pytest.approx(largest_eta_0(beta, kappa))
    sigma, alpha_R = RNG.uniform(0.5, 2, 30), 0.01
    want = momentum_risk_bound(sigma, beta=beta, kappa=kappa, eta_0=eta_0, alpha_R=alpha_R)
    got = bounds.momentum_gap(
        alpha_R * 2 * M * gap * sigma**2,
        beta=beta,
        rate=eta_0 / (2 * M),
        curvature=M / kappa,
        gap=gap,
    )
    assert got == pytest.approx(gap * want)
    assert momentum_gamma(eta_0, kappa) > beta
    w = [np.sum((weights(beta, t) if beta else np.eye(t)[-1]) ** 2) for t in range(1, 9)]
    np.testing.assert_allclose(bounds.averaged_noise(beta, 8), w)


def test_limits_without_noise_and_sampling() -> None:
    none = np.zeros(20)
    norm = bounds.descent_norm(none, rate=0.5, smoothness=2.0, gap=3.0, dimension=5)
    assert norm == pytest.approx(math.sqrt(2 * 2.0 * 3.0 / 20))
    srm = bounds.recursive_norm(
        none, gamma=0.1, step_length=0.2, sampling=(0, 0), smoothness=2.0, gap=3.0, dimension=5
    )
    assert srm == pytest.approx(4 * 2 * 3 / (0.4 * 20) + 0.4 / 2)
    # papers/03, oracle 1: 2 M |x*|^2 / (T (T+1)) at beta = M; beta just above it, D for |x*|
    ball = {
        "lipschitz": 1.0,
        "smoothness": 2.0,
        "diameter": 3.0,
        "dimension": 5.0,
        "batch_size": 10**18,
    }
    coupled = bounds.coupled_gap(none, none, beta=200.0, clip=40.0, **ball)
    assert coupled == pytest.approx(2 * 200 * 9 / (20 * 21), rel=1e-6)
    anytime = bounds.anytime_gap(none, none, rate=1e-6, **ball)
    assert anytime == pytest.approx((9 / 2e-6 + 21 * 3) * 2 / (21 * 22), rel=1e-3)


BALL = {"lipschitz": 1.0, "smoothness": 2.0, "diameter": 3.0, "dimension": 5.0}


def test_independent_gradients_by_summing() -> None:
    noise, T = RNG.uniform(0.5, 2, 9), 9
    want = 7.0 * 3**2
    for t in range(T):
        variance = (t + 1) ** 2 / 10 + 5 * noise[t] ** 2  # of the weighted mean
        want += (t + 2) / (4 * (t + 1) * (7 - 2)) * variance
    got = bounds.independent_gap(noise, beta=7.0, batch_size=10, **BALL)
    assert got == pytest.approx(want * 2 / (T * (T + 1)))
    beta, bound = bounds.best_coupling(np.array([T]), np.array([0.3]), smoothness=2.0, diameter=3.0)
    eta = np.arange(1.0, T + 1)
    given = {**BALL, "lipschitz": 0.0, "batch_size": 1}
    least = bounds.independent_gap(eta * math.sqrt(0.3 / 5), beta=float(beta[0]), **given)
    assert least == pytest.approx(float(bound[0]))
    for factor in (0.9, 1.1):
        other = bounds.independent_gap(
            eta * math.sqrt(0.3 / 5), beta=factor * float(beta[0]), **given
        )
        assert other > least


def test_recursion_without_acceleration_in_the_limit() -> None:
    """Without noise and sampling it is ``D^2 / (2 eta T)``; clips that cannot bind cost nothing."""
    none, many = np.zeros(20), 10**18
    value = bounds.recursive_gap(none, none, rate=0.1, clip=121.0, batch_size=many, **BALL)
    assert value == pytest.approx(9 / (2 * 0.1 * 20), rel=1e-6)
    # one step: the error of a batch and of its noise, and nothing that the past determines
    one = bounds.recursive_gap(
        np.array([0.2]), np.zeros(1), rate=0.1, clip=1.0, batch_size=4, **BALL
    )
    error = (0.5 + math.sqrt(5) * 0.2) ** 2
    assert one == pytest.approx(9 / 0.2 + 0.1 / (2 * 0.8) * error)


def test_how_often_clips_bind() -> None:
    def binds(clip: float, prefix: np.ndarray, batch_size: int = 10**6) -> float:
        return bounds._clips_bind(prefix, 0.1, 2.0, clip, batch_size, 1.0, 5.0)

    assert binds(1 + 2.0 * 19, np.full(20, 1e9)) == 0.0  # no difference is longer in this ball
    assert binds(2.9, np.zeros(20)) == math.inf  # gradients of norm 1 alone move that far
    assert binds(3.5, np.zeros(20)) < 1e-6
    assert 0 < binds(3.5, np.full(20, 0.5)) < binds(3.5, np.full(20, 1.0)) < 1
    assert binds(3.5, np.zeros(20), batch_size=1) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_every_step_of_the_proofs_holds_on_a_path(seed: int) -> None:
    """papers/03, 1.7 and 1.8: quadratics in a ball, errors of any kind, each inequality pathwise."""
    rng = np.random.default_rng(seed)
    d, radius = 4, 1.0
    H = np.diag(rng.uniform(0, 2, d))
    M, target = float(H.max()), rng.normal(size=d)

    def project(x: np.ndarray) -> np.ndarray:
        return x * min(1.0, radius / np.linalg.norm(x))

    def loss(x: np.ndarray) -> float:
        return float((x - target) @ H @ (x - target) / 2)

    best = project(np.zeros(d) + 1e-12)
    for _ in range(5000):
        best = project(best - H @ (best - target) / M)
    beta = M * rng.uniform(1.05, 5)
    x = y = z = project(rng.normal(size=d))
    for t in range(30):
        error = rng.normal(size=d) * rng.choice([0.0, 0.3, 3.0])
        estimate = (t + 1) * (H @ (x - target) + error)
        new_z, new_y = (
            project(z - estimate / (2 * beta)),
            project(x - estimate / (beta * (t + 1))),
        )
        before = t * (t + 1) / 2 * (loss(y) - loss(best)) + beta * np.sum((z - best) ** 2)
        after = (t + 1) * (t + 2) / 2 * (loss(new_y) - loss(best)) + beta * np.sum(
            (new_z - best) ** 2
        )
        paid = (t + 1) * (t + 2) / (4 * (beta - M)) * (error @ error)
        assert after <= before + paid - (t + 1) * error @ (z - best) + 1e-9
        y, z = new_y, new_z
        x = (1 - 2 / (t + 3)) * y + 2 / (t + 3) * z
    rate = rng.uniform(0.05, 0.95) / M
    x = project(rng.normal(size=d))
    for _ in range(30):
        error = rng.normal(size=d) * rng.choice([0.0, 0.3, 3.0])
        new = project(x - rate * (H @ (x - target) + error))
        nearer = np.sum((x - best) ** 2) - np.sum((new - best) ** 2)
        paid = rate / (2 * (1 - M * rate)) * (error @ error) - error @ (x - best)
        assert loss(new) - loss(best) <= nearer / (2 * rate) + paid + 1e-9
        x = new


def test_errors_of_recursion_by_its_own_variance() -> None:
    """papers/01, oracle 10: variance .2105473 after 50 steps of gamma .1 from 1 with .2 each."""
    noise = np.array([1.0] + [0.2] * 50)
    given = {
        "gamma": 0.1,
        "step_length": 1.0,
        "sampling": (0.0, 0.0),
        "smoothness": 1.0,
        "gap": 0.0,
    }
    one = bounds.recursive_norm(noise, dimension=1, **given)
    less = bounds.recursive_norm(noise[:-1], dimension=1, **given)
    last = 0.2105473
    assert 51 * (one - 0.5) - 50 * (less - 0.5) == pytest.approx(last + math.sqrt(last), rel=1e-6)


def test_rates_beyond_the_proofs_are_infinite() -> None:
    none = np.zeros(20)
    ball = {
        "lipschitz": 1.0,
        "smoothness": 2.0,
        "diameter": 3.0,
        "dimension": 5.0,
        "batch_size": 10,
    }
    assert bounds.anytime_gap(none, none, rate=1 / (2 * 2 * 21), **ball) == math.inf
    assert math.isfinite(bounds.anytime_gap(none, none, rate=0.9 / (2 * 2 * 21), **ball))
    assert bounds.coupled_gap(none + 0.1, none, beta=20.0, clip=40.0, **ball) == math.inf


# ---- real runs: what is measured is below what is promised -----------------------------------------

SEEDS = range(60)
N, D = 64, 3


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows, and labels 0 or 1 that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    chance = 1 / (1 + np.exp(-X @ np.array([2.0, -1.0, 0.5])))
    return X.astype(np.float32), (rng.random(n) < chance).astype(np.float32)


def logistic(w: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
    z = X.astype(np.float64) @ np.asarray(w, np.float64)
    return float(np.mean(np.logaddexp(0, z) - y * z))


def gradient(w: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    z = X.astype(np.float64) @ np.asarray(w, np.float64)
    return X.T.astype(np.float64) @ (1 / (1 + np.exp(-z)) - y) / len(y)


SMOOTH = {"lipschitz": 1.0, "smoothness": 0.25, "gap": math.log(2), "dimension": D}


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        pytest.param("dp-gd", {"epsilon": 2.0}, marks=pytest.mark.slow),
        ("dp-gd", {"epsilon": 0.05, "steps": 10}),
        pytest.param(
            "dp-gd", {"epsilon": 2.0, "learning_rate": 2.0, "steps": "auto"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "dp-srm", {"epsilon": 20.0, "steps": 60, "first_batch": 60}, marks=pytest.mark.slow
        ),
        ("dp-nsgd", {"epsilon": 5.0}),
        pytest.param(
            "dp-nsgd",
            {"epsilon": 5.0, "batch_size": 4, "momentum": 0.5, "mechanism": "blt", "steps": 200},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "dp-nsgd", {"epsilon": 5.0, "sampling": "fixed", "steps": 200}, marks=pytest.mark.slow
        ),
        pytest.param("dp-nsgd-sr", {"epsilon": 2.0, "steps": 300}, marks=pytest.mark.slow),
    ],
)
def test_gradient_norms(recipe: str, options: dict[str, Any]) -> None:
    X, y = rows(N, 0)
    plan = sordino.plan(recipe, settings="theory", examples=N, delta=1e-3, **SMOOTH, **options)
    start = np.zeros(D, np.float32)
    found = train_many(
        plan, sordino.Logistic(), start, (X, y), list(SEEDS), evaluate=lambda w: gradient(w, X, y)
    )
    norm = float(np.mean(np.linalg.norm(found, axis=1)))
    bound = plan.bound()
    assert bound is not None
    assert norm <= bound.value
    assert bound.value < 100  # a bound, not a formality


def quadratic(curvatures: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, float]:
    """Least squares with these eigenvalues of its Hessian; the least loss is 0, at (1, 1, 1)."""
    X = np.repeat(np.sqrt(D * np.array(curvatures)) * np.eye(D), 20, axis=0).astype(np.float32)
    return X, X.sum(axis=1), sum(curvatures) / 2


@pytest.mark.parametrize(
    ("recipe", "curvatures", "options"),
    [
        ("dp-gd", (1.0, 1.0, 1.0), {"learning_rate": 0.3, "steps": 8}),
        pytest.param(
            "dp-gd",
            (1.0, 1.0, 1.0),
            {"learning_rate": 0.3, "steps": 8, "schedule": "uniform"},
            marks=pytest.mark.slow,
        ),
        pytest.param("dp-gd", (1.0, 0.5, 0.25), {"steps": "auto"}, marks=pytest.mark.slow),
        ("dp-gd", (1.0, 0.5, 0.25), {"steps": "auto", "schedule.ratio_cap": None}),
        pytest.param(
            "dp-gd", (1.0, 0.5, 0.25), {"steps": 8, "lr_schedule": "linear"}, marks=pytest.mark.slow
        ),
        ("dp-gd-momentum", (1.0, 0.5, 0.25), {"momentum": 0.3, "steps": 20}),
        ("dp-psgd", (1.0, 0.5, 0.25), {"batch_size": 20, "steps": 12, "learning_rate": 0.3}),
    ],
)
def test_excess_training_loss(
    recipe: str, curvatures: tuple[float, ...], options: dict[str, Any]
) -> None:
    X, y, gap = quadratic(curvatures)
    G = 40.0  # no gradient comes near it
    plan = sordino.plan(
        recipe,
        settings="theory",
        examples=len(X),
        epsilon=100.0,
        delta=1e-2,
        lipschitz=G,
        smoothness=max(curvatures),
        gap=gap,
        dimension=D,
        curvature=min(curvatures),
        **options,
    )
    loss = train_many(
        plan,
        sordino.LeastSquares(),
        np.zeros(D, np.float32),
        (X, y),
        list(range(600)),
        evaluate=lambda w: float(np.mean((X @ w - y) ** 2) / 2),
    )
    bound = plan.bound()
    assert bound is not None
    mean, error = float(np.mean(loss)), float(np.std(loss) / math.sqrt(len(loss)))
    assert mean <= bound.value + 3 * error
    if set(curvatures) == {1.0}:  # one curvature: every inequality of the proof is an equality
        assert mean == pytest.approx(bound.value, abs=4 * error)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        pytest.param("dp-mu2", {"batch_size": 8}, marks=pytest.mark.slow),
        ("dp-mu2", {"batch_size": 8, "mechanism": "leaky", "epsilon": 0.2}),
        ("dp-srgd", {}),
        pytest.param(
            "dp-srgd", {"mechanism": "cancelling", "epsilon": 1.0}, marks=pytest.mark.slow
        ),
        ("dp-nesterov", {}),
        pytest.param(
            "dp-nesterov", {"batch_size": 8, "learning_rate": 2.0}, marks=pytest.mark.slow
        ),
        ("dp-srg", {}),
        pytest.param("dp-srg", {"mechanism": "blt", "batch_size": 4}, marks=pytest.mark.slow),
    ],
)
def test_excess_loss_on_the_population(recipe: str, options: dict[str, Any]) -> None:
    """The population is a finite one; each data set is drawn from it anew."""
    everyone, labels = rows(400, 1)
    n, diameter = 256, 2.0
    plan = sordino.plan(
        recipe,
        settings="theory",
        examples=n,
        **{"epsilon": 5.0, "delta": 1e-3, **options},
        lipschitz=1.0,
        smoothness=0.25,
        diameter=diameter,
        dimension=D,
    )
    best = np.zeros(D)
    for _ in range(2000):
        best -= 2 * gradient(best, everyone, labels)
        best *= min(1, diameter / 2 / np.linalg.norm(best))
    least = logistic(best, everyone, labels)
    excess: list[float] = []
    for draw in range(6):
        chosen = np.random.default_rng(draw).integers(len(labels), size=n)
        excess += train_many(
            plan,
            sordino.Logistic(),
            np.zeros(D, np.float32),
            (everyone[chosen], labels[chosen]),
            [100 * draw + seed for seed in range(20)],
            evaluate=lambda w: logistic(w, everyone, labels) - least,
        )
    bound = plan.bound()
    assert bound is not None
    assert 0 < np.mean(excess) <= bound.value
