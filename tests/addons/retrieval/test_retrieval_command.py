"""The command retrieve: what it prints."""

from pathlib import Path

import numpy as np

from dsinga.data import write_store
from tests.support.command_line import Dsinga


def test_retrieve_measures_the_ranking(dsinga: Dsinga, folder: Path) -> None:
    write_store(folder / "q.zarr", [(np.array([[1.0, 0], [0, 1]]), np.array([0, 1]))])
    write_store(folder / "d.zarr", [(np.array([[3.0, 1], [2, 1], [1, 3]]), np.array([0, 1, 1]))])
    ranked = dsinga("retrieve", "q.zarr", "d.zarr", "--at", "1")
    assert ranked.returncode == 0, ranked.stderr
    lines = [line.rsplit(maxsplit=1) for line in ranked.stdout.splitlines()]
    assert lines[:2] == [["mean average precision", "1.0000"], ["precision at 1", "1.0000"]]
    euclidean = dsinga("retrieve", "q.zarr", "d.zarr", "--distance", "euclidean", "--at", "3")
    assert "mean average precision   0.7500" in euclidean.stdout  # (2, 1) is nearer to (1, 0) than (3, 1)

    write_store(folder / "bare.zarr", [(np.eye(2), None)])
    refused = dsinga("retrieve", "q.zarr", "d.zarr", "--at", "4")
    assert refused.returncode == 2
    assert refused.stderr == "dsinga: k must be between 1 and the 3 rows of the database, not 4\n"
    assert "bare.zarr has no labels" in dsinga("retrieve", "q.zarr", "bare.zarr").stderr
    assert "nowhere.zarr was not found" in dsinga("retrieve", "nowhere.zarr", "d.zarr").stderr
