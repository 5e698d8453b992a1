"""Records in data frames of pandas and Dask: feature columns, and a column of labels."""

import pickle
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import open_records
from tests.support.refusals import refused

X, Y = np.arange(60, dtype=np.float64).reshape(20, 3) / 7, np.arange(20) % 4
NAMES = ["ant", "bee", "cat", "dog"]
ROWS = [19, 0, 7, 7]


def frame() -> pd.DataFrame:
    """Three feature columns, a label, and its name; numbered from 100."""
    names = np.array(NAMES)[Y]
    return pd.DataFrame(X, columns=["a", "b", "c"], index=range(100, 120)).assign(label=Y, name=names)


KINDS = {"pandas": lambda table: table, "dask": lambda table: dd.from_pandas(table, npartitions=3)}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """A function that makes the data frame of one of the two libraries."""
    return KINDS[request.param]


def test_columns_are_features_and_labels(kind: Any) -> None:
    source = open_records(kind(frame()), label="label", columns=["c", "a"])
    for each in (source, pickle.loads(pickle.dumps(source))):
        data, labels = each.read(ROWS)
        np.testing.assert_array_equal(data, X[ROWS][:, [2, 0]].astype(np.float32))
        np.testing.assert_array_equal(labels, Y[ROWS])
    rest = open_records(kind(frame().drop(columns="name")), label="label")
    assert (rest.shape, rest.label_range()) == ((3,), (0, 3))
    assert not open_records(kind(frame()[["a"]])).has_labels


def test_labels_may_lie_elsewhere(kind: Any) -> None:
    table = kind(frame())
    features = table[["a", "b", "c"]]
    for labels in (table["label"], Y, Y.tolist()):
        np.testing.assert_array_equal(open_records((features, labels)).read(ROWS)[1], Y[ROWS])
    np.testing.assert_array_equal(open_records((X, table["label"])).read(ROWS)[1], Y[ROWS])
    targets = open_records((features, table[["b", "c"]]))
    np.testing.assert_array_equal(targets.read(ROWS)[1], X[ROWS, 1:].astype(np.float32))
    np.testing.assert_array_equal(open_records(table["a"]).read(ROWS)[0], X[ROWS, :1].astype(np.float32))


def test_categories_are_classes_and_other_strings_need_them(kind: Any) -> None:
    table = frame()[["a", "name"]].astype({"name": pd.CategoricalDtype([*NAMES[::-1], "emu"])})
    source = open_records(kind(table), label="name")
    assert source.classes == ("dog", "cat", "bee", "ant", "emu")
    np.testing.assert_array_equal(source.read(ROWS)[1], 3 - Y[ROWS])
    for strings in (table, frame()[["a", "name"]]):
        source = open_records(kind(strings), label="name", classes=NAMES)
        np.testing.assert_array_equal(source.read(ROWS)[1], Y[ROWS])
    with pytest.raises(UserError, match=r"'name' has labels that are strings; .*classes=\['ant', 'bee', 'cat', "):
        open_records(kind(frame()[["a", "name"]]), label="name")


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["uint8", "bool"], "uint8"),
        (["int32", "int32"], "int32"),
        (["int32", "uint8"], "float32"),
        (["int64", "float16"], "float32"),
        (["Int64", "boolean"], "float32"),
        (["UInt8", "boolean"], "uint8"),
        (["double[pyarrow]", "int32[pyarrow]"], "float32"),
    ],
)
def test_all_columns_have_one_dtype(kind: Any, dtypes: list[str], expected: str) -> None:
    table = pd.DataFrame({"a": [1, 0, 1], "b": [0, 1, 1]}).astype(dict(zip("ab", dtypes, strict=True)))
    source = open_records(kind(table))
    assert source.dtype == np.dtype(expected)
    np.testing.assert_array_equal(source.read([2, 0])[0], [[1, 1], [1, 0]])


def test_mistakes_are_named_with_their_remedies(kind: Any, tmp_path: Path) -> None:
    table = frame()[["a", "b"]]
    table.loc[107, "b"] = np.nan
    for dtype in ("float64", "Float64"):
        source = open_records(kind(table.astype(dtype)))
        with pytest.raises(UserError, match="record 7, column 'b'.*give dsinga.table"):
            source.read(range(20))
    codes = pd.DataFrame({"a": [1, None, 3]}, dtype="UInt8")
    refused(lambda: open_records(kind(codes)).read([1]), "data frame: 'features' has NaN in record 1, column 'a'")

    def fit(names: list[str], **options: Any) -> None:
        model = nn.Sequential([nn.Dense(4)])
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(frame()[names], Y, workspace=tmp_path, progress=False, **options)

    fit(["a", "b", "c"], epochs=1)
    fit(["a", "b", "c"], epochs=2, resume=True)
    refused(lambda: fit(["b", "a", "c"], epochs=3, resume=True), "'data' have other columns, or these")
    refused(lambda: open_records(pd.DataFrame(X, columns=["a", "a", "b"])), "several columns named 'a'")
    with pytest.raises(UserError, match="no label in record 2 of column 'label'; leave records"):
        open_records(frame().assign(label=[0, 1, None, *Y[3:]]), label="label", columns=["a"])
    with pytest.raises(UserError, match="column 'when' of the data frame has dtype datetime64"):
        open_records(pd.DataFrame({"when": pd.to_datetime(["2026-01-01"])}))
    refused(lambda: open_records(frame()[["name"]].astype("category")), "'name'", "categories, not numbers")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"label": "lable"}, "the data frame has no column 'lable'; did you mean 'label'"),
        ({"columns": ["a", "petal"]}, "the data frame has no column 'petal'; its columns are a, b, c, label, name"),
        (
            {},
            r"column 'name' of the data frame has (dtype (str|object)|strings).*, not numbers; leave the column out, "
            r"as in frame.drop\(columns='name'\), or give dsinga.table\(frame, y\) and a net for it, as dsinga.models",
        ),
        ({"columns": []}, "the data frame has no feature columns"),
    ],
)
def test_columns_that_do_not_do_are_named(kind: Any, options: dict[str, Any], expected: str) -> None:
    refused(lambda: open_records(kind(frame()), **options), expected)


@pytest.mark.parametrize("columns", [["a"], ["b", "c"], ["c", "b", "a"]])
def test_small_partitions_of_parquet_which_dask_joins_are_counted_as_they_are_read(tmp_path, columns) -> None:
    for number, rows in enumerate(np.split(np.arange(20), [3, 5, 6, 10, 16])):
        frame().iloc[rows].to_parquet(tmp_path / f"{number}.parquet")
    lazy = dd.read_parquet(tmp_path)
    assert len(lazy["a"].map_partitions(len).compute()) < lazy.npartitions  # so does Dask
    data, labels = open_records(lazy, label="name", columns=columns, classes=NAMES).read(ROWS)
    np.testing.assert_array_equal(data, open_records(frame()[columns]).read(ROWS)[0])
    np.testing.assert_array_equal(labels, Y[ROWS])
