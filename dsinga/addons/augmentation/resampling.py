"""Functions that crop, resize or affinely transform a batch of images, each by its own box or matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

CHUNK_BYTES = 1 << 18  # of float32 images that are computed together, so that they stay in the caches
FIXED = 1 << 16  # PIL's fixed-point numbers of nearest neighbours have 16 bits after the point


class Boxes(NamedTuple):
    """The box to read from each image: top, left, height and width in pixels, (n,) int64 each."""

    tops: np.ndarray
    lefts: np.ndarray
    heights: np.ndarray
    widths: np.ndarray


def crop(images: np.ndarray, tops: np.ndarray, lefts: np.ndarray, size: tuple[int, int], pad: int = 0) -> np.ndarray:
    """Crop a window (n, C, *size) of each image (n, C, H, W) at (top, left), after padding by ``pad`` zeros."""
    count, channels, height, width = images.shape
    if pad:
        padded = np.zeros((count, channels, height + 2 * pad, width + 2 * pad), images.dtype)
        padded[:, :, pad : pad + height, pad : pad + width] = images
        images = padded
    windows = np.lib.stride_tricks.sliding_window_view(images, size, axis=(2, 3))
    return windows[np.arange(count), :, tops, lefts]


def resize(images: np.ndarray, boxes: Boxes, size: tuple[int, int]) -> np.ndarray:
    """Resize a box of each image (n, C, H, W) to ``size``; return (n, C, *size) of the same dtype.

    Pixels are weighted by a triangle as wide as two pixels of the result or, if larger, of the image, as in Pillow and
    torchvision (bilinear, antialiased). Integers are rounded.
    """
    count, channels, height, width = images.shape
    out = np.empty((count, channels, *size), images.dtype)
    vertical = _Taps.of(boxes.tops, boxes.heights, size[0])
    horizontal = _Taps.of(boxes.lefts, boxes.widths, size[1])
    for rows in _chunks(count, 4 * channels * width * max(height, size[0])):
        first, last = int(boxes.lefts[rows].min()), int((boxes.lefts + boxes.widths)[rows].max())
        part = images[rows, :, :, first:last]
        lines = vertical.part(rows).combine(part.transpose(0, 2, 1, 3))  # (n, H', C, W)
        columns = np.ascontiguousarray(lines.transpose(0, 3, 2, 1))  # (n, W, C, H')
        result = horizontal.part(rows).shifted(first).combine(columns).transpose(0, 2, 3, 1)
        out[rows] = np.rint(result) if images.dtype.kind == "u" else result
    return out


class _Taps(NamedTuple):
    """Indices and weights of the pixels summed for each result pixel along one axis: (n, size, K) each."""

    places: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, lengths: np.ndarray, size: int) -> _Taps:
        """Return the pixels and weights that resize a box, which begins at ``starts``, to ``size`` pixels."""
        scale = (lengths / size)[:, None]
        support = np.maximum(scale, 1.0)
        centres = scale * (np.arange(size) + 0.5)
        first = np.maximum(np.floor(centres - support + 0.5), 0)
        last = np.minimum(np.floor(centres + support + 0.5), lengths[:, None])
        places = first[:, :, None] + np.arange(int((last - first).max()))
        weights = np.maximum(1 - np.abs((places - centres[:, :, None] + 0.5) / support[:, :, None]), 0)
        weights[places >= last[:, :, None]] = 0
        weights /= weights.sum(axis=2, keepdims=True)
        places = np.minimum(places, lengths[:, None, None] - 1).astype(np.int64) + starts[:, None, None]
        return cls(places, weights.astype(np.float32))

    def part(self, rows: slice) -> _Taps:
        return _Taps(self.places[rows], self.weights[rows])

    def shifted(self, by: int) -> _Taps:
        return _Taps(self.places - by, self.weights)

    def combine(self, images: np.ndarray) -> np.ndarray:
        rows = np.arange(len(images))[:, None]
        total = None
        for tap in range(self.places.shape[2]):
            weight = self.weights[:, :, tap].reshape(*self.weights.shape[:2], *(1,) * (images.ndim - 2))
            term = images[rows, self.places[:, :, tap]] * weight
            total = term if total is None else np.add(total, term, out=total)
        assert total is not None
        return total


def transform_nearest(images: np.ndarray, matrices: np.ndarray, fill: int = 0) -> np.ndarray:
    """Transform images (n, C, H, W): pixel (x, y) comes from (a·x + b·y + c, d·x + e·y + f), for pixel centres.

    The nearest pixel is used, bitwise equal to Pillow's ``Image.transform`` with ``Image.Transform.AFFINE`` and
    ``NEAREST``. Pixels outside the image become ``fill``. ``matrices`` are (a, b, c, d, e, f) of each image, (n, 6)
    float64.
    """
    count, channels, height, width = images.shape
    matrices = np.array(matrices, np.float64)
    matrices[:, 2] += 0.5 * (matrices[:, 0] + matrices[:, 1])
    matrices[:, 5] += 0.5 * (matrices[:, 3] + matrices[:, 4])
    fixed = np.floor(matrices * FIXED + 0.5).astype(np.int64)
    out = np.empty_like(images)
    across, down = np.arange(width)[None, None, :], np.arange(height)[None, :, None]
    for rows in _chunks(count, 8 * height * width):
        a, b, c, d, e, f = (column[:, None, None] for column in fixed[rows].T)
        x, y = (a * across + b * down + c) >> 16, (d * across + e * down + f) >> 16
        outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
        places = np.where(outside, 0, y * width + x)
        places += (np.arange(len(x)) * (channels * height * width))[:, None, None]
        for channel in range(channels):
            pixels = images[rows].reshape(-1)[channel * height * width :].take(places)
            pixels[outside] = fill
            out[rows, channel] = pixels
    return out


def transform_bilinear(images: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Transform like :func:`transform_nearest`, with weighted sums of the four nearest pixels, and 0 outside.

    Integers are rounded.
    """
    count, channels, height, width = images.shape
    out = np.empty_like(images)
    across, down = np.arange(width)[None, None, :] + 0.5, np.arange(height)[None, :, None] + 0.5
    line = width + 3  # with a zero before, and two after it
    for rows in _chunks(count, 16 * height * width):
        a, b, c, d, e, f = (column[:, None, None] for column in np.asarray(matrices, np.float64)[rows].T)
        x, y = (
            np.clip(a * across + b * down + c + 0.5, 0, width + 1),
            np.clip(d * across + e * down + f + 0.5, 0, height + 1),
        )
        left, top = x.astype(np.int64), y.astype(np.int64)
        right_share, lower_share = (x - left).astype(np.float32), (y - top).astype(np.float32)
        padded = np.zeros((len(x), channels, height + 3, line), np.float32)
        padded[:, :, 1 : 1 + height, 1 : 1 + width] = images[rows]
        places = top * line + left + (np.arange(len(x)) * (channels * (height + 3) * line))[:, None, None]
        for channel in range(channels):
            pixels = padded.reshape(-1)[channel * (height + 3) * line :]
            upper, lower = (
                pixels.take(places + start) * (1 - right_share) + pixels.take(places + start + 1) * right_share
                for start in (0, line)
            )
            result = upper * (1 - lower_share) + lower * lower_share
            out[rows, channel] = np.rint(result) if images.dtype.kind == "u" else result
    return out


def _chunks(count: int, image_bytes: int) -> Iterator[slice]:
    step = max(1, CHUNK_BYTES // image_bytes)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
