"""A file of text trains in processes with the bits of numpy arrays in threads."""

from pathlib import Path

import numpy as np
from distributed import Client

import dsinga
from dsinga.data import open_records
from tests.cluster.runs.test_cluster_sources import BLOCK, ROWS, X, Y
from tests.support.small_job import assert_same, linear, with_topology


def test_a_job_trains(threads: Client, processes: Client, tmp_path: Path) -> None:
    lines = (",".join(map(repr, [label, *row])) for label, row in zip(Y.tolist(), X.tolist(), strict=True))
    (tmp_path / "records.csv").write_text("\n".join(lines))
    source = open_records(str(tmp_path / "records.csv"))
    records, labels = source.read(range(ROWS))
    np.testing.assert_array_equal(records, X)
    np.testing.assert_array_equal(labels, Y)
    source.read(range(BLOCK - 10, BLOCK + 10))  # as a user looks at it first, which fills caches
    job = with_topology(linear("batchsize=2000"), 2)
    expected = dsinga.train(job, threads, data=(X, Y), progress=False).params
    assert_same(dsinga.train(job, processes, data=source, progress=False).params, expected)
