"""Numbers of any dtype become those that records and labels have, and others are refused."""

from __future__ import annotations

import numpy as np
import pytest

from dsinga.data.conversion import as_labels, as_records
from dsinga.errors import UserError


@pytest.mark.parametrize(
    ("dtype", "record", "label"),
    [
        ("bool", "uint8", "int64"),
        ("uint8", "uint8", "int64"),
        ("int8", "float32", "int64"),
        (">i4", "int32", "int64"),
        ("int64", "float32", "int64"),
        ("uint64", "float32", "int64"),
        ("float16", "float32", "float32"),
        (">f4", "float32", "float32"),
        ("float64", "float32", "float32"),
    ],
)
def test_numbers(dtype: str, record: str, label: str) -> None:
    array = np.array([[0, 1], [1, 0]], dtype)
    for converted, expected in ((as_records(array), record), (as_labels(array), label)):
        assert converted.dtype == np.dtype(expected)
        assert converted.dtype.isnative
        np.testing.assert_array_equal(converted, array)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([1j]), "not complex128; give the real and the imaginary part as two numbers"),
        (np.array(["a"]), "not strings; give codes of the strings"),
        (np.array([b"a"]), "not strings; give codes"),
        (np.array([None]), "not object; give an array with a dtype of numbers"),
        (np.array(["2020-01-01"], "M8[D]"), r"not datetime64\[D\]; give a number, such as days since a date"),
        (np.zeros(1, [("a", "f4")]), "not records of fields; give one array for each field"),
    ],
)
def test_what_is_no_number_is_refused(array: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=f"records must be numbers, {message}"):
        as_records(array)
    with pytest.raises(UserError, match=f"labels must be integers or floats, {message}"):
        as_labels(array)


def test_numbers_beyond_the_dtypes_are_refused() -> None:
    for convert, what in ((as_records, "records"), (as_labels, "labels")):
        with pytest.raises(UserError, match=f"{what} have values beyond the range of float32; scale them"):
            convert(np.array([1e300]))
    with pytest.raises(UserError, match="label 18446744073709551615 does not fit into 64 bits"):
        as_labels(np.array([(1 << 64) - 1], np.uint64))
