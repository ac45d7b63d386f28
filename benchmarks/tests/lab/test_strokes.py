"""Drawings by chance and the directions in which their features vary."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lab.data import RowRule
from benchmarks.lab.strokes import _bernstein, drawings
from sordino._base.errors import SordinoError


def test_drawings_are_the_same_every_time_and_lie_as_the_publishers_of_mnist_say() -> None:
    images = drawings(50, 28)
    np.testing.assert_array_equal(images, drawings(50, 28))
    assert len(np.unique(images, axis=0)) == 50
    assert (images.min(), images.max()) == (0, 1)
    for image in images:
        rows, columns = np.nonzero(image.max(axis=1))[0], np.nonzero(image.max(axis=0))[0]
        # The longer side of the drawing has the 20 pixels of the box, up to the edge of a pixel.
        assert 18 <= max(np.ptp(rows), np.ptp(columns)) + 1 <= 22
        for axis in (0, 1):
            centre = image.sum(axis=axis) @ np.arange(28) / image.sum()
            assert abs(centre - 13.5) <= 0.51


def test_lines_are_bezier_curves() -> None:
    def between(bends: np.ndarray, t: float) -> np.ndarray:  # de Casteljau
        if len(bends) == 1:
            return bends[0]
        return (1 - t) * between(bends[:-1], t) + t * between(bends[1:], t)

    bends = np.random.default_rng(0).normal(size=(4, 2))
    wanted = [between(bends, t) for t in np.linspace(0, 1, 60)]
    np.testing.assert_allclose(_bernstein(4) @ bends, wanted, atol=1e-12)


def test_rows_are_seen_in_the_directions_of_drawings() -> None:
    images = np.random.default_rng(3).random((9, 8, 8)).astype(np.float32)
    rule = RowRule.of({"features": "scattering", "groups": 27, "strokes": 20, "norm": 2.0})
    rows = rule(images)
    assert rows.shape == (9, 20)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 2.0, rtol=1e-5)
    np.testing.assert_allclose(rule(images[4:5]), rows[4:5], rtol=1e-3, atol=1e-4)
    with pytest.raises(SordinoError, match="square"):
        rule(images[:, :, :4])
    with pytest.raises(SordinoError, match="rows has no features"):
        RowRule.of({"strokes": 20})
    with pytest.raises(SordinoError, match="strokes"):
        RowRule.of({"features": "scattering", "strokes": -1})
