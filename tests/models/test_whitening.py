"""Directions in which public rows vary."""

from __future__ import annotations

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.models import PublicWhitening


def test_whitening_evens_out_what_varies() -> None:
    rng = np.random.default_rng(1)
    spread = np.array([4.0, 2.0, 1.0, 0.5, 0.01, 0.0])
    turned = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    rows = (3 + rng.normal(size=(4_000, 6)) * spread @ turned).astype(np.float32)
    result = PublicWhitening.of(rows, 5)(rows)
    assert result.shape == (4_000, 5)
    np.testing.assert_allclose(result.mean(axis=0), 0, atol=1e-4)
    covariance = result.T @ result / len(result)
    values = np.sort(np.linalg.eigvalsh(np.cov(rows.T, bias=True)))[::-1][:5]
    np.testing.assert_allclose(covariance, np.diag(values / (values + values[0] / 100)), atol=2e-3)


@pytest.mark.parametrize("kept", [0, 7, 6])
def test_no_more_directions_than_there_are(kept: int) -> None:
    with pytest.raises(SordinoError, match="directions"):
        PublicWhitening.of(np.ones((6, 6), np.float32), kept)
