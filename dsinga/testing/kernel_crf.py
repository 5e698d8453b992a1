"""The kernel contract for conditional random fields, by enumeration of all tags."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from dsinga.testing.kernel_backend import KernelBackend
from dsinga.testing.kernel_cases import given
from dsinga.testing.kernel_formulas import assert_close, assert_gradient


class TaggedSequences(NamedTuple):
    """Sequences of different lengths, their tags, and the params of a conditional random field."""

    x: np.ndarray
    tags: np.ndarray
    transitions: np.ndarray
    start: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """The number of steps of each sequence."""
        return (self.tags >= 0).sum(axis=1)


def tagged_sequences(lengths: list[int], steps: int, count: int, seed: int, scale: float = 1.0) -> TaggedSequences:
    """Return random sequences of these lengths in ``steps`` steps, with ``count`` tags."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(lengths), steps, count)) * scale
    tags = rng.integers(0, count, (len(lengths), steps))
    tags[np.arange(steps) >= np.array(lengths, int)[:, None]] = -1
    return TaggedSequences(x, tags, rng.normal(size=(count, count)) * scale, rng.normal(size=count) * scale)


@st.composite
def drawn_sequences(draw: st.DrawFn) -> TaggedSequences:
    """Draw up to 4 sequences of up to 4 steps, with 2 or 3 tags."""
    steps, count = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    lengths = draw(st.lists(st.integers(1, steps), max_size=4))
    return tagged_sequences(lengths, steps, count, draw(st.integers(0, 999)))


def score(x: np.ndarray, tags: Any, transitions: np.ndarray, start: np.ndarray) -> float:
    """Return the score of the tags of one sequence, added up one by one."""
    total = start[tags[0]] + sum(x[t, tag] for t, tag in enumerate(tags))
    return total + sum(transitions[a, b] for a, b in zip(tags, tags[1:], strict=False))


def all_scores(case: TaggedSequences, row: int) -> dict[tuple[int, ...], float]:
    """Return the scores of all possible tags of a row."""
    all_tags = product(range(len(case.start)), repeat=int(case.lengths[row]))
    return {tags: score(case.x[row], tags, case.transitions, case.start) for tags in all_tags}


def losses(case: TaggedSequences) -> np.ndarray:
    """Return the loss of each row, by enumeration of all tags."""
    values = []
    for row, length in enumerate(case.lengths):
        scores = all_scores(case, row)
        log_sum = np.logaddexp.reduce(list(scores.values()))
        values.append(log_sum - scores[tuple(case.tags[row, :length].tolist())])
    return np.array(values)


class CRFKernels:
    """Checks of linear-chain conditional random fields, on sequences of different lengths."""

    @given(case=drawn_sequences())
    def test_the_loss_is_that_of_an_enumeration_of_all_tags(
        self, backend: KernelBackend, case: TaggedSequences
    ) -> None:
        loss, workspace = backend.run("crf", *case, False)
        assert workspace is None
        assert_close(loss, losses(case), backend.dtype, scale=10)

    @given(case=drawn_sequences())
    def test_the_gradients_are_derivatives_of_the_loss(self, backend: KernelBackend, case: TaggedSequences) -> None:
        _, workspace = backend.run("crf", *case, True)
        grads = backend.run("crf_grad", *case, workspace)
        for field, grad in zip(("x", "transitions", "start"), grads, strict=True):

            def loss(moved: np.ndarray, field: str = field) -> float:
                return float(losses(case._replace(**{field: moved})).sum())

            assert_gradient(loss, getattr(case, field), grad, backend.dtype)
        assert not np.asarray(grads[0])[case.tags < 0].any()

    @given(case=drawn_sequences())
    def test_decoding_finds_the_best_of_all_tags(self, backend: KernelBackend, case: TaggedSequences) -> None:
        decoded = backend.run("crf_decode", case.x, case.lengths, case.transitions, case.start)
        assert decoded.dtype == np.int64
        assert np.array_equal(decoded >= 0, case.tags >= 0)
        for row, length in enumerate(case.lengths):
            scores = all_scores(case, row)
            best = scores[tuple(decoded[row, :length].tolist())]
            assert best == pytest.approx(max(scores.values()), rel=1e-5, abs=1e-5)

    def test_scores_far_apart_neither_overflow_nor_underflow(self, backend: KernelBackend) -> None:
        """A tag that cannot follow another has a transition of -10,000, as people write it."""
        case = tagged_sequences([5, 3], 5, 3, seed=1, scale=300)
        case.transitions[0, 1] = -1e4
        loss, workspace = backend.run("crf", *case, True)
        assert_close(loss, losses(case), backend.dtype, scale=1e4)
        assert all(np.isfinite(grad).all() for grad in backend.run("crf_grad", *case, workspace))
