"""One-hot vectors and embeddings against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops_backends import Backend
from tests.support.ops_oracles import assert_close

SIZE = 5
CODES = st.lists(st.lists(st.integers(-1, SIZE - 1), min_size=3, max_size=3), max_size=4)


@given(codes=CODES)
def test_one_hot(backend: Backend, codes: list[list[int]]):
    vectors = backend.run("one_hot", np.array(codes, np.int64).reshape(-1, 3), SIZE)
    assert vectors.dtype == np.float32
    expected = [[[float(code == place) for place in range(SIZE)] for code in row] for row in codes]
    assert vectors.shape == (len(codes), 3, SIZE)
    assert vectors.tolist() == expected


@given(codes=CODES, width=st.integers(1, 4))
def test_embedding(backend: Backend, codes: list[list[int]], width: int):
    rng, taken = np.random.default_rng(width), np.array(codes, np.int64).reshape(-1, 3)
    table, dy = rng.standard_normal((SIZE, width)), rng.standard_normal((*taken.shape, width))
    expected = np.zeros((*taken.shape, width))
    gradient = np.zeros((SIZE, width))
    for place in np.ndindex(*taken.shape):
        if taken[place] >= 0:
            expected[place] = table[taken[place]]
            gradient[taken[place]] += dy[place]
    assert_close(backend.run("embedding", table, taken), expected, backend.dtype)
    rows, values = backend.run("embedding_grad", taken, dy)
    assert rows.tolist() == sorted({code for row in codes for code in row if code >= 0})
    assert rows.dtype == np.int64
    assert_close(values, gradient[rows], backend.dtype)
