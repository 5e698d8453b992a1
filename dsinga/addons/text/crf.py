"""Linear-chain conditional random fields in numpy, for all sequences of a batch at once.

A sequence of n steps with the tags y has the score start[y0] + Σ x[t, yt] + Σ transitions[y(t-1), yt]. Sequences are
sorted by decreasing length, so that padding costs nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.ops.layout import contiguous
from dsinga.ops.types import Array


class Chains(NamedTuple):
    """Sequences sorted by length: ``order`` (B,), ``counts``, how many reach each step, and ``x`` (T', B, K)."""

    order: Array
    counts: Array
    x: Array


@register("kernel", "crf")
def crf(x: Array, tags: Array, transitions: Array, start: Array, train: bool) -> tuple[Array, Any]:
    """Compute the loss of tag sequences: x (B, T, K), tags (B, T) in [0, K), -1 after the end -> -log P(tags) (B,).

    Transitions are (K, K), from row to column, start (K,); every sequence has at least one step.
    """
    lengths = (tags >= 0).sum(axis=1)
    chains = by_length(x, lengths)
    forward = np.empty_like(chains.x)  # log of the sum over all tags before: (T', B, K)
    forward[:1] = start + chains.x[:1]
    for t in range(1, len(chains.counts)):
        n = chains.counts[t]
        forward[t, :n] = log_sum_exp(moves(forward[t - 1, :n], transitions)) + chains.x[t, :n]
    log_sums = log_sum_exp(forward[lengths[chains.order] - 1, np.arange(len(x))].T)
    loss = np.empty_like(log_sums)
    loss[chains.order] = log_sums
    loss -= path_scores(x, tags, transitions, start)
    return loss, (chains, forward, log_sums) if train else None


@register("kernel", "crf_grad")
def crf_grad(x: Array, tags: Array, transitions: Array, start: Array, workspace: Any) -> tuple[Array, Array, Array]:
    """Compute (dx, dtransitions, dstart) of the summed losses: expected counts minus the given tags' counts."""
    (order, counts, steps), forward, log_sums = workspace
    rows, lengths = np.arange(len(x)), (tags >= 0).sum(axis=1)
    p = np.zeros_like(forward)  # P(tag at t | x); known first where a sequence ends
    ends = lengths[order] - 1
    p[ends, rows] = np.exp(forward[ends, rows] - log_sums[:, None])
    dtransitions = np.zeros_like(transitions)
    for t in range(len(counts) - 1, 0, -1):
        n = counts[t]
        pair = moves(forward[t - 1, :n], transitions)
        pair -= forward[t, :n] - steps[t, :n]
        np.exp(pair, out=pair)  # P(tag at t-1 | tag at t)
        pair *= p[t, :n]
        dtransitions += np.einsum("abc->ac", pair)
        p[t - 1, :n] = np.einsum("abc->ba", pair)
    dx = np.zeros_like(x)
    dx[order, : len(counts)] = p.transpose(1, 0, 2)
    real = tags >= 0
    dx[(*np.nonzero(real), tags[real])] -= 1
    np.subtract.at(dtransitions, (tags[:, :-1][real[:, 1:]], tags[:, 1:][real[:, 1:]]), 1)
    dstart = p[:1].sum(axis=(0, 1))
    np.subtract.at(dstart, tags[:, 0], 1)
    return dx, dtransitions, dstart


@register("kernel", "crf_decode")
def crf_decode(x: Array, lengths: Array, transitions: Array, start: Array) -> Array:
    """Find the highest-scoring tags (B, T) int64, -1 after the end (Viterbi); ties go to the lower tag."""
    order, counts, steps = by_length(x, lengths)
    best_before = np.empty(steps.shape, np.intp)  # the best tag at t-1 for each tag at t
    best = start + steps[0] if len(counts) else np.empty((0, x.shape[2]), x.dtype)
    for t in range(1, len(counts)):
        n = counts[t]
        scores = moves(best[:n], transitions)
        best_before[t, :n] = scores.argmax(axis=0)
        best[:n] = scores.max(axis=0) + steps[t, :n]
    tags, tag = np.full(x.shape[:2], -1, np.int64), best.argmax(axis=1)
    for t in range(len(counts) - 1, -1, -1):
        n = counts[t]
        tags[order[:n], t] = tag[:n]
        tag[:n] = best_before[t, np.arange(n), tag[:n]] if t else tag[:n]
    return tags


def by_length(x: Array, lengths: Array) -> Chains:
    """Sort the sequences x (B, T, K) by length, with time first."""
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    counts = (lengths > np.arange(longest)[:, None]).sum(axis=1)
    return Chains(order, counts, contiguous(x.transpose(1, 0, 2)[:longest, order]))


def path_scores(x: Array, tags: Array, transitions: Array, start: Array) -> Array:
    """Compute the scores (B,) of the given tags."""
    real = tags >= 0
    emissions = np.take_along_axis(x, np.where(real, tags, 0)[:, :, None], axis=2)[:, :, 0]
    between = transitions[tags[:, :-1], tags[:, 1:]]  # padding picks some entry, which does not count
    return start[tags[:, 0]] + (emissions * real).sum(axis=1) + (between * real[:, 1:]).sum(axis=1)


def moves(before: Array, transitions: Array) -> Array:
    """Compute before[b, i] + transitions[i, j] as (i, b, j), because numpy reduces a first axis fastest."""
    return before.T[:, :, None] + transitions[:, None, :]


def log_sum_exp(x: Array) -> Array:
    """Compute log Σ exp(x) along axis 0, without overflow; x is overwritten."""
    highest = x.max(axis=0)
    x -= highest
    np.exp(x, out=x)
    return np.log(x.sum(axis=0)) + highest
