"""Softmax with its loss, hits, random numbers, random cuts and numbers read: each kernel against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops_backends import Backend
from tests.support.ops_oracles import assert_close

SEEDS = st.integers(0, 2**32 - 1)


@given(batch=st.integers(0, 5), classes=st.sampled_from([1, 2, 5, 17]), topk=st.integers(1, 17), seed=SEEDS)
def test_softmax_loss(backend: Backend, batch: int, classes: int, topk: int, seed: int):
    rng, topk = np.random.default_rng(seed), min(topk, classes)
    x, labels = rng.normal(0, 3, (batch, classes)), rng.integers(0, classes, batch)
    p, loss, hits = backend.run("softmax_loss", x, labels, topk)
    expected = np.exp(x - x.max(axis=1, keepdims=True)) if batch else x
    expected /= expected.sum(axis=1, keepdims=True)
    assert_close(p, expected, backend.dtype)
    ranks = [np.flatnonzero(np.argsort(-row, kind="stable") == label)[0] for row, label in zip(x, labels, strict=True)]
    read = backend.ops.read([loss, hits])
    assert read[0] == pytest.approx(-sum(np.log(expected[range(batch), labels])), rel=1e-4, abs=1e-5)
    assert read[1] == sum(rank < topk for rank in ranks)

    dx = backend.run("softmax_loss_grad", expected, labels, 0.25)
    assert_close(dx, (expected - np.eye(classes)[labels]) * 0.25, backend.dtype)


def test_a_probability_of_nothing_costs_no_more_than_the_smallest_number(backend: Backend):
    _, loss, _ = backend.run("softmax_loss", np.array([[0.0, 2000.0]]), np.array([0]), 1)
    assert backend.ops.read([loss]) == [pytest.approx(-np.log(np.finfo(np.float32).tiny))]


def test_ties_go_to_the_lower_index_and_nan_counts_against_the_label(backend: Backend):
    scores = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1], [np.nan, 2, 1]], float)
    for labels, topk, right in (([0, 1, 2, 0], 1, 1), ([0, 1, 2, 0], 2, 3), ([0, 1, 2, 1], 2, 4), ([0, 1, 2, 0], 3, 4)):
        hits = backend.run("hits", scores, np.array(labels), topk)
        assert backend.ops.read([hits]) == [right]
    nothing = backend.run("hits", np.full((2, 3), np.nan), np.array([0, 2]), 1)
    assert backend.ops.read([nothing]) == [0]


@given(
    key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    first=st.integers(0, 2**20),
    step=st.integers(0, 2**40),
    rows=st.integers(0, 4),
    columns=st.integers(1, 40),
)
def test_random_numbers_are_those_of_numpy_to_the_bit(
    backend: Backend, key: tuple[int, int], first: int, step: int, rows: int, columns: int
):
    width = -(-columns // 8)
    bits = np.random.Philox(key=np.array(key, np.uint64), counter=[first * width, 0, step, 0])
    words = bits.random_raw(4 * width * rows).astype("<u8").view("<u4").reshape(rows, 8 * width)
    given_back = backend.ops.to_numpy(backend.ops.uniform(key, first, step, rows, columns))
    assert given_back.dtype == np.float32
    np.testing.assert_array_equal(given_back, ((words >> 8) * 2.0**-24)[:, :columns].astype(np.float32))


@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("layout", ["rows", "channels last"])
def test_a_window_is_cut_out_of_each_image(backend: Backend, pad: int, layout: str):
    images = np.random.default_rng(5).normal(size=(3, 2, 4, 5))
    tops, lefts, mirrored = [0, 1, 2 * pad], [1, 2 * pad, 0], [False, True, True]
    cut = backend.host(backend.ops.crop(backend.place(images, layout), tops, lefts, mirrored, (3, 4), pad))
    padded = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = [
        padded[row, :, top : top + 3, left : left + 4] for row, (top, left) in enumerate(zip(tops, lefts, strict=True))
    ]
    expected = np.stack([one[..., ::-1] if back else one for one, back in zip(windows, mirrored, strict=True)])
    assert_close(cut, expected, backend.dtype)


def test_numbers_are_read_in_their_order(backend: Backend):
    of_device = backend.ops.xp.sum(backend.asarray(np.array([1.5, 2.0])))
    assert backend.ops.read([3, of_device, 0.25]) == [3.0, 3.5, 0.25]
    assert backend.ops.read([]) == []
