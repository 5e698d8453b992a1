"""Beam search: finds a sequence of codes of high probability by extending the few best beginnings.

All sequences of a batch are searched at once. A sequence has ``beam`` places: at each step, its most probable
continuations take them, and a hypothesis that has ended keeps its place. So a beam of 1 takes the most probable code
at each step (greedy search), and a beam that has a place for every sequence finds the best of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.base.errors import UserError

Scorer = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Takes the sequence (R,) that each prefix belongs to, and prefixes (R, t); returns scores (R, V) of the next code."""


class Hypothesis(NamedTuple):
    """The codes of a sequence without its marks, and its score: log probability / :func:`length_penalty`."""

    codes: tuple[int, ...]
    score: float


class OpenHypotheses(NamedTuple):
    """The open hypotheses of all sequences: the sequence of each (R,), its codes (R, t), and log probability (R,)."""

    sequences: np.ndarray
    prefixes: np.ndarray
    logs: np.ndarray


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6)^alpha, by which log probabilities of sequences are divided; 1 for an alpha of 0.

    Without it, short sequences are preferred. Wu et al., Google's Neural Machine Translation System (2016), formula 14.
    """
    return ((5 + length) / 6) ** alpha


def beam_search(
    next_scores: Scorer,
    max_lengths: Sequence[int],
    start: int,
    end: int,
    beam: int = 5,
    alpha: float = 0.6,
    excluded: Sequence[int] = (),
) -> list[Hypothesis]:
    """Return the best hypothesis of each sequence that the search finds.

    A sequence is ended by its ``beam`` hypotheses, or as soon as no open one can have a better score than its best.

    Args:
        next_scores: gives scores whose softmax is the probability of the next code.
        max_lengths: the largest number of codes of each sequence, ``end`` not counted.
        start: the code with which each prefix begins.
        end: the code that ends a sequence.
        beam: number of hypotheses that a sequence has.
        alpha: exponent of :func:`length_penalty`.
        excluded: codes that no sequence gets, besides ``start``.

    Raises UserError for a ``beam`` below 1, an ``alpha`` below 0, and scores that are not finite.
    """
    if beam < 1:
        raise UserError(f"the beam is {beam}; give 1, which takes the most probable word each time, or more")
    if not alpha >= 0:
        raise UserError(f"the length penalty is {alpha}; give 0, for none, or more")
    limits = np.asarray(max_lengths)
    count = len(limits)
    ended: list[list[Hypothesis]] = [[] for _ in limits]
    open_ = OpenHypotheses(np.arange(count), np.full((count, 1), start), np.zeros(count))
    while len(open_.sequences):
        scores = next_scores(open_.sequences, open_.prefixes)
        logs = _log_probabilities(scores, [start, *excluded])
        logs[(open_.prefixes.shape[1] > limits[open_.sequences])[:, None] & (np.arange(logs.shape[1]) != end)] = -np.inf
        open_ = _advance(open_, logs, ended, end, beam, alpha)
        open_ = _promising(open_, ended, limits, alpha)
    if not all(ended):
        raise UserError("the net gives scores that are not finite; translate with params of an earlier checkpoint")
    return [max(hypotheses, key=lambda hypothesis: hypothesis.score) for hypotheses in ended]


def _log_probabilities(scores: np.ndarray, excluded: Sequence[int]) -> np.ndarray:
    """Return the logarithm of the softmax of each row; -inf at the codes ``excluded``."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    shifted[:, excluded] = -np.inf
    return shifted


def _advance(
    open_: OpenHypotheses, logs: np.ndarray, ended: list[list[Hypothesis]], end: int, beam: int, alpha: float
) -> OpenHypotheses:
    """Return the most probable continuations of each sequence; add those that ``end`` to ``ended``."""
    width = min(beam, logs.shape[1])
    codes, best = _highest(logs, width)
    totals = best + open_.logs[:, None]
    rows = np.repeat(np.arange(len(logs)), width)
    codes, totals, sequences = codes.reshape(-1), totals.reshape(-1), np.repeat(open_.sequences, width)
    order = np.lexsort((codes, rows, -totals, sequences))  # by sequence, then by probability
    sequences = sequences[order]
    places = np.array([beam - len(hypotheses) for hypotheses in ended])
    rank = np.arange(len(order)) - np.searchsorted(sequences, sequences)
    order = order[(rank < places[sequences]) & np.isfinite(totals[order])]
    ends = codes[order] == end
    length = open_.prefixes.shape[1]  # with the end, without the start
    for k in order[ends]:
        score = float(totals[k] / length_penalty(length, alpha))
        ended[open_.sequences[rows[k]]].append(Hypothesis(tuple(open_.prefixes[rows[k], 1:].tolist()), score))
    still_open = order[~ends]
    prefixes = np.concatenate([open_.prefixes[rows[still_open]], codes[still_open, None]], axis=1)
    return OpenHypotheses(open_.sequences[rows[still_open]], prefixes, totals[still_open])


def _highest(logs: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes (R, count) with the highest numbers of each row, and these as float64; ``logs`` is overwritten.

    For a few of thousands, repeated maxima are several times as fast as a partition.
    """
    rows = np.arange(len(logs))
    codes, best = np.empty((len(logs), count), np.int64), np.empty((len(logs), count))
    for k in range(count):
        codes[:, k] = logs.argmax(axis=1)
        best[:, k] = logs[rows, codes[:, k]]
        logs[rows, codes[:, k]] = -np.inf
    return codes, best


def _promising(
    open_: OpenHypotheses, ended: list[list[Hypothesis]], limits: np.ndarray, alpha: float
) -> OpenHypotheses:
    """Return the hypotheses that can still have a better score than the best of their sequence that has ended.

    A log probability can only fall, and the largest penalty is that of the longest sequence.
    """
    best = np.array([max((hypothesis.score for hypothesis in hypotheses), default=-np.inf) for hypotheses in ended])
    bound = open_.logs / np.array([length_penalty(limit + 1, alpha) for limit in limits[open_.sequences]])
    return OpenHypotheses(*(array[bound > best[open_.sequences]] for array in open_))
