"""Recurrent kernels against plain loops, on batches of every size and sequences of every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.ops.packing import pack_sequences
from tests.support.ops_backends import Backend
from tests.support.ops_oracles import assert_close, assert_gradient
from tests.support.recurrent_oracle import param_shapes, recurrent


@st.composite
def sequences(draw: st.DrawFn) -> dict[str, Any]:
    """A cell, and rows of equal or different lengths, some of them without a step."""
    batch, times = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    lengths = st.lists(st.integers(0, times), min_size=batch, max_size=batch)
    return {
        "cell": draw(st.sampled_from(["rnn", "gru", "lstm"])),
        "shape": (batch, times, draw(st.integers(1, 6))),
        "size": draw(st.integers(1, 9)),
        "bias": draw(st.booleans()),
        "state": draw(st.booleans()),
        "lengths": draw(st.none() | lengths),
        "reverse": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@given(case=sequences(), need_dx=st.booleans(), need_dstate=st.booleans())
def test_recurrent(backend: Backend, case: dict[str, Any], need_dx: bool, need_dstate: bool):
    rng, cell, (batch, times, inputs) = np.random.default_rng(case["seed"]), case["cell"], case["shape"]
    x = rng.standard_normal(case["shape"])
    params = [rng.uniform(-1, 1, shape) for shape in param_shapes(cell, inputs, case["size"], case["bias"])]
    state = rng.standard_normal((batch, case["size"] * (2 if cell == "lstm" else 1)))
    if not case["state"]:
        state[...] = 0
    lengths = [times] * batch if case["lengths"] is None else case["lengths"]
    given_lengths = None if case["lengths"] is None else np.array(lengths, np.int64)
    given_params = [backend.asarray(param) for param in params]
    given_state = backend.asarray(state) if case["state"] else None

    y, last, workspace = backend.run(
        "recurrent", cell, x, given_params, given_state, given_lengths, case["reverse"], True
    )
    expected_y, expected_last = recurrent(cell, x, params, state, lengths, case["reverse"])
    assert_close(y, expected_y, backend.dtype)
    assert_close(last, expected_last, backend.dtype)

    dy = rng.standard_normal(y.shape)
    dx, dstate, dparams = backend.run("recurrent_grad", cell, given_params, workspace, dy, need_dx, need_dstate)
    assert (dx is not None, dstate is not None, len(dparams)) == (need_dx, need_dstate, len(params))

    def loss(x: np.ndarray, state: np.ndarray, params: list[np.ndarray]) -> float:
        return (recurrent(cell, x, params, state, lengths, case["reverse"])[0] * dy).sum()

    if need_dx:
        assert_gradient(lambda x: loss(x, state, params), x, dx, backend.dtype)
    if need_dstate:
        assert_gradient(lambda state: loss(x, state, params), state, dstate, backend.dtype)
    for i, (param, gradient) in enumerate(zip(params, dparams, strict=True)):
        assert_gradient(
            lambda moved, i=i: loss(x, state, [*params[:i], moved, *params[i + 1 :]]), param, gradient, backend.dtype
        )


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_outside_training_nothing_is_kept(backend: Backend, cell: str):
    params = [backend.asarray(np.ones(shape)) for shape in param_shapes(cell, 3, 2, True)]
    assert backend.run("recurrent", cell, np.ones((2, 4, 3)), params, None, None, False, False)[2] is None


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gates_may_saturate(backend: Backend, cell: str):
    params = [backend.asarray(np.full(shape, 100.0)) for shape in param_shapes(cell, 3, 2, True)]
    for sign in (1.0, -1.0):
        x = np.full((2, 4, 3), sign * 100)
        y, _, workspace = backend.run("recurrent", cell, x, params, None, None, False, True)
        dx, _, _ = backend.run("recurrent_grad", cell, params, workspace, np.ones(y.shape), True, False)
        assert np.isfinite(y).all()
        assert np.isfinite(dx).all()


def test_steps_after_the_end_of_a_row_are_not_computed():
    packing = pack_sequences(4, 10, np.array([2, 0, 7, 2]), reverse=False)
    assert packing.counts == (3, 3, 1, 1, 1, 1, 1)
    assert packing.order.tolist() == [2, 0, 3, 1]
    assert packing.places.tolist() == [20, 0, 30, 21, 1, 31, 22, 23, 24, 25, 26]
    backwards = pack_sequences(4, 10, np.array([2, 0, 7, 2]), reverse=True)
    assert backwards.places.tolist() == [26, 1, 31, 25, 0, 30, 24, 23, 22, 21, 20]
