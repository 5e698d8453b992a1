"""Sparse gradients, compared with the dense arrays that they represent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.ops import SparseRows
from dsinga.ops.sparse import add_up, fault

SHAPE = (9, 3)


def some_rows(seed: int, chosen: list[int]) -> SparseRows:
    rows = np.array(sorted(chosen), np.int64)
    rng = np.random.default_rng(seed)
    return SparseRows(rows, rng.normal(0, 10.0 ** rng.integers(-3, 4), (rows.size, 3)).astype(np.float32), SHAPE)


choices = st.lists(st.sets(st.integers(0, 8)).map(sorted), min_size=1, max_size=4)


@given(choices, st.sets(st.integers(0, 3)))
def test_a_sum_has_the_bits_of_the_sum_of_dense_arrays(chosen, dense):
    parts = [some_rows(seed, rows) for seed, rows in enumerate(chosen)]
    expected = np.zeros(SHAPE, np.float32)
    for part in parts:
        expected += part.dense()
    gradients = [np.asarray(part) if number in dense else part for number, part in enumerate(parts)]
    total = add_up(gradients)
    assert isinstance(total, SparseRows) == all(isinstance(part, SparseRows) for part in gradients)
    np.testing.assert_array_equal(np.asarray(total), expected)
    if isinstance(total, SparseRows):
        assert total.rows.tolist() == sorted(set().union(*chosen))
        assert fault(total) == ""


def test_dense_arrays_may_be_flat():
    rows = some_rows(0, [1, 4])
    np.testing.assert_array_equal(add_up([rows, np.ones(27, np.float32)]), rows.dense().reshape(-1) + 1)


@given(st.sets(st.integers(0, 8)).map(sorted), st.integers(0, 9), st.integers(0, 9))
def test_a_part_is_that_of_the_dense_array(chosen, first, second):
    start, stop = sorted((first, second))
    part = some_rows(0, chosen).part(start, stop)
    assert fault(part) == ""
    np.testing.assert_array_equal(part.dense(), some_rows(0, chosen).dense()[start:stop])


@pytest.mark.parametrize(
    ("rows", "values", "message"),
    [
        (np.array([0, 1], np.int32), (2, 3), "its rows must be a 1-d int64 array, not int32"),
        (np.array([[0]]), (1, 3), r"not int64 of shape \(1, 1\)"),
        (np.array([0, 1]), (3, 3), r"its values must be of shape \(2, 3\), not \(3, 3\)"),
        (np.array([0, 9]), (2, 3), "its rows must be strictly ascending from 0 or more to 8 or less"),
        (np.array([-1, 1]), (2, 3), "must be strictly ascending from 0"),
        (np.array([1, 1]), (2, 3), "strictly ascending"),
        (np.array([2, 1]), (2, 3), "must be strictly ascending"),
    ],
)
def test_wrong_rows_are_refused(rows, values, message):
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(fault(SparseRows(rows, np.zeros(values, np.float32), SHAPE)))
