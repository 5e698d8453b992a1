"""Tests over all records: how a phase is divided into batches, and the batches among the workers of a group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.data import Sampler
from dsinga.errors import UserError
from dsinga.layers import RecordInfo, Rows
from dsinga.worker.all_records import count_batches, readers_of_all_records
from dsinga.worker.batch_reader import BatchReader


def reader(records: int, sizes: list[int]) -> BatchReader:
    """A reader of so many records, whose batches are cut into ``sizes`` rows."""
    store: Any = type("Store", (), {"location": "test.zarr", "__len__": lambda self: records})()
    total, bounds = sum(sizes), np.cumsum([0, *sizes]).tolist()
    parts = tuple(Rows(start, stop, total) for start, stop in zip(bounds, bounds[1:], strict=False))
    sampler = Sampler(records, total, seed=1, chunk=4, shuffle=False, skip=3)
    return BatchReader({"data": store}, {"data": RecordInfo((2,), total)}, sampler, parts)


@given(st.integers(1, 200), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_every_record_is_read_once_and_every_worker_has_rows(records: int, sizes: list[int]):
    if records < len(sizes):
        return
    readers = readers_of_all_records(reader(records, sizes))
    counts = count_batches(readers)
    batches = [each.sampler.rows(step) for each, count in zip(readers, counts, strict=True) for step in range(count)]
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(records))
    for each in readers:
        assert each.batchsize == each.infos["data"].batchsize == each.sampler.batchsize
        assert [part.start for part in each.parts] == [0, *(part.stop for part in each.parts[:-1])]
        assert min(part.stop - part.start for part in each.parts) >= 1
    expected = [len(part) for part in np.array_split(np.arange(records), len(batches))]
    assert [len(batch) for batch in batches] == expected
    if max(expected) > sum(sizes):  # only where smaller batches would leave a worker without rows
        assert -(-records // (len(batches) + 1)) <= max(len(sizes), sum(sizes))
        assert records // -(-records // sum(sizes)) < len(sizes)
    else:
        assert len(batches) == -(-records // sum(sizes))


def test_batches_of_the_same_size_are_cut_as_the_job_says():
    (each,) = readers_of_all_records(reader(300, [50, 30, 20]))
    assert [part.stop - part.start for part in each.parts] == [50, 30, 20]
    larger, smaller = readers_of_all_records(reader(301, [50, 30, 20]))
    assert (larger.batchsize, smaller.batchsize, count_batches([larger, smaller])) == (76, 75, [1, 3])
    assert [part.stop - part.start for part in smaller.parts] == [37, 22, 16]


def test_fewer_records_than_workers_are_refused():
    with pytest.raises(UserError, match="test.zarr has 2 records, which cannot be divided among the 3 workers"):
        readers_of_all_records(reader(2, [1, 1, 1]))
