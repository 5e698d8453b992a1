"""SourceContract: tests that every source of records must pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from distributed.protocol.pickle import dumps, loads

from dsinga.data import RecordSource, open_records
from dsinga.data.column import PointRanges
from dsinga.data.record_source import clear_cache

READERS = 4  # threads that read at once
MOST_PICKLED = 1 << 16  # bytes of a pickled source of files, apart from records


class SourceContract:
    """The tests that every source of records must pass; a subclass, named ``Test...``, creates a source.

    A source must:

    - return the same records each time it is opened, in any order and any number of threads, and after pickling, in
      another process;
    - load the rows of a block in a dtype that casts safely to the records' dtype;
    - pickle no records if they are in files.

    >>> import numpy as np
    >>> from dsinga.testing import SourceContract
    >>> class TestCounts(SourceContract):  # in a file test_counts.py, run by pytest
    ...     def create(self):
    ...         return np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    """

    def create(self) -> Any:
        """Return a new :class:`dsinga.data.DataSource`, or the result of its ``open``; subclasses override this."""
        pytest.skip("the test class creates no source")

    def test_rows_are_read_in_any_order(self) -> None:
        """Rows in another order, some twice, equal the records in order, in the promised dtypes."""
        source = self._open()
        expected = source.read(np.arange(len(source)))
        rows = np.random.default_rng(0).integers(0, len(source), 2 * len(source))
        assert_equal(source.read(rows), (expected[0][rows], None if expected[1] is None else expected[1][rows]))
        assert (expected[0].dtype, expected[0].shape) == (source.dtype, (len(source), *source.shape))
        if expected[1] is not None:
            assert (expected[1].dtype, expected[1].shape) == (source.label_dtype, (len(source), *source.label_shape))

    def test_it_gives_the_same_records_whenever_it_is_opened(self) -> None:
        """A source gives the same records each time that it is opened, as jobs do several times."""
        assert_equal(read_all(self._open()), read_all(self._open()))

    def test_a_block_of_a_column_is_loaded(self) -> None:
        """A column loads its last block's rows, in a dtype that casts safely to the promised one."""
        source = self._open()
        for column, expected in zip(source.columns, read_all(source), strict=False):
            start = (column.length - 1) // column.block * column.block
            block = column.load(start, column.length)
            assert expected is not None
            assert np.can_cast(block.dtype, column.dtype)
            np.testing.assert_array_equal(block, expected[start:])

    def test_a_region_of_records_is_read(self) -> None:
        """Some points of each record and label equal the whole one's, or whole ones are given."""
        source = self._open()
        regions = [region_of(shape) for shape in (source.shape, source.label_shape)]
        part = source.in_region(*regions)
        for array, whole, region in zip(read_all(part), read_all(source), regions, strict=True):
            if array is not None and whole is not None:
                index = (slice(None), *(slice(*ends) for ends in region or ()))
                np.testing.assert_array_equal(array, whole[index] if array.shape != whole.shape else whole)
        shapes = [array.shape[1:] for array in read_all(part) if array is not None]
        assert shapes == [part.shape, part.label_shape][: len(shapes)]

    def test_threads_read_it_at_once(self) -> None:
        """Several threads can read the source at once and get the same records."""
        source = self._open()
        expected = read_all(source)
        clear_cache()
        with ThreadPoolExecutor(READERS) as pool:
            for records in pool.map(read_all, [source] * READERS):
                assert_equal(records, expected)

    def test_another_process_reads_it(self) -> None:
        """A source can be pickled, as for Dask workers; the pickle has no records from files."""
        source = self._open()
        assert [column.why_unsendable() for column in source.columns] == [""] * len(source.columns)
        pickled = dumps(source)
        if all(column.from_files for column in source.columns):
            assert len(pickled) < MOST_PICKLED + len(source) * source.record_bytes / 2
        expected = read_all(source)
        clear_cache()
        assert_equal(read_all(loads(pickled)), expected)

    def _open(self) -> RecordSource:
        clear_cache()
        return open_records(self.create())


def region_of(shape: tuple[int, ...]) -> PointRanges | None:
    """Return a part of a row to read: the last two thirds of each axis, all channels; None for single numbers."""
    ranges = tuple((size // 3, size) for size in shape)
    return ((0, shape[0]), *ranges[1:]) if len(shape) > 1 else ranges or None


def read_all(source: RecordSource) -> tuple[np.ndarray, np.ndarray | None]:
    """Read all records and labels of a source."""
    return source.read(np.arange(len(source)))


def assert_equal(first: tuple[np.ndarray, np.ndarray | None], second: tuple[np.ndarray, np.ndarray | None]) -> None:
    """Assert that records and labels are equal, in equal dtypes."""
    assert (first[1] is None) == (second[1] is None)
    for array, expected in zip(first, second, strict=True):
        if array is not None and expected is not None:
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
