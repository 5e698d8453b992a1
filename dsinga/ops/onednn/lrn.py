"""Local response normalisation by numpy, for processors for which the library has no such primitive.

In channels-last memory a pixel is a row of (pixels, C), and all rows of a block are shifted against each other at once:
see :func:`_window_sums`. Blocks pass through all steps while they are in the caches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.layout import by_channel, to_image
from dsinga.ops.types import Array

BLOCK = 128 * 1024  # elements of a block: 512 KB; smaller ones cost more in calls than they save in memory traffic


class Workspace(NamedTuple):
    """The values for :func:`backward`: k + alpha/size·Σx² of each element, and its power beta, both (pixels, C)."""

    norm: Array
    power: Array


class ShiftedSums:
    """A normalisation of images (B, C, H, W), given as rows (B, H, W, C); returns them and, to train, a workspace."""

    def __init__(self, x: tuple[int, ...], size: int, alpha: float, beta: float, k: float, train: bool):
        self.constants, self.train = (size, alpha, beta, k), train

    def __call__(self, rows: Array) -> tuple[Array, Workspace | None]:
        y, workspace = forward(to_image(rows), *self.constants)
        return y, workspace if self.train else None


def forward(x: Array, size: int, alpha: float, beta: float, k: float) -> tuple[Array, Workspace]:
    """Return x·norm^-beta for float32 images x (B, C, H, W) and what :func:`backward` needs."""
    y = buffers.empty(x.shape, channels_last=True)
    rows, out = np.ascontiguousarray(by_channel(x)), by_channel(y)
    norm, power = buffers.empty(rows.shape), buffers.empty(rows.shape)
    squares = buffers.empty(rows[_first(rows)].shape)
    for block in _blocks(rows):
        x_block, norm_block, power_block = rows[block], norm[block], power[block]
        square = np.multiply(x_block, x_block, out=squares[: len(x_block)])
        _window_sums(square, size // 2, norm_block)
        norm_block *= np.float32(alpha / size)
        norm_block += np.float32(k)
        _compute_power(norm_block, beta, power_block, square)
        np.divide(x_block, power_block, out=out[block])
    return y, Workspace(norm, power)


def backward(x: Array, workspace: Workspace, dy: Array, size: int, alpha: float, beta: float) -> Array:
    """Return dx = dy·norm^-beta - 2·alpha·beta/size·x·Σ(dy·x·norm^(-beta-1)), the sum over windows."""
    dx = buffers.empty(x.shape, channels_last=True)
    rows, dy_rows, out = np.ascontiguousarray(by_channel(x)), np.ascontiguousarray(by_channel(dy)), by_channel(dx)
    norm, power = workspace
    scratch = buffers.empty((2, *rows[_first(rows)].shape))
    for block in _blocks(rows):
        x_block, out_block = rows[block], out[block]
        term, sums = scratch[:, : len(x_block)]
        np.divide(dy_rows[block], power[block], out=out_block)
        np.multiply(out_block, x_block, out=term)
        term /= norm[block]
        _window_sums(term, size // 2, sums)
        sums *= x_block
        sums *= np.float32(2 * alpha * beta / size)
        out_block -= sums
    return dx


def _window_sums(rows: Array, reach: int, sums: Array) -> None:
    """Write to ``sums`` (n, C) the sums of ``rows`` (n, C) over the channels that are at most ``reach`` away.

    Flat arrays are added, shifted by 1 to ``reach`` numbers. Channels near the first and the last then get numbers of
    another pixel, so their sums (all sums, if ``reach`` is 0) are computed again, one by one.
    """
    channels = rows.shape[1]
    flat, flat_sums = rows.reshape(-1), sums.reshape(-1)
    flat_sums[:1] = 0
    np.add(flat[1:], flat[:-1], out=flat_sums[1:])
    flat_sums[:-1] += flat[1:]
    for shift in range(2, min(reach + 1, channels)):
        flat_sums[shift:] += flat[:-shift]
        flat_sums[:-shift] += flat[shift:]
    for channel in range(channels):
        if not 0 < reach <= channel < channels - reach:
            first, *others = range(max(0, channel - reach), min(channels, channel + reach + 1))
            column = sums[:, channel]
            column[...] = rows[:, first]
            for neighbour in others:
                column += rows[:, neighbour]


def _compute_power(norm: Array, beta: float, power: Array, scratch: Array) -> None:
    """Compute norm^beta, by square roots where possible: numpy's own power is slow without AVX-512."""
    if beta == 0.75:
        np.sqrt(norm, out=power)
        power *= np.sqrt(power, out=scratch)
    else:
        np.log(norm, out=power)
        power *= np.float32(beta)
        np.exp(power, out=power)


def _first(rows: Array) -> slice:
    return slice(0, max(1, BLOCK // rows.shape[1]))


def _blocks(rows: Array) -> list[slice]:
    step = _first(rows).stop
    return [slice(start, start + step) for start in range(0, len(rows), step)]
