"""Networks and scattering features of experiments: the same numbers as from first principles."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import sordino
from benchmarks.lab.data import PreparedData, RowRule, make_loss, prepare
from benchmarks.lab.experiment import PopulationSpec
from benchmarks.lab.models import NetworkLoss, network_loss
from benchmarks.lab.scattering import averaging, scattering_features, wavelets
from benchmarks.lab.scores import score_models
from benchmarks.lab.seeds import train_seeds
from benchmarks.networks import MLP
from sordino._base.errors import SordinoError

TINY = NetworkLoss(MLP((6, 4, 3)), seed=5)


def tiny_rows() -> PreparedData:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 6)).astype(np.float32)
    y = rng.integers(0, 3, 40).astype(np.int32)
    return PreparedData(TINY, (X, y), (X, y))


@pytest.mark.parametrize(("kind", "size"), [("mnist-cnn", 26_010), ("cnn5", 62_006)])
def test_the_papers_networks_have_their_sizes(kind: str, size: int) -> None:
    loss = make_loss({"kind": kind, "activation": "tanh"}, 10)
    assert isinstance(loss, NetworkLoss)
    start = loss.start()
    assert sum(leaf.size for leaf in jax.tree.leaves(start)) == size
    same = jax.tree.map(np.array_equal, start, make_loss({"kind": kind}, 10).start())
    assert all(jax.tree.leaves(same))


def test_scales_are_other_units_of_the_same_network() -> None:
    plain = network_loss("mnist-cnn", 10, activation="tanh")
    scaled = network_loss("mnist-cnn", 10, activation="tanh", scales=[2.0, 1.0, 0.5, 4.0])
    x, y = np.linspace(0, 1, 784, dtype=np.float32), np.int32(3)
    value, gradient = jax.value_and_grad(plain)(plain.start(), x, y)
    other, changed = jax.value_and_grad(scaled)(scaled.start(), x, y)
    assert float(other) == pytest.approx(float(value), rel=1e-6)
    for a, b, scale in zip(gradient, changed, scaled.scales, strict=True):
        assert np.asarray(b["weight"]) == pytest.approx(scale * np.asarray(a["weight"]), abs=1e-5)
    logits = plain.logits(plain.start(), x[None])
    assert scaled.logits(scaled.start(), x[None]) == pytest.approx(logits, abs=1e-5)


def test_networks_refuse_what_does_not_fit() -> None:
    with pytest.raises(SordinoError, match="mnist-cnn has 4 layers, scales has 2 entries"):
        network_loss("mnist-cnn", 10, scales=[1.0, 2.0])
    with pytest.raises(SordinoError, match="mnist-cnn has 10 classes, the data 2"):
        network_loss("mnist-cnn", 2)
    with pytest.raises(SordinoError, match="activation"):
        make_loss({"kind": "cnn5", "activation": "step"}, 10)
    with pytest.raises(SordinoError, match="has no options"):
        make_loss({"kind": "cnn5", "lam": 1.0}, 10)
    with pytest.raises(SordinoError, match="43 parameters"):
        TINY.shaped(np.zeros(42, np.float32))


def test_scores_of_a_network_follow_from_its_loss() -> None:
    rows = tiny_rows()
    flat = np.random.default_rng(1).normal(size=43).astype(np.float32)
    (score,) = score_models(flat[None], rows)
    params = TINY.shaped(flat)
    np.testing.assert_array_equal(
        np.concatenate([a.ravel() for a in jax.tree.leaves(params)]), flat
    )
    X, y = rows.test
    losses = jax.vmap(TINY, (None, 0, 0))(params, X, y)
    assert score["log_loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    hidden = np.maximum(X @ params[0]["weight"].T + params[0]["bias"], 0)
    logits = hidden @ params[1]["weight"].T + params[1]["bias"]
    assert score["error"] == pytest.approx(100 * np.mean(np.argmax(logits, axis=1) != y))


@pytest.mark.slow
def test_seeds_of_a_network_are_the_runs_of_train() -> None:
    rows = tiny_rows()
    plan = sordino.plan(
        "dp-sgd", examples=40, batch_size=20, epochs=1, noise_multiplier=1.0, sampling="fixed"
    )
    trained = train_seeds(plan, rows.loss, rows.start, rows.train, first=5, count=2)
    for row, seed in zip(trained.params, (5, 6), strict=True):
        alone = sordino.train(plan, TINY, rows.start, rows.train, insecure_seed=seed).params
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(alone)])
        np.testing.assert_array_equal(row, flat)
    assert not np.array_equal(*trained.params)


def test_scattering_is_convolution_modulus_average() -> None:
    image = np.random.default_rng(2).random((8, 12)).astype(np.float32)
    result = scattering_features(image[None])[0]
    assert result.shape == (81, 2, 3)
    padded = np.pad(image.astype(float), ((0, 4), (0, 4)))
    size = padded.shape

    def convolved(x: np.ndarray, scale: int, turn: int) -> np.ndarray:
        psi = np.fft.ifft2(wavelets(scale, *size)[turn])
        total = np.zeros(size, complex)
        for i, j in np.ndindex(size):
            total += x[i, j] * np.roll(psi, (i, j), axis=(0, 1))
        return np.abs(total)

    def averaged(x: np.ndarray, spacing: int) -> np.ndarray:
        inside = x[:8:spacing, :12:spacing]
        return averaging(8, spacing) @ inside @ averaging(12, spacing).T

    def uneven(maps: list[np.ndarray]) -> np.ndarray:
        return np.asarray(maps) - np.mean(maps, axis=0)

    fine = [convolved(padded, 0, turn) for turn in range(8)]
    first = uneven([averaged(x, 1) for x in fine])
    coarser = uneven([averaged(convolved(padded, 1, turn), 2) for turn in range(8)])
    twice = uneven([averaged(convolved(x, 1, turn), 2) for x in fine for turn in range(8)])
    wanted = np.concatenate([averaged(padded, 1)[None], first, coarser, twice])
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)


def test_wavelets_oscillate_and_averages_have_weight_one() -> None:
    for scale in (0, 1):
        transforms = wavelets(scale, 32, 32)
        np.testing.assert_allclose(transforms[:, 0, 0], 0, atol=1e-6)
        _, column = np.unravel_index(np.argmax(transforms[0]), (32, 32))
        assert column == pytest.approx(32 * 3 / 8 / 2**scale, abs=1)  # 3 pi / 4 and its half
    for spacing in (1, 2):
        np.testing.assert_allclose(averaging(40, spacing)[2:-2].sum(axis=1), 1, rtol=1e-3)


def test_features_are_made_row_by_row() -> None:
    images = np.random.default_rng(3).random((45, 8, 8)).astype(np.float32)
    rule = RowRule.of({"features": "scattering", "groups": 27, "norm": 2.0})
    rows = rule(images)
    assert rows.shape == (45, 81 * 4)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 2.0, rtol=1e-5)
    np.testing.assert_allclose(rule(images[7:8]), rows[7:8], rtol=1e-4, atol=1e-6)
    groups = RowRule.of({"features": "scattering", "groups": 27})(images).reshape(45, 27, -1)
    np.testing.assert_allclose(groups.mean(axis=2), 0, atol=1e-5)
    assert np.all(groups.std(axis=2) <= 1)
    with pytest.raises(SordinoError, match="multiples of 4"):
        scattering_features(images[:, :7])
    with pytest.raises(SordinoError, match="cannot be cut"):
        RowRule.of({"features": "scattering", "groups": 7})(images)
    with pytest.raises(SordinoError, match="features"):
        RowRule.of({"features": "wavelets"})


def test_pixels_are_shifted_and_scaled_by_public_constants() -> None:
    rule = RowRule.of({"center": 0.25, "scale": 4.0})
    X = np.random.default_rng(4).random((3, 2, 2)).astype(np.float32)
    np.testing.assert_allclose(rule(X), 4 * (X.reshape(3, 4) - 0.25), rtol=1e-6)
    with pytest.raises(SordinoError, match="mnist-cnn has 10 classes, the data 2"):
        prepare(PopulationSpec("x", "synthetic", {"kind": "mnist-cnn"}), None)
