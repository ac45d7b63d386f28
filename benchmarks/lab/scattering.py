"""Scattering features of images: fixed wavelets, moduli and averages; nothing is learned from data.

An image x of one channel is mapped to averages of ``x``, of ``|x * psi_a|`` and of
``| |x * psi_a| * psi_b |`` with oriented Morlet wavelets psi (Bruna & Mallat 2013), of two scales and
eight angles here, taken every fourth pixel: 1 + 16 + 64 = 81 channels; 81 x 7 x 7 numbers for an image
of 28 x 28. The constants are those that Tramer & Boneh (2021) used for private linear models. Of the
channels of one scale, or of one pair of scales, the mean over angles is taken away. An image gets a
margin of zeros, and convolutions go around its edges.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino import SordinoError

ANGLES = 8
# Averages are taken every so many pixels; the coarser of the two scales is sampled at every second one.
STEP = 4
_HALF = 2
# Of the finer wavelets: width of the envelope in pixels, frequency, and how many times longer it is.
_WIDTH, _FREQUENCY, _LONGER = 0.8, 3 * np.pi / 4, 2.0
# Images whose features are made together: what lies between them stays in the processor's cache.
_TOGETHER = 40


def scattering_features(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features (images, channels, height / 4, width / 4) of images (images, height, width)."""
    if images.ndim != 3 or any(side % STEP for side in images.shape[1:]):
        raise SordinoError(
            "scattering features are for images of one channel with sides that are multiples of "
            f"{STEP}, got an array of shape {images.shape}"
        )
    height, width = images.shape[1:]
    channels = 1 + 2 * ANGLES + ANGLES**2
    result = np.empty((len(images), channels, height // STEP, width // STEP), np.float32)
    for first in range(0, len(images), _TOGETHER):
        now = images[first : first + _TOGETHER]
        part = np.zeros((_TOGETHER, height, width), np.float32)
        part[: len(now)] = now  # of one shape, so that one program serves all
        result[first : first + _TOGETHER] = np.asarray(_scatter(part))[: len(now)]
    return result


@cache
def wavelets(scale: int, height: int, width: int) -> NDArray[np.float32]:
    """Fourier transforms of the Morlet wavelets of a scale (0 or 1) on a grid: (angles, height, width).

    ``psi(u) = g(u) (exp(i xi . u) - K)``, g a Gaussian that is longer across xi, of integral 1, and K
    such that psi sums to 0. ``psi(-u)`` is the conjugate of ``psi(u)``, so the transform is real.
    """
    spread, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    y = (np.fft.fftfreq(height) * height)[:, None]
    x = (np.fft.fftfreq(width) * width)[None, :]
    built = []
    for turn in range(ANGLES):
        angle = turn * np.pi / ANGLES
        along = x * np.cos(angle) + y * np.sin(angle)
        across = y * np.cos(angle) - x * np.sin(angle)
        envelope = np.exp(-(along**2 + (across / _LONGER) ** 2) / (2 * spread**2))
        envelope /= 2 * np.pi * spread**2 * _LONGER
        wave = envelope * np.exp(1j * frequency * along)
        built.append(np.fft.fft2(wave - envelope * (wave.sum() / envelope.sum())).real)
    return np.asarray(built, np.float32)


@cache
def averaging(side: int, spacing: int) -> NDArray[np.float32]:
    """The matrix that averages pixels ``0, spacing, ...`` of a line of `side` ones around the middle of
    each cell of `STEP` pixels, with the Gaussian of the coarser scale: (side / STEP, pixels)."""
    spread = 2 * _WIDTH
    middles = np.arange(side // STEP) * STEP + (STEP - 1) / 2
    distance = middles[:, None] - np.arange(0, side, spacing)[None, :]
    weights = np.exp(-(distance**2) / (2 * spread**2)) / (np.sqrt(2 * np.pi) * spread)
    return (spacing * weights).astype(np.float32)


@jax.jit
def _scatter(images: jax.Array) -> jax.Array:
    height, width = images.shape[1:]
    whole = jnp.fft.fft2(jnp.pad(images, ((0, 0), (0, STEP), (0, STEP))))
    size = whole.shape[1:]
    fine, coarse = wavelets(0, *size), wavelets(1, *size)
    first = jnp.abs(jnp.fft.ifft2(whole[:, None] * fine))
    second = _every_second(jnp.concatenate([whole[:, None], jnp.fft.fft2(first)], axis=1), coarse)

    def average(maps: jax.Array, spacing: int) -> jax.Array:
        maps = maps[:, :, : height // spacing, : width // spacing]
        rows, columns = averaging(height, spacing), averaging(width, spacing)
        return jnp.einsum("ij,bcjk,lk->bcil", rows, maps, columns)

    coarser, twice = jnp.split(average(second, _HALF), [ANGLES], axis=1)
    parts = [_uneven(average(first, 1)), _uneven(coarser), _uneven(twice)]
    return jnp.concatenate([average(images[:, None], 1), *parts], axis=1)


def _uneven(maps: jax.Array) -> jax.Array:
    """The channels less their mean at each place: how much of something there is, whatever its direction,
    is much the same in all images, and a private model pays for the norm of what images share."""
    return maps - maps.mean(axis=1, keepdims=True)


def _every_second(transforms: jax.Array, filters: NDArray[np.float32]) -> jax.Array:
    """``|x * psi|`` at every second pixel, for all pairs of a map x and a filter."""
    count, maps, height, width = transforms.shape
    tall, wide = height // _HALF, width // _HALF
    # Leaving out pixels adds up frequencies that look alike on those that are left.
    product: jax.Array | float = 0.0
    for rows in (slice(0, tall), slice(tall, None)):
        for columns in (slice(0, wide), slice(wide, None)):
            product = product + transforms[:, :, None, rows, columns] * filters[:, rows, columns]
    result = jnp.abs(jnp.fft.ifft2(product / _HALF**2))
    return result.reshape(count, maps * len(filters), tall, wide)
