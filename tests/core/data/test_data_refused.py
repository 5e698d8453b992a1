"""What ``data`` refuses: each mistake in a line, with the name and the remedy that its error must have."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga.data import RecordStore, open_records, open_store, write_csv, write_store
from dsinga.data.conversion import as_labels, as_records
from tests.core.data.test_data_zarr import write_group
from tests.support.refusals import check_refusal, refusal

ROWS: Any = np.ones((4, 2))
MISTAKES = [
    refusal(lambda: as_records(np.array([1j])), "records must be numbers", "give the real"),
    refusal(lambda: as_labels(np.array([1j])), "labels must be integers", "give the real"),
    refusal(lambda: as_records(np.array(["a"])), "records must be numbers", "give codes of"),
    refusal(lambda: as_labels(np.array(["a"])), "labels must be integers", "codes of the strings, as in [classes"),
    refusal(lambda: as_records(np.array([None])), "records must be numbers", "give an array"),
    refusal(lambda: as_records(np.array([[1, 2], [3, "a"]], object)), "record 1 has 'a' in column 1", "the column out"),
    refusal(lambda: open_records(np.ones((2, 2), object)), "'x': records must", "all are numbers", "'float32')"),
    refusal(lambda: as_labels(np.array([None])), "labels must be integers", "give an array"),
    refusal(lambda: as_records(np.array(["2020-01-01"], "M8[D]")), "records must be numbers", "give a number"),
    refusal(lambda: as_labels(np.array(["2020-01-01"], "M8[D]")), "labels must be integers", "give a number"),
    refusal(lambda: as_records(np.zeros(1, [("a", "f4")])), "records must be numbers", "give one array"),
    refusal(lambda: as_labels(np.zeros(1, [("a", "f4")])), "labels must be integers", "give one array"),
    refusal(lambda: as_records(np.array([1e300])), "records have values beyond", "scale them"),
    refusal(lambda: as_labels(np.array([1e300])), "labels have values beyond", "scale them"),
    refusal(lambda: as_labels(np.array([(1 << 64) - 1], np.uint64)), "18446744073709551615 does", "into 64 bits"),
    refusal(lambda: open_records("x.npy"), "x.npy is a file of numpy", "numpy.load('x.npy', mmap_mode=\"r\")"),
    refusal(lambda tmp_path: missing_store(tmp_path), "train_x.zarr was not found; make a store"),
    refusal(lambda: RecordStore("nope://x"), "nope://x cannot be opened", "not known: nope"),
    refusal(lambda: write_csv(Path(__file__) / "o.csv", [np.zeros((1, 1))]), "o.csv cannot be written:"),
    refusal(lambda tmp_path: write_store(tmp_path / "a", (ROWS, ROWS)), "whole arrays", "write_store(path, [(x, y)])"),
    refusal(lambda tmp_path: write_store(tmp_path / "a", ROWS, ROWS), "whole arrays", "write_store(path, [(x, y)])"),
    refusal(lambda tmp_path: open_store(large(tmp_path)).read([0]), "g: 'x', rows 0 to 3", "the range of float32"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)


def large(folder: Path) -> Path:
    return write_group(folder / "g", {"x": np.full((4, 1), 1e300)})


def missing_store(folder: Path) -> None:
    (folder / "train_x.py").touch()  # no kind of data, so no guess
    open_records(folder / "train_x.zarr")
