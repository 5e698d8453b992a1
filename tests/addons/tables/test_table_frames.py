"""Frames of any library, in any partitions: the same definition and the same records, to the bit."""

import datetime
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsinga
from tests.addons.tables.test_table_records import flights

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
dd = pytest.importorskip("dask.dataframe")

MISSING = st.none()
VALUES = {
    "number": st.floats(-1e38, 1e38) | st.just(float("nan")) | st.just(-0.0),
    "whole": st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    "flag": st.booleans() | MISSING,
    "text": st.sampled_from(["a", "b", "ü", "", "1"]) | MISSING,
    "date": st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)) | MISSING,
}


@st.composite
def frames(draw):
    """Return a frame with some columns, and the places where it is cut."""
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5, unique=True))
    rows = draw(st.integers(1, 12))
    columns = {name: draw(st.lists(VALUES[name], min_size=rows, max_size=rows)) for name in names}
    frame = pandas.DataFrame({name: pandas.Series(values, dtype=_dtype(name)) for name, values in columns.items()})
    return frame, sorted(draw(st.lists(st.integers(0, rows), max_size=3)))


def _dtype(name):
    return {"flag": "boolean", "text": "str", "date": "datetime64[us]"}.get(name)


def in_dask(frame, cuts):
    from dask import delayed

    ends = [0, *cuts, len(frame)]
    parts = [delayed(frame.iloc[start:end]) for start, end in zip(ends, ends[1:], strict=False)]
    return dd.from_delayed(parts, meta=frame.iloc[:0], verify_meta=False)


def in_arrow(frame, cuts):
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    ends = [0, *cuts, len(frame)]
    return pyarrow.concat_tables(table.slice(start, end - start) for start, end in zip(ends, ends[1:], strict=False))


def in_polars(frame, cuts):
    polars = pytest.importorskip("polars")
    return polars.from_arrow(in_arrow(frame, cuts))


def learnt(frame):
    """Return the definition and the records of a frame, or the error that says why there are none."""
    try:
        table = dsinga.table(frame)
    except dsinga.UserError as error:
        return str(error).replace("the Dask data frame", "the data frame")
    return table.definition, table.read(np.arange(len(table)))[0].tobytes()


@settings(max_examples=10, deadline=None)
@given(frames(), st.sampled_from([in_dask, in_arrow, in_polars]))
def test_any_cut_of_any_library_gives_the_same_records(frame_and_cuts, convert):
    frame, cuts = frame_and_cuts
    assert learnt(convert(frame, cuts)) == learnt(frame)


@settings(max_examples=10, deadline=None)
@given(frames(), st.randoms())
def test_other_codes_dtypes_and_orders_of_columns_give_the_same_records(frame_and_cuts, random):
    frame, _ = frame_and_cuts
    try:
        table = dsinga.table(frame)
    except dsinga.UserError:
        return
    other = frame.convert_dtypes(dtype_backend=random.choice(["numpy_nullable", "pyarrow"]))
    if "text" in frame and frame.text.notna().any():
        texts = [*frame.text.dropna().unique(), "unused"]
        random.shuffle(texts)
        other["text"] = pandas.Categorical(frame.text, categories=texts, ordered=random.random() < 0.5)
    other = other[random.sample(list(other), len(other.columns))].assign(new=1)
    records = dsinga.table(other, columns=table.definition)
    rows = np.arange(len(frame))
    np.testing.assert_array_equal(records.read(rows)[0], table.read(rows)[0])


def test_a_cluster_learns_the_same_where_the_parts_are(threads, tmp_path):
    frame = flights(200)
    known = dsinga.table(frame, label="late")
    lazy = in_dask(frame, [30, 30, 90])
    futures = threads.map(lambda start: frame[start : start + 50], range(0, 200, 50))
    pyarrow.parquet.write_table(in_arrow(frame, []), tmp_path / "flights.parquet", row_group_size=60)
    with threads.as_current():
        of_futures = dd.from_delayed(futures, meta=frame)
        for data in (lazy, lazy.persist(), of_futures, of_futures.persist(), tmp_path / "flights.parquet"):
            table = dsinga.table(data, label="late")
            assert table.definition == known.definition
            for got, expected in zip(table.read(np.arange(200)), known.read(np.arange(200)), strict=True):
                np.testing.assert_array_equal(got, expected)


def test_small_partitions_of_parquet_are_those_of_the_frame_though_dask_joins_them(tmp_path):
    random = np.random.default_rng(0)
    whole = pandas.DataFrame({"x": random.random(60), "kind": random.choice(["a", "b"], 60), "y": np.arange(60) % 2})
    for number, start in enumerate(range(0, 60, 10)):
        whole[start : start + 10].to_parquet(tmp_path / f"{number}.parquet")
    frame = dd.read_parquet(tmp_path)
    rows, expected = [59, 0, 31], dsinga.table(whole, label="y")
    for part in (frame, frame[["y", "x", "kind"]], frame.assign(x=frame.x * 1)):
        table = dsinga.table(part, label="y")
        assert table.frame.lengths == [10] * 6
        assert table.definition == expected.definition
        np.testing.assert_array_equal(table.read(rows)[0], expected.read(rows)[0])
        np.testing.assert_array_equal(table.read(rows)[1], expected.read(rows)[1])


def test_large_labels_stay_where_they_are(monkeypatch):
    frame = flights(200).assign(late=np.arange(200) % 3)
    monkeypatch.setattr("dsinga.addons.tables.records.SMALL_BYTES", 100)
    table = dsinga.table(in_dask(frame, [0, 30, 90]), label="late")
    assert not table.columns[1].in_memory
    assert table.label_range() == pickle.loads(pickle.dumps(table)).label_range() == (0, 2)
    np.testing.assert_array_equal(table.read(np.arange(200))[1], frame.late)


def test_frames_of_dask_that_follow_each_other_are_read():
    frame = flights()
    parts = [dd.from_pandas(frame[rows], npartitions=2) for rows in (slice(0, 250), slice(250, 600))]
    whole, joined = dsinga.table(frame, label="late"), dsinga.table(dd.concat(parts), label="late")
    np.testing.assert_array_equal(joined.columns[0].load(0, 600), whole.columns[0].load(0, 600))
