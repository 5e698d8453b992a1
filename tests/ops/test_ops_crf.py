"""Linear-chain conditional random fields: every backend against the enumeration of all tags, and PyTorch's autograd."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops_oracles import assert_close, assert_gradient


class Chains(NamedTuple):
    """Sequences of different lengths, their tags and the params."""

    x: np.ndarray
    tags: np.ndarray
    transitions: np.ndarray
    start: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return (self.tags >= 0).sum(axis=1)


def make(lengths: list[int], steps: int, count: int, seed: int, scale: float = 1.0) -> Chains:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(lengths), steps, count)) * scale
    tags = rng.integers(0, count, (len(lengths), steps))
    tags[np.arange(steps) >= np.array(lengths, int)[:, None]] = -1
    return Chains(x, tags, rng.normal(size=(count, count)) * scale, rng.normal(size=count) * scale)


@st.composite
def chains(draw: st.DrawFn) -> Chains:
    steps, count = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    lengths = draw(st.lists(st.integers(1, steps), max_size=4))
    return make(lengths, steps, count, draw(st.integers(0, 999)))


def score(x: np.ndarray, tags: Any, transitions: np.ndarray, start: np.ndarray) -> float:
    """The score of the tags of one sequence, added up one by one."""
    total = start[tags[0]] + sum(x[t, tag] for t, tag in enumerate(tags))
    return total + sum(transitions[a, b] for a, b in zip(tags, tags[1:], strict=False))


def all_scores(case: Chains, row: int) -> dict[tuple[int, ...], float]:
    """The score of every sequence of tags that the row could have."""
    every = product(range(len(case.start)), repeat=int(case.lengths[row]))
    return {tags: score(case.x[row], tags, case.transitions, case.start) for tags in every}


def losses(case: Chains) -> np.ndarray:
    """The loss of each row, by enumeration."""
    found = []
    for row, length in enumerate(case.lengths):
        scores = all_scores(case, row)
        every = np.logaddexp.reduce(list(scores.values()))
        found.append(every - scores[tuple(case.tags[row, :length].tolist())])
    return np.array(found)


@given(case=chains())
def test_the_loss_is_that_of_an_enumeration_of_all_tags(backend, case: Chains):
    loss, workspace = backend.run("crf", *case, False)
    assert workspace is None
    assert_close(loss, losses(case), backend.dtype, scale=10)


@given(case=chains())
def test_the_gradients_are_its_derivatives(backend, case: Chains):
    _, workspace = backend.run("crf", *case, True)
    grads = backend.run("crf_grad", *case, workspace)
    for field, grad in zip(("x", "transitions", "start"), grads, strict=True):

        def value(moved: np.ndarray, field: str = field) -> float:
            return float(losses(case._replace(**{field: moved})).sum())

        assert_gradient(value, getattr(case, field), grad, backend.dtype)
    assert not np.asarray(grads[0])[case.tags < 0].any()


@given(case=chains())
def test_decoding_finds_the_best_of_all_tags(backend, case: Chains):
    decoded = backend.run("crf_decode", case.x, case.lengths, case.transitions, case.start)
    assert decoded.dtype == np.int64
    assert np.array_equal(decoded >= 0, case.tags >= 0)
    for row, length in enumerate(case.lengths):
        scores = all_scores(case, row)
        best = scores[tuple(decoded[row, :length].tolist())]
        assert best == pytest.approx(max(scores.values()), rel=1e-5, abs=1e-5)


def test_scores_far_apart_neither_overflow_nor_vanish(backend):
    """A tag that cannot follow another has a transition of -10,000, as people write it."""
    case = make([5, 3], 5, 3, seed=1, scale=300)
    case.transitions[0, 1] = -1e4
    loss, workspace = backend.run("crf", *case, True)
    assert_close(loss, losses(case), backend.dtype, scale=1e4)
    assert all(np.isfinite(grad).all() for grad in backend.run("crf_grad", *case, workspace))


def test_it_is_what_autograd_finds(backend):
    torch = pytest.importorskip("torch")
    case = make([40, 1, 17, 17, 39, 2], 40, 20, seed=2)
    x, transitions, start = (torch.tensor(one, requires_grad=True) for one in (case.x, *case[2:]))
    tags, total = torch.tensor(case.tags), torch.zeros(())
    for row, length in enumerate(case.lengths):
        own = tags[row, :length]
        forward = start + x[row, 0]
        for t in range(1, length):
            forward = torch.logsumexp(forward[:, None] + transitions, 0) + x[row, t]
        path = start[own[0]] + x[row, torch.arange(length), own].sum() + transitions[own[:-1], own[1:]].sum()
        total = total + torch.logsumexp(forward, 0) - path
    total.backward()
    loss, workspace = backend.run("crf", *case, True)
    assert_close(loss.sum(), np.float64(total.detach()), backend.dtype, scale=100)
    for grad, tensor in zip(backend.run("crf_grad", *case, workspace), (x, transitions, start), strict=True):
        assert_close(grad, tensor.grad.numpy(), backend.dtype, scale=10)
