"""The benchmarks for GPUs: a failure stops no other table, and a call goes on with what the file lacks."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tools.benchmarks import gpu, gpu_turns


def run(*arguments: str) -> Result:
    return CliRunner().invoke(gpu.main, ["--no-install", *arguments])


def test_a_failing_table_stops_no_other_and_others_stay_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def broken(*_: Any) -> Any:
        yield {"rows": 1}
        raise KeyError("rows")

    monkeypatch.setitem(gpu.TABLES, "nets", broken)
    monkeypatch.setitem(gpu.TABLES, "tests", lambda *_: [{"gemm": 1}])
    file = tmp_path / "gpu.json"
    file.write_text('{"compiled": {"runs": {}}}')
    printed = run("nets", "tests", "--json", str(file))
    assert "the table 'nets' failed: KeyError: 'rows'" in printed.output
    assert printed.exit_code == 1
    assert "1 of the figures could not be measured" in printed.output
    assert list(json.loads(file.read_text())) == ["compiled", "nets", "tests"]


def test_a_turn_ends_with_the_time_of_its_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_turns.Deadline, "left", lambda: 1.01)
    assert gpu_turns.json_of("sleep", "60") == {"failed": "took more than 1 s"}
    monkeypatch.setattr(gpu_turns.Deadline, "left", lambda: 0.5)
    assert gpu_turns.turn("gpu_capture") == {"failed": "no time was left for it"}


def test_a_call_goes_on_with_what_the_file_lacks_while_there_is_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Tables that failed are made again; those for which there is no time are left to the next call."""
    made: list[str] = []

    def table(name: str) -> Any:
        def figures(*_: Any) -> Any:
            made.append(name)
            yield {"rows": 1}

        return figures

    monkeypatch.setattr(gpu, "TABLES", {name: table(name) for name in gpu.TABLES})
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({"tests": {"gemm": 1}, "nets": {"failed": "took more than 1 s"}}))
    assert "no time is left for the table 'nets_bf16'" in run("--seconds", "0", "--json", str(file)).output
    assert made == []
    assert run("--json", str(file)).exit_code == 0
    assert made == [name for name in gpu.TABLES if name != "tests"]
    assert set(json.loads(file.read_text())) == set(gpu.TABLES)
