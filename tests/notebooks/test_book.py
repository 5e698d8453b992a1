"""The notebooks of the Book run without downloaded data, on a sample that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.notebook_cells import ROOT, execute

CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks" / "book").glob("*.ipynb"))


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_chapter_runs_without_warnings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSINGA_DATA", raising=False)
    book = execute(f"book/{name}", tmp_path)
    outputs: list[Any] = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert not [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    pictures = [output for output in outputs if {"image/png", "text/html"} & set(output.get("data", ()))]
    assert len(pictures) >= 3  # the net, its training, its result


def test_the_chapters_are_numbered_in_the_order_of_the_book() -> None:
    assert [int(name.split("-")[0]) for name in CHAPTERS] == sorted({int(name.split("-")[0]) for name in CHAPTERS})
