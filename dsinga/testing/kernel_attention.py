"""The kernel contract for attention, beside plain loops over rows, heads and queries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from dsinga.testing.kernel_backend import KernelBackend
from dsinga.testing.kernel_cases import given
from dsinga.testing.kernel_formulas import assert_close, assert_gradient


class AttentionCase(NamedTuple):
    """Queries (B, Tq, n), keys (B, Tk, n), the number of heads, and how the keys are scored."""

    query: np.ndarray
    keys: np.ndarray
    heads: int
    factor: float
    visible: np.ndarray | None
    score: np.ndarray | None


@st.composite
def attention_cases(draw: st.DrawFn) -> AttentionCase:
    """Draw up to 3 rows; a query may see no key."""
    batch, queries, keys, heads, size = (draw(st.integers(low, 3)) for low in (0, 1, 1, 1, 1))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    visible = rng.integers(0, keys + 1, (batch, queries)) if draw(st.booleans()) else None
    score = rng.standard_normal(heads * size) if draw(st.booleans()) else None
    query, key = (rng.standard_normal((batch, steps, heads * size)) for steps in (queries, keys))
    return AttentionCase(query, key, heads, draw(st.sampled_from([1.0, 0.5])), visible, score)


def weights_of(case: AttentionCase) -> np.ndarray:
    """Return the weights, query by query."""
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
    """Return the weighted means of the values, head by head."""
    heads = weights.shape[1]
    parts = np.split(values, heads, axis=2)
    return np.concatenate([np.einsum("bij,bjd->bid", weights[:, h], parts[h]) for h in range(heads)], axis=2)


class AttentionKernels:
    """Checks of the weights of attention, of weighted means, and of their gradients."""

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
