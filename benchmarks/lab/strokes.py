"""Drawings of random pen strokes, whose features are a public imitation of handwriting's.

Nothing is learned from data here. Features of images are far from even: a few directions have most of
the variance, and what all images share takes part of every norm. A private linear model pays for both,
with noise. Photographs of handwriting would say which directions these are, but so do drawings by
chance: smooth lines of a pen, scaled to a box of 20/28 of the image's side and put with their centre of
mass in its middle, as the publishers of MNIST say of theirs.
"""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
DRAWINGS = 6_000
_SEED = 11
_BOX = 20 / 28
# Lines of a drawing, points that one is bent by, and points that it is drawn with.
_LINES, _BENDS, _POINTS = (1, 3), (2, 6), 60
# How often a line begins on the one before; half the width of the pen, in pixels of an image of 28.
_TOUCHING, _PEN = 0.7, (1.2, 2.6)


def drawings(count: int, side: int) -> Array:
    """So many images (count, side, side) with values from 0 to 1, always the same."""
    rng = np.random.default_rng(_SEED)
    result = np.zeros((count, side, side), np.float32)
    for image in result:
        pen = max(1.0, rng.uniform(*_PEN) * side / 28)  # a finer one would miss all pixels
        image[...] = _centred(_inked(_lines(rng), pen, side))
    return result


def _lines(rng: np.random.Generator) -> NDArray[np.float64]:
    """The points of one to three Bezier curves, (points, 2)."""
    lines: list[NDArray[np.float64]] = []
    for _ in range(rng.integers(*_LINES, endpoint=True)):
        bends = rng.normal(size=(rng.integers(*_BENDS, endpoint=True), 2))
        if lines and rng.random() < _TOUCHING:
            bends[0] = lines[-1][rng.integers(_POINTS)]
        lines.append(_bernstein(len(bends)) @ bends)
    return np.concatenate(lines)


def _bernstein(bends: int) -> NDArray[np.float64]:
    """What each bend counts at each point of a Bezier curve, (points, bends)."""
    t, k, last = np.linspace(0, 1, _POINTS)[:, None], np.arange(bends), bends - 1
    ways = np.array([comb(last, int(i)) for i in k])
    result: NDArray[np.float64] = ways * t**k * (1 - t) ** (last - k)
    return result


def _inked(points: NDArray[np.float64], pen: float, side: int) -> NDArray[np.float64]:
    """An image of the points, scaled to the box, with a round pen."""
    low, high = points.min(axis=0), points.max(axis=0)
    room = _BOX * side - 1.5 * pen
    places = (points - (low + high) / 2) * (room / np.max(high - low)) + (side - 1) / 2
    pixels = np.arange(side)
    down, across = ((pixels - place[:, None]) ** 2 for place in places.T)
    distance = np.sqrt(np.min(down[:, :, None] + across[:, None, :], axis=0))
    return np.clip(pen - distance, 0, 1)


def _centred(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """The image moved by whole pixels so that its centre of mass is in the middle."""
    middle, pixels = (len(image) - 1) / 2, np.arange(len(image))
    shifts = [round(middle - float(image.sum(axis=axis) @ pixels / image.sum())) for axis in (1, 0)]
    return np.roll(image, shifts, axis=(0, 1))
