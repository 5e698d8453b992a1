"""Settings of a search that have secrets, such as stores by their URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsinga import SearchResult, UserError
from dsinga.api.search_result import read_outcome, write_outcome, write_table
from dsinga.monitor import History


def test_no_secret_is_in_the_files_and_the_table_of_a_search(tmp_path: Path) -> None:
    setting = {"path": "https://me:a-secret@host/x.zarr", "rate": 0.1}
    row = {"number": 0, **setting, "state": "finished", "score": 1.0, "steps": 5, "seconds": 2.0, "remark": ""}
    result = SearchResult("val/loss", higher=False)
    result.add(row, setting, History())
    write_outcome(tmp_path / "0", setting, row)
    write_table(tmp_path, result)
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    texts += [repr(result), result._repr_html_()]
    assert all("https://***@host/x.zarr" in text and "a-secret" not in text for text in texts)
    assert result.best_setting == setting
    found = read_outcome(tmp_path / "0", setting)
    assert found is not None
    assert found[0]["score"] == 1.0
    with pytest.raises(UserError, match="is of the setting"):
        read_outcome(tmp_path / "0", {**setting, "rate": 0.2})
