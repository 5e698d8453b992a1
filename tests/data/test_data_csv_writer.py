"""write_csv writes one line for each row, and leaves no incomplete file behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsinga.data import write_csv
from dsinga.errors import UserError


def test_each_row_is_a_line_that_reads_back_exactly(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    write_csv(tmp_path / "new" / "o.csv", [rows[:3], rows[3:]])
    text = (tmp_path / "new" / "o.csv").read_text()
    assert text.count("\n") == 5
    np.testing.assert_array_equal(np.loadtxt(text.splitlines(), delimiter=",", dtype=np.float32), rows.reshape(5, 6))


def test_integers_are_written_as_integers_with_the_given_separator(tmp_path: Path) -> None:
    write_csv(tmp_path / "o.csv", [np.arange(4).reshape(2, 2)], separator=" ")
    assert (tmp_path / "o.csv").read_text() == "0 1\n2 3\n"


def test_an_error_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    def failing():
        yield np.zeros((1, 1))
        raise ZeroDivisionError

    (tmp_path / "o.csv").write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_csv(tmp_path / "o.csv", failing())
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("o.csv", "before")]


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"o\.csv cannot be written: .*(Not a directory|File exists)"):
        write_csv(tmp_path / "file" / "o.csv", [np.zeros((1, 1))])
