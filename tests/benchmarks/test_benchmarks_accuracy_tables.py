"""Accuracy on tables: figures go into a file once, and its tables name the best and who is level with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pd = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

from tools.benchmarks import accuracy_tables  # noqa: E402
from tools.benchmarks.table_peers import coded, filled  # noqa: E402


def run(*arguments: str) -> str:
    """Return what the tool prints."""
    return CliRunner().invoke(accuracy_tables.main, list(arguments), catch_exceptions=False).output


def test_a_file_is_filled_once_and_printed(tmp_path: Path) -> None:
    """What the file has is not measured again; the best of a column is bold."""
    file = tmp_path / "figures.json"
    chosen = ["--results", str(file), "--set", "diabetes", "--model", "HistGradientBoosting", "--splits", "3"]
    assert run(*chosen).count("diabetes, HistGradientBoosting") == 3
    assert run(*chosen) == ""
    figures = json.loads(file.read_text())
    assert 0 < figures["diabetes"]["HistGradientBoosting"]["0"]["score"] < 1
    of_strong = dict.fromkeys("012", {"score": 0.9, "loss": 1.0, "seconds": 1.0})
    file.write_text(json.dumps({"diabetes": {**figures["diabetes"], "dsinga, strong": of_strong}}))
    printed = run("--results", str(file), "--print")
    assert "| dsinga, strong | **0.9000 ± 0.0000** |" in printed
    assert printed.rstrip().endswith(": level")


def test_columns_of_peers() -> None:
    """A category that is new, a gap and a date become what every peer takes."""
    first = pd.DataFrame({"a": [1.0, None, 3.0], "b": ["x", "y", "x"], "c": pd.to_datetime(["2013-01-02 03:00"] * 3)})
    second = first.assign(b=["z", "y", "x"])
    learnt, tested = filled(*coded(first, second))
    assert tested["b"].cat.codes.tolist() == [-1, 1, 0]
    assert learnt["a"].tolist() == [1, 2, 3]
    assert learnt["a missing"].tolist() == [0, 1, 0]
    assert learnt[["c month", "c day_of_week", "c hour"]].iloc[0].tolist() == [1, 2, 3]
