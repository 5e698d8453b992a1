"""Tables that are folders of parquet: their parts are row groups, which each process reads by itself."""

import logging
import os
import pickle

import fsspec
import numpy as np
import pytest

import dsinga
from dsinga.addons.tables import parquet, records
from dsinga.addons.tables.parquet import ParquetFrame
from dsinga.base.errors import UserError
from dsinga.data.record_source import clear_cache
from dsinga.data.stores import store_format
from dsinga.job import LayerConf, LayerType, StoreConf
from dsinga.reading.open_layer import open_layer
from dsinga.reading.sampler import Sampler
from dsinga.testing import SourceContract
from tests.support.refusals import refused

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def rows_of(start, stop):
    """Return rows of a table with numbers, texts, dates, gaps and a label."""
    numbers = np.arange(start, stop)
    columns = {
        "size": pa.array(numbers / 7, mask=numbers % 5 == 0),
        "count": numbers % 90,
        "name": pa.array(np.array(["a", "bb", "c"])[numbers % 3], mask=numbers % 11 == 0),
        "when": numbers.astype("M8[h]").astype("M8[us]"),
        "late": numbers % 2,
    }
    return pa.table(columns)


def write(folder, *lengths, group_rows=40):
    """Write files of so many rows; return all rows."""
    ends = np.cumsum([0, *lengths])
    for number, (start, stop) in enumerate(zip(ends, ends[1:], strict=False)):
        pq.write_table(rows_of(start, stop), folder / f"{number}.parquet", row_group_size=group_rows)
    return rows_of(0, ends[-1])


def read(frame, names=None):
    """Return all rows of a frame."""
    tables = [frame.read(part, names or frame.names) for part in range(len(frame.lengths))]
    assert [table.num_rows for table in tables] == list(frame.lengths)
    return [row for table in tables for row in table.to_pylist()]


class TestFolder(SourceContract):
    """The records of a folder keep the contract of sources."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        write(tmp_path, 100, 30)
        self.path = tmp_path

    def create(self):
        return dsinga.table(self.path, label="late")


def test_a_folder_gives_the_records_of_the_frame(tmp_path):
    whole = dsinga.table(write(tmp_path, 100, 30, 75), label="late")
    table = dsinga.table(tmp_path, label="late")
    assert table.definition == whole.definition
    rows = np.random.default_rng(0).permutation(205)
    for got, expected in zip(table.read(rows), whole.read(rows), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert len(pickle.dumps(ParquetFrame(str(tmp_path)))) < 2000
    for path in (tmp_path / "1.parquet", str(tmp_path / "1*.parquet")):
        part = dsinga.table(path, label="late")
        store = StoreConf(batchsize=[1], **part.named_fields())  # of a job, which names the path
        layer = LayerConf(name="data", type=LayerType.kRecordInput, store_conf=store)
        assert len(open_layer(layer, ())[0]) == len(part) == 30


@pytest.mark.parametrize("part_rows", [3, 40, 60, 1000])
def test_parts_are_row_groups_joined_or_cut(tmp_path, monkeypatch, caplog, part_rows):
    expected = write(tmp_path, 100, 30).to_pylist()
    monkeypatch.setattr(parquet, "PART_BYTES", 5 * 8 * part_rows)
    with caplog.at_level(logging.WARNING):
        frame = ParquetFrame(str(tmp_path))
    assert max(frame.lengths) <= part_rows
    assert ("40 rows, of which up to 3 are read" in caplog.text) == (part_rows == 3)
    assert len(frame.lengths) == {3: 14 * 2 + 7 + 10, 40: 4, 60: 3, 1000: 1}[part_rows]
    assert read(frame) == expected
    backwards = [frame.read(part, ["count"]) for part in reversed(range(len(frame.lengths)))]
    assert pa.concat_tables(reversed(backwards))["count"].to_pylist() == [row["count"] for row in expected]
    monkeypatch.setattr(parquet, "MOST_CUTS", 2)
    if part_rows == 3:
        refused(lambda: ParquetFrame(str(tmp_path)), "row groups of up to 40 rows, .* at most 3 rows in each")


def test_names_of_folders_are_columns(tmp_path):
    for year, place in ((2023, "B 1"), (2024, None)):
        folder = tmp_path / f"year={year}" / f"place={'__HIVE_DEFAULT_PARTITION__' if place is None else 'B%201'}"
        folder.mkdir(parents=True)
        write(folder, 10)
    (tmp_path / "_temporary").mkdir()
    write(tmp_path / "_temporary", 10)
    frame = ParquetFrame(str(tmp_path))
    rows = read(frame, ["year", "count", "place"])
    assert rows == [{"year": y, "count": n, "place": p} for y, p in ((2023, "B 1"), (2024, None)) for n in range(10)]
    assert {row["place"] for row in read(frame, ["place"])} == {"B 1", None}
    assert "place" in dsinga.table(tmp_path, label="late").parts.categories


def test_an_index_of_pandas_is_no_column(tmp_path, caplog):
    expected, whole = dsinga.table(rows_of(0, 30), label="late"), rows_of(0, 30).to_pandas()
    whole[:10].to_parquet(tmp_path / "0.parquet")  # of a range nothing is written
    whole[10:20].set_index([[7] * 10]).to_parquet(tmp_path / "1.parquet")
    whole[20:].assign(day=whole["count"] % 7).set_index("day").to_parquet(tmp_path / "2.parquet")
    in_memory = pa.Table.from_pandas(whole.assign(day=whole["count"] % 7).set_index("day"))
    for data, names in ((tmp_path, "__index_level_0__, day"), (in_memory, "day")):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert dsinga.table(data, label="late").definition == expected.definition
        assert f"columns left out, the index of a data frame: {names}" in caplog.text


def test_a_url_is_read():
    filesystem = fsspec.filesystem("memory")
    with filesystem.open("/tables/x/0.parquet", "wb") as file:
        pq.write_table(rows_of(0, 50), file, row_group_size=20)
    frame = ParquetFrame("memory://tables/x")
    assert read(frame) == rows_of(0, 50).to_pylist()
    filesystem.rm("/tables", recursive=True)
    refused(lambda: frame.read(0, ["count"]), r"tables/x/0.parquet cannot be read")


def without(name):
    return rows_of(0, 9).drop_columns([name])


def with_texts(name):
    table = rows_of(0, 9)
    return table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (without("count"), r"1.parquet has no column 'count', which .*0.parquet has"),
        (without("count").append_column("counts", [range(9)]), "no column 'count', .* did you mean 'counts'"),
        (rows_of(0, 9).append_column("new", [range(9)]), r"0.parquet has no column 'new', which .*1.parquet has"),
        (with_texts("count"), r"1.parquet has texts in column 'count', but .*0.parquet has numbers"),
        (pa.table([[1], [2]], names=["a", "a"]), r"1.parquet has several columns named 'a'"),
        (b"x" * 100, r"1.parquet is no complete file of parquet"),
        (b"x" * 100 + b"\x30\0\0\0PAR1", r"1.parquet cannot be read"),
    ],
)
def test_a_file_unlike_the_others_is_named(tmp_path, table, message):
    write(tmp_path, 20)
    if isinstance(table, bytes):
        (tmp_path / "1.parquet").write_bytes(table)
    else:
        pq.write_table(table, tmp_path / "1.parquet")
    refused(lambda: ParquetFrame(str(tmp_path)), message)


def test_types_of_one_kind_may_differ(tmp_path):
    write(tmp_path, 20)
    table = rows_of(20, 30)
    for place, other in ((1, pa.float32()), (2, pa.large_string()), (3, pa.timestamp("s"))):
        table = table.set_column(place, table.column_names[place], table.column(place).cast(other))
    pq.write_table(table, tmp_path / "1.parquet")
    empty = rows_of(30, 30).set_column(0, "size", pa.nulls(0))
    pq.write_table(empty, tmp_path / "2.parquet")
    frame = ParquetFrame(str(tmp_path))
    assert frame.lengths == [20, 10]
    assert [row["count"] for row in read(frame)] == list(range(30))
    assert dsinga.table(tmp_path, label="late").definition == dsinga.table(rows_of(0, 30), label="late").definition
    halves = rows_of(30, 40).set_column(4, "late", [np.full(10, 0.5)])
    pq.write_table(halves, tmp_path / "3.parquet")
    with pytest.raises(dsinga.UserError, match="'late' has the label 0.5 in record 30, but whole numbers in its first"):
        dsinga.table(tmp_path, label="late").read(np.arange(40))


def test_a_changed_file_is_refused(tmp_path):
    write(tmp_path, 20)
    frame = pickle.loads(pickle.dumps(ParquetFrame(str(tmp_path))))
    pq.write_table(rows_of(1, 21), tmp_path / "0.parquet", row_group_size=40)
    refused(lambda: frame.read(0, ["late"]), r"0.parquet has been changed since it was opened")


def test_a_folder_without_parquet_and_a_pipe_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b")
    refused(lambda: dsinga.table(tmp_path), r"has no files of parquet, whose names end in .parquet")
    os.mkfifo(tmp_path / "x.parquet")
    refused(lambda: dsinga.table(tmp_path), r"x.parquet cannot be read: it is a pipe")


def test_a_row_group_is_decoded_once_an_epoch(tmp_path, monkeypatch):
    """Parts of a large table are the blocks that training shuffles, though they have unequal rows."""
    write(tmp_path, 100, 30, 75)
    monkeypatch.setattr(parquet, "PART_BYTES", 5 * 8 * 40)
    monkeypatch.setattr(records, "SMALL_BYTES", 0)
    monkeypatch.setattr(store_format, "SMALL_BYTES", 0)
    monkeypatch.setattr(store_format, "CHUNK_BYTES", 0)
    table = dsinga.table(tmp_path, label="late")
    assert table.blocks == (40, 80, 100, 130, 170, 205)
    read_parts = []
    monkeypatch.setattr(
        ParquetFrame,
        "_read",
        lambda self, rows, names, read=ParquetFrame._read: (
            read_parts.append((*rows[:2], *names[:1])),
            read(self, rows, names),
        )[1],
    )
    clear_cache()
    sampler = Sampler(205, 15, 0, table.blocks)
    batches = [table.read(sampler.rows(step)) for step in range(14)]
    assert len(read_parts) == len(set(read_parts)) == 2 * 6
    whole = dsinga.table(rows_of(0, 205), columns=table.definition)
    for step, batch in enumerate(batches):
        for got, expected in zip(batch, whole.read(sampler.rows(step)), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_damaged_page_is_refused_and_so_are_bytes_changed_under_a_run(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"a": np.arange(5000.0), "late": np.arange(5000) % 2})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    opened = dsinga.table(path, label="late")
    opened.frame.read(0, ["a"])
    with open(path, "r+b") as file:
        file.seek(9000)
        file.write(b"\xff")
    os.utime(path, ns=(0, 1))  # whatever the clock of the file system
    clear_cache()
    for frame in (opened.frame, pickle.loads(pickle.dumps(opened.frame))):
        with pytest.raises(UserError, match=r"x.parquet has been changed since it was opened"):
            frame.read(0, ["a"])
    for read in (lambda: ParquetFrame(str(path)).read(0, ["a"]), lambda: dsinga.table(path, label="late")):
        with pytest.raises(UserError, match=r"x.parquet cannot be read: .*CRC checksum verification failed"):
            read()


@pytest.mark.parametrize(
    "entry", [b"{", b"\xff", b"[]", b'{"index_columns": 3}', b'{"index_columns": "a"}', b"[" * 100_000]
)
def test_a_damaged_entry_of_pandas_is_one_sentence(tmp_path, entry):
    table = rows_of(0, 20).replace_schema_metadata({b"pandas": entry})
    pq.write_table(table, tmp_path / "0.parquet")
    for data, name in ((tmp_path, "0.parquet"), (table, "the data frame")):
        with pytest.raises(UserError, match=f"{name} has a damaged entry 'pandas' in the metadata"):
            dsinga.table(data, label="late")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("count=3", "0.parquet has the column 'count', which the name of its folder 'count=3' gives, too"),
        ("year=1/year=2", "0.parquet lies in the folders year=1, year=2, which name a column twice"),
    ],
)
def test_a_folder_that_names_a_column_again_is_refused(tmp_path, folder, message):
    (tmp_path / folder).mkdir(parents=True)
    write(tmp_path / folder, 10)
    refused(lambda: ParquetFrame(str(tmp_path)), message)


@pytest.mark.parametrize("part_rows", [1, 10**6])
def test_the_end_of_a_file_of_many_row_groups_is_read_once(tmp_path, monkeypatch, part_rows):
    write(tmp_path, 300, group_rows=1)
    monkeypatch.setattr(parquet, "PART_BYTES", 5 * 8 * part_rows)
    frame, ends = ParquetFrame(str(tmp_path)), []
    monkeypatch.setattr(
        parquet, "read_end", lambda path, read_end=parquet.read_end: (ends.append(path), read_end(path))[1]
    )
    assert len(frame.lengths) == (300 if part_rows == 1 else 1)
    assert read(frame) == rows_of(0, 300).to_pylist()
    assert len(ends) == 1


def test_a_csv_is_read_by_pandas(tmp_path):
    (tmp_path / "flats.csv").write_text("size,rent\n40,800\n")
    refused(lambda: ParquetFrame(str(tmp_path / "flats.csv")), "flats.csv", "pandas.read_csv")
