"""Kernel tests for lookup, recurrent cells, attention, and CRFs by enumeration of all tags."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from dsinga.ops.types import CELL_ACTIVATIONS, CellActivations
from dsinga.testing.kernel_backend import KernelBackend, given
from dsinga.testing.kernel_formulas import assert_close, assert_gradient, param_shapes, recurrent

SIZE = 5
GATES = st.sampled_from(["sigmoid", "tanh", "relu", "identity"])
# The rectifier of a cell state has no slope where the state is 0, as at the beginning.
ACTIVATIONS = st.builds(CellActivations, GATES, GATES, st.sampled_from(["sigmoid", "tanh", "identity"]))
CODES = st.lists(st.lists(st.integers(-1, SIZE - 1), min_size=3, max_size=3), max_size=4)


@st.composite
def sequences(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a random cell, and rows of equal or different lengths, some with no step."""
    batch, times = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    lengths = st.lists(st.integers(0, times), min_size=batch, max_size=batch)
    return {
        "cell": draw(st.sampled_from(["rnn", "gru", "lstm"])),
        "shape": (batch, times, draw(st.integers(1, 6))),
        "size": draw(st.integers(1, 9)),
        "bias": draw(st.booleans()),
        "reset_bias": draw(st.booleans()),
        "state": draw(st.booleans()),
        "lengths": draw(st.none() | lengths),
        "reverse": draw(st.booleans()),
        "activations": draw(st.just(CELL_ACTIVATIONS) | ACTIVATIONS),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


class SequenceKernels:
    """Tests of one-hot vectors and embeddings, and of recurrent cells against plain loops."""

    @given(codes=CODES)
    def test_one_hot(self, backend: KernelBackend, codes: list[list[int]]) -> None:
        vectors = backend.run("one_hot", np.array(codes, np.int64).reshape(-1, 3), SIZE)
        assert vectors.dtype == np.float32
        expected = [[[float(code == place) for place in range(SIZE)] for code in row] for row in codes]
        assert vectors.shape == (len(codes), 3, SIZE)
        assert vectors.tolist() == expected

    @given(codes=CODES, width=st.integers(1, 4))
    def test_embedding(self, backend: KernelBackend, codes: list[list[int]], width: int) -> None:
        rng, indices = np.random.default_rng(width), np.array(codes, np.int64).reshape(-1, 3)
        table, dy = rng.standard_normal((SIZE, width)), rng.standard_normal((*indices.shape, width))
        expected = np.zeros((*indices.shape, width))
        gradient = np.zeros((SIZE, width))
        for place in np.ndindex(*indices.shape):
            if indices[place] >= 0:
                expected[place] = table[indices[place]]
                gradient[indices[place]] += dy[place]
        assert_close(backend.run("embedding", table, indices), expected, backend.dtype)
        rows, values = backend.run("embedding_grad", indices, dy)
        assert rows.tolist() == sorted({code for row in codes for code in row if code >= 0})
        assert rows.dtype == np.int64
        assert_close(values, gradient[rows], backend.dtype)

    @given(case=sequences(), need_dx=st.booleans(), need_dstate=st.booleans())
    def test_recurrent(self, backend: KernelBackend, case: dict[str, Any], need_dx: bool, need_dstate: bool) -> None:
        rng, cell, (batch, times, inputs) = np.random.default_rng(case["seed"]), case["cell"], case["shape"]
        x = rng.standard_normal(case["shape"])
        activations = case["activations"]
        bound = 1 if activations == CELL_ACTIVATIONS else 1 / (inputs + case["size"])  # states stay small
        shapes = param_shapes(cell, inputs, case["size"], case["bias"], case["reset_bias"])
        params = [rng.uniform(-bound, bound, shape) for shape in shapes]
        state = rng.standard_normal((batch, case["size"] * (2 if cell == "lstm" else 1)))
        if not case["state"]:
            state[...] = 0
        lengths = [times] * batch if case["lengths"] is None else case["lengths"]
        lengths_array = None if case["lengths"] is None else np.array(lengths, np.int64)
        placed_params = [backend.asarray(param) for param in params]
        placed_state = backend.asarray(state) if case["state"] else None

        y, last, workspace = backend.run(
            "recurrent", cell, x, placed_params, placed_state, lengths_array, case["reverse"], True, activations
        )
        expected_y, expected_last = recurrent(cell, x, params, state, lengths, case["reverse"], activations)
        assert_close(y, expected_y, backend.dtype)
        assert_close(last, expected_last, backend.dtype)

        dy, dlast = rng.standard_normal(y.shape), rng.standard_normal(last.shape)
        needs = need_dx, need_dstate
        dx, dstate, dparams = backend.run("recurrent_grad", cell, placed_params, workspace, dy, *needs, dlast)
        assert (dx is not None, dstate is not None, len(dparams)) == (need_dx, need_dstate, len(params))

        def loss(x: np.ndarray, state: np.ndarray, params: list[np.ndarray]) -> float:
            y, last = recurrent(cell, x, params, state, lengths, case["reverse"], activations)
            return (y * dy).sum() + (last * dlast).sum()

        if need_dx:
            assert_gradient(lambda x: loss(x, state, params), x, dx, backend.dtype)
        if need_dstate:
            assert_gradient(lambda state: loss(x, state, params), state, dstate, backend.dtype)
        for i, (param, gradient) in enumerate(zip(params, dparams, strict=True)):
            before, after = params[:i], params[i + 1 :]

            def loss_of_param(moved: np.ndarray, before: Any = before, after: Any = after) -> float:
                return loss(x, state, [*before, moved, *after])

            assert_gradient(loss_of_param, param, gradient, backend.dtype)

    @pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
    def test_no_workspace_outside_training(self, backend: KernelBackend, cell: str) -> None:
        params = [backend.asarray(np.ones(shape)) for shape in param_shapes(cell, 3, 2, True)]
        assert backend.run("recurrent", cell, np.ones((2, 4, 3)), params, None, None, False, False)[2] is None

    @pytest.mark.parametrize("cell", ["gru", "lstm"])
    def test_gates_may_saturate(self, backend: KernelBackend, cell: str) -> None:
        params = [backend.asarray(np.full(shape, 100.0)) for shape in param_shapes(cell, 3, 2, True)]
        for sign in (1.0, -1.0):
            x = np.full((2, 4, 3), sign * 100)
            y, _, workspace = backend.run("recurrent", cell, x, params, None, None, False, True)
            dx, _, _ = backend.run("recurrent_grad", cell, params, workspace, np.ones(y.shape), True, False)
            assert np.isfinite(y).all()
            assert np.isfinite(dx).all()


class TaggedSequences(NamedTuple):
    """Sequences of different lengths with tags, and the params of a conditional random field."""

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
    """Return the CRF score of one sequence's tags, added up one by one."""
    total = start[tags[0]] + sum(x[t, tag] for t, tag in enumerate(tags))
    return total + sum(transitions[a, b] for a, b in zip(tags, tags[1:], strict=False))


def all_scores(case: TaggedSequences, row: int) -> dict[tuple[int, ...], float]:
    """Return the CRF scores of all possible tags of a sequence."""
    all_tags = product(range(len(case.start)), repeat=int(case.lengths[row]))
    return {tags: score(case.x[row], tags, case.transitions, case.start) for tags in all_tags}


def losses(case: TaggedSequences) -> np.ndarray:
    """Return each sequence's CRF loss, by enumeration of all tags."""
    values = []
    for row, length in enumerate(case.lengths):
        scores = all_scores(case, row)
        log_sum = np.logaddexp.reduce(list(scores.values()))
        values.append(log_sum - scores[tuple(case.tags[row, :length].tolist())])
    return np.array(values)


class CRFKernels:
    """Tests of linear-chain conditional random fields, on sequences of different lengths."""

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
        """Forbidden transitions, often written as -10,000, neither overflow nor underflow."""
        case = tagged_sequences([5, 3], 5, 3, seed=1, scale=300)
        case.transitions[0, 1] = -1e4
        loss, workspace = backend.run("crf", *case, True)
        assert_close(loss, losses(case), backend.dtype, scale=1e4)
        assert all(np.isfinite(grad).all() for grad in backend.run("crf_grad", *case, workspace))


class AttentionCase(NamedTuple):
    """Queries (B, Tq, n), keys (B, Tk, n), the number of heads, and how keys are scored."""

    query: np.ndarray
    keys: np.ndarray
    heads: int
    factor: float
    visible: np.ndarray | None
    score: np.ndarray | None


@st.composite
def attention_cases(draw: st.DrawFn) -> AttentionCase:
    """Draw random queries and keys in up to 3 rows; a query may see no key."""
    batch, queries, keys, heads, size = (draw(st.integers(low, 3)) for low in (0, 1, 1, 1, 1))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    visible = rng.integers(0, keys + 1, (batch, queries)) if draw(st.booleans()) else None
    score = rng.standard_normal(heads * size) if draw(st.booleans()) else None
    query, key = (rng.standard_normal((batch, steps, heads * size)) for steps in (queries, keys))
    return AttentionCase(query, key, heads, draw(st.sampled_from([1.0, 0.5])), visible, score)


def weights_of(case: AttentionCase) -> np.ndarray:
    """Compute the weights of attention, query by query."""
    (batch, queries, _), keys, size = case.query.shape, case.keys.shape[1], case.query.shape[2] // case.heads
    weights = np.zeros((batch, case.heads, queries, keys))
    for b, h, i in np.ndindex(batch, case.heads, queries):
        count = keys if case.visible is None else case.visible[b, i]
        part = slice(h * size, (h + 1) * size)
        q, k = case.query[b, i, part], case.keys[b, :count, part]
        if case.score is None:
            scores = case.factor * (k * q).sum(axis=1)
        else:
            scores = (case.score[part] * np.tanh(q + k)).sum(axis=1)
        if count:
            powers = np.exp(scores - scores.max())
            weights[b, h, i, :count] = powers / powers.sum()
    return weights


def means_of(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Compute the weighted means of attention's values, head by head."""
    heads = weights.shape[1]
    parts = np.split(values, heads, axis=2)
    return np.concatenate([np.einsum("bij,bjd->bid", weights[:, h], parts[h]) for h in range(heads)], axis=2)


class AttentionKernels:
    """Tests of the weights of attention, of weighted means, and of their gradients."""

    @given(case=attention_cases())
    def test_the_weights_of_attention(self, backend: KernelBackend, case: AttentionCase) -> None:
        weights, workspace = backend.run("attention_weights", *_placed(backend, case))
        expected = weights_of(case)
        assert_close(weights, expected, backend.dtype)
        assert not np.asarray(weights)[expected == 0].any(), "hidden keys have the weight 0 exactly"
        dweights = np.random.default_rng(1).standard_normal(expected.shape)
        arguments = _placed(backend, case)
        dquery, dkeys, dscore = backend.run(
            "attention_weights_grad",
            *(arguments[0], arguments[1], weights, workspace, dweights, case.factor, arguments[5]),
        )
        grads = {"query": dquery, "keys": dkeys} | ({} if case.score is None else {"score": dscore})
        assert (dscore is None) == (case.score is None)
        for field, grad in grads.items():

            def total(moved: np.ndarray, field: str = field) -> float:
                changed: dict[str, Any] = {field: moved}
                return float((weights_of(case._replace(**changed)) * dweights).sum())

            assert_gradient(total, getattr(case, field), grad, backend.dtype)

    @given(batch=st.integers(0, 3), steps=st.integers(1, 4), pairs=st.integers(1, 3), seed=st.integers(0, 99))
    def test_pairs_are_rotated(self, backend: KernelBackend, batch: int, steps: int, pairs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x, angles = rng.standard_normal((batch, steps, 2 * pairs)), rng.standard_normal((steps, pairs))
        factors = np.exp(1j * angles).astype(np.result_type(backend.dtype, np.complex64))
        rotated = np.empty_like(x)
        rotated[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
        rotated[..., 1::2] = x[..., 0::2] * np.sin(angles) + x[..., 1::2] * np.cos(angles)
        assert_close(backend.run("rotate_pairs", x, factors), rotated, backend.dtype)

    @given(case=attention_cases(), width=st.integers(1, 3), train=st.booleans())
    def test_attention_is_the_means_by_its_weights(
        self, backend: KernelBackend, case: AttentionCase, width: int, train: bool
    ) -> None:
        case = case._replace(score=None)
        rng = np.random.default_rng(width)
        values = rng.standard_normal((*case.keys.shape[:2], case.heads * width))
        settings = case.heads, case.factor, case.visible
        y, workspace = backend.run("attention", case.query, case.keys, values, *settings, train)
        means = means_of(weights_of(case), values)
        assert_close(y, means, backend.dtype)
        if not train:
            assert workspace is None
            return
        dy = rng.standard_normal(means.shape)
        grads = backend.run("attention_grad", case.query, case.keys, values, y, workspace, dy, *settings)
        for field, grad in zip(("query", "keys"), grads, strict=False):

            def total(moved: np.ndarray, field: str = field) -> float:
                changed: dict[str, Any] = {field: moved}
                return float((means_of(weights_of(case._replace(**changed)), values) * dy).sum())

            assert_gradient(total, getattr(case, field), grad, backend.dtype)
        weights = weights_of(case)
        assert_gradient(lambda moved: float((means_of(weights, moved) * dy).sum()), values, grads[2], backend.dtype)

    @given(case=attention_cases(), width=st.integers(1, 3))
    def test_weighted_means(self, backend: KernelBackend, case: AttentionCase, width: int) -> None:
        weights, rng = weights_of(case), np.random.default_rng(width)
        values = rng.standard_normal((*case.keys.shape[:2], case.heads * width))
        means = means_of(weights, values)
        assert_close(backend.run("weighted_means", weights, values), means, backend.dtype)
        dy = rng.standard_normal(means.shape)
        dweights, dvalues = backend.run("weighted_means_grad", weights, values, dy)
        assert_gradient(lambda moved: float((means_of(moved, values) * dy).sum()), weights, dweights, backend.dtype)
        assert_gradient(lambda moved: float((means_of(weights, moved) * dy).sum()), values, dvalues, backend.dtype)

    @pytest.mark.parametrize("visible", [None, [[3, 1], [0, 2]]])
    def test_attention_scores_far_apart_do_not_overflow(self, backend: KernelBackend, visible: Any) -> None:
        query, keys = np.full((2, 2, 4), 300.0), np.linspace(-300, 300, 24).reshape(2, 3, 4)
        hides = None if visible is None else np.array(visible)
        weights, _ = backend.run("attention_weights", query, keys, 2, 1.0, hides, None)
        assert np.isfinite(np.asarray(weights)).all()
        assert_close(weights, weights_of(AttentionCase(query, keys, 2, 1.0, hides, None)), backend.dtype)


def _placed(backend: KernelBackend, case: AttentionCase) -> tuple[Any, ...]:
    score = None if case.score is None else backend.asarray(case.score)
    return (case.query, case.keys, case.heads, case.factor, case.visible, score)
