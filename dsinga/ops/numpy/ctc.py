"""Connectionist temporal classification in numpy: the probability of labels over all ways to place them in time.

Graves et al., Connectionist Temporal Classification (2006), in log space. Between labels, before the first and after
the last there may be blanks, so that S labels have 2S + 1 states; a path goes on to the same state, to the next one, or
over a blank between two different labels. One pass over time computes all sequences and states at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsinga.ops.types import Array


class Paths(NamedTuple):
    """The states of the sequences of a batch, L = 2S + 1, and the sums over paths to them.

    ``symbols`` (B, L) has the class of each state, ``skips`` (B, L) 0 where a path may come over a blank, else -inf,
    ``lengths`` and ``ends`` (B,) the steps and the states of each sequence. ``logs`` (B, T, K) is the log of the
    softmax, ``emitted`` (T, B, L) that of each state's class, ``forward`` (T, B, L) the log of the sum over paths to a
    state, its own step included.
    """

    symbols: Array
    skips: Array
    lengths: Array
    ends: Array
    logs: Array
    emitted: Array
    forward: Array


def add_logs(first: Array, second: Array, third: Array) -> Array:
    """Return log(exp(first) + exp(second) + exp(third)), where -inf stands for 0."""
    top = np.maximum(np.maximum(first, second), third)
    top[np.isneginf(top)] = 0
    return np.log(np.exp(first - top) + np.exp(second - top) + np.exp(third - top)) + top


def shifted(states: Array, by: int) -> Array:
    """Return (B, L) with each state's entry that of the state ``by`` before it; of none -inf."""
    moved = np.full_like(states, -np.inf)
    if by > 0:
        moved[:, by:] = states[:, :-by]
    else:
        moved[:, :by] = states[:, -by:]
    return moved


def ctc(x: Array, labels: Array, lengths: Array, blank: int) -> tuple[Array, Paths]:
    """Return -log P(labels) of each sequence, (B,) float64, infinity where the labels do not fit, and the paths.

    ``x`` (B, T, K) are scores, of which the first ``lengths`` (B,) steps count, ``labels`` (B, S) classes other than
    ``blank``, -1 after the end.
    """
    counts = (labels >= 0).sum(axis=1)
    rows, states = np.arange(len(x)), 2 * labels.shape[1] + 1
    symbols = np.full((len(x), states), blank)
    symbols[:, 1::2] = np.where(labels >= 0, labels, blank)
    may_skip = np.zeros(symbols.shape, bool)
    may_skip[:, 2:] = (symbols[:, 2:] != blank) & (symbols[:, 2:] != symbols[:, :-2])
    skips = np.where(may_skip, 0.0, -np.inf)
    logs = x.astype(np.float64)
    logs -= logs.max(axis=2, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=2, keepdims=True))
    emitted = np.ascontiguousarray(np.take_along_axis(logs, symbols[:, None, :], axis=2).transpose(1, 0, 2))
    forward = np.empty_like(emitted)
    forward[0] = -np.inf
    forward[0, :, :2] = emitted[0, :, :2]
    with np.errstate(divide="ignore"):
        for t in range(1, len(forward)):
            before = forward[t - 1]
            forward[t] = add_logs(before, shifted(before, 1), shifted(before, 2) + skips) + emitted[t]
        last = forward[lengths - 1, rows]
        ends = 2 * counts + 1  # the states of each sequence: it ends in the last label, or in the blank after it
        in_label = np.where(counts > 0, last[rows, np.maximum(ends - 2, 0)], -np.inf)
        losses = -np.logaddexp(last[rows, ends - 1], in_label)
    return losses, Paths(symbols, skips, lengths, ends, logs, emitted, forward)


def ctc_grad(paths: Paths, losses: Array) -> Array:
    """Return the gradient of the sum of ``losses`` (B,), as of :func:`ctc`, for the scores, (B, T, K) float64."""
    symbols, skips, lengths, ends, logs, emitted, forward = paths
    batch, states = symbols.shape
    from_here = np.full_like(skips, -np.inf)  # the log of the sum over paths from a state, without its own step
    shares = np.zeros_like(forward)  # P(state at t | labels)
    last = np.arange(states) - (ends - 1)[:, None]
    is_end = (last == 0) | ((last == -1) & (ends > 1)[:, None])
    over = shifted(skips, -2)  # where a path may go on over a blank
    with np.errstate(divide="ignore"):
        for t in range(len(forward) - 1, -1, -1):
            if t + 1 < len(forward):
                on = from_here + emitted[t + 1]
                from_here = add_logs(on, shifted(on, -1), shifted(on, -2) + over)
            ending = (lengths - 1 == t)[:, None]
            from_here = np.where(ending, np.where(is_end, 0.0, -np.inf), from_here)
            shares[t] = np.exp(forward[t] + from_here + losses[:, None])
    gradient = np.exp(logs)
    steps, classes = logs.shape[1:]
    places = (np.arange(batch)[:, None] * steps + np.arange(steps)[:, None, None]) * classes + symbols
    gradient -= np.bincount(places.ravel(), shares.ravel(), gradient.size).reshape(gradient.shape)
    gradient[np.arange(steps) >= lengths[:, None]] = 0
    return gradient
