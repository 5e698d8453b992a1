"""Softmax over the channels of fields and its loss in plain numpy, on blocks that fit a core's cache."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import is_channels_last, point_blocks
from dsinga.ops.numpy.elementwise import FLT_MIN
from dsinga.ops.types import Array

Block = tuple[slice, slice, Array]


class NumpyPoints:
    """Softmax and cross-entropy at each point of a field."""

    def softmax_blocks(self, x: Array, p: Array) -> Iterator[Block]:
        """Write the softmax over the channels of x to ``p`` in blocks; yield rows, points and probabilities of each."""
        return softmax_by_class(x, p)

    def point_softmax(self, x: Array) -> Array:
        """Softmax over the channels of x (B, K, *space); the result is dense."""
        p = _dense_like(x)
        for _ in self.softmax_blocks(x, p):
            pass
        return p

    def point_softmax_loss(self, x: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Any, Any]:
        """Softmax cross-entropy of points: x (B, K, *space), labels integers in [0, K) to (p, loss, hits).

        p is the softmax over the channels. ``loss`` is -Σ w·log max(p[label], FLT_MIN) over all points, summed in
        float64. ``hits`` is Σ w over points where the label is the lowest class with the highest p; a point with NaN is
        no hit. Without weights w is 1.
        """
        p, loss, hits = _dense_like(x), 0.0, 0.0
        for rows, points, block in self.softmax_blocks(x, p):
            of_block = labels[rows, points]
            places = of_block * of_block.size
            places += np.arange(of_block.size).reshape(of_block.shape)
            of_labels = block.reshape(-1).take(places)
            right = is_highest(block, of_labels, of_block)
            losses = np.log(np.maximum(of_labels, FLT_MIN))
            if weights is None:
                hits += np.count_nonzero(right)
            else:
                losses *= weights[rows, points]
                hits += (right * weights[rows, points]).sum(dtype=np.float64)
            loss -= losses.sum(dtype=np.float64)
        return p, loss, hits

    def point_softmax_loss_grad(self, p: Array, labels: Array, weights: Array | None, factor: float) -> Array:
        """Return ``factor`` times the loss's gradient, w·(p - 1[label])·factor, for the softmax p (B, K, *space)."""
        dx = buffers.like(p)
        probabilities, result, memory = by_class(p), by_class(dx), in_memory(dx)
        classes, points = result.shape[1:]
        of_class, of_point = (points, 1) if dx.flags.c_contiguous else (1, classes)
        for rows, _ in point_blocks(result.shape, whole=True):
            target, at_labels = result[rows], factor
            places = labels[rows] * of_class
            places += np.arange(points) * of_point
            places += (np.arange(len(places)) * classes * points)[:, None]
            if weights is None:
                np.multiply(probabilities[rows], factor, out=target)
            else:
                at_labels = weights[rows] * p.dtype.type(factor)
                for label in range(classes):
                    np.multiply(probabilities[rows, label], at_labels, out=target[:, label])
            memory[rows].reshape(-1)[places] -= at_labels
        return dx

    def highest_channel(self, x: Array) -> Array:
        """Find the first channel with the highest number of x (B, K, P): (B, P) integers; any channel for NaN."""
        channels = np.empty_like(x, np.int64, shape=(x.shape[0], x.shape[2]))
        for rows, points in point_blocks(x.shape):
            channels[rows, points] = highest_class(classes_first(x[rows, :, points]))
        return channels


def softmax_by_class(x: Array, p: Array) -> Iterator[Block]:
    """Compute :meth:`NumpyPoints.softmax_blocks` with operations on the rows of classes."""
    scores, result = by_class(x), by_class(p)
    for rows, points in point_blocks(scores.shape):
        block = classes_first(scores[rows, :, points])
        block -= block.max(axis=0)
        np.exp(block, out=block)
        block /= block.sum(axis=0)
        for label, of_class in enumerate(block):
            result[rows, label, points] = of_class
        yield rows, points, block


def _dense_like(x: Array) -> Array:
    """Allocate an array like x, channels-last if x is, else C-contiguous."""
    return buffers.empty(x.shape, channels_last=is_channels_last(x), dtype=x.dtype)


def by_class(x: Array) -> Array:
    """Reshape (B, K, *space) to (B, K, P): a view if points are evenly spaced, as in dense arrays."""
    return x.reshape(*x.shape[:2], prod(x.shape[2:]))


def in_memory(x: Array) -> Array:
    """View a dense (B, K, *space) as (B, K·P), each row in memory order."""
    return (x if x.flags.c_contiguous else np.moveaxis(x, 1, -1)).reshape(len(x), prod(x.shape[1:]))


def classes_first(block: Array) -> Array:
    """Copy a block (b, K, p) to a C-contiguous array (K, b, p)."""
    result = np.empty_like(block, order="C", shape=(block.shape[1], block.shape[0], block.shape[2]))
    result[...] = block.swapaxes(0, 1)
    return result


def is_highest(block: Array, of_labels: Array, labels: Array) -> Array:
    """Whether labels (b, p) are the first class with the highest of (K, b, p); never for NaN."""
    highest = block.max(axis=0)
    right, ties = of_labels == highest, block == highest
    if np.count_nonzero(ties) > np.count_nonzero(highest == highest):
        right &= ties.argmax(axis=0) == labels
    return right


def highest_class(block: Array) -> Array:
    """Find the first class with the highest of (K, b, p): (b, p) integers; any class for NaN."""
    kind = np.uint8 if len(block) <= 256 else np.int32
    chosen, highest = np.zeros_like(block, kind, shape=block.shape[1:]), block[0].copy()
    for label in range(1, len(block)):
        above = block[label] > highest
        np.maximum(chosen, above * kind(label), out=chosen)
        np.maximum(highest, block[label], out=highest)
    return chosen
