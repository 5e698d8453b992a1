"""A search's folder that was edited by hand: what is damaged is named in one sentence before anything trains."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dsinga
from dsinga.addons.search.metric_values import Rung
from dsinga.addons.search.result import OUTCOME_FILE, read_outcome, write_outcome
from dsinga.addons.search.setting import Setting
from dsinga.base.errors import UserError
from dsinga.job import Job
from tests.support.refusals import refused

RUNGS = [Rung(2, 8), Rung(8, 8)]
ROW = {"number": 0, "rate": 0.5, "state": "finished", "score": 0.25, "steps": 8, "seconds": 1.5, "remark": ""}
WRONG = (None, "x", 7, [], {}, [1], True)
# What cannot be told from what was written: no row, a score, a number, seconds, a remark, the copy of the setting.
RIGHT = ("row null", "score null", "score 7", "seconds 7", 'remark "x"', "identity null", "setting {}")


def is_right(name: str, value: Any) -> bool:
    return f"{name} {json.dumps(value)}" in RIGHT


def outcomes(folder: Path) -> Any:
    return read_outcome(folder, Setting({"rate": 0.5}, {"rate": 0}), "val/loss", RUNGS)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The folder of a setting that has ended two rungs."""
    first = {**ROW, "state": "stopped", "rung": 1}
    write_outcome(tmp_path, Setting({"rate": 0.5}, {"rate": 0}), {**ROW, "rung": 2}, "val/loss", RUNGS, [first])
    assert len(outcomes(tmp_path)[0]) == 2
    return tmp_path


@pytest.mark.parametrize("part", ["identity", "monitor", "row", "rungs", "earlier", "setting"])
def test_each_field_that_is_wrong_is_named(written: Path, part: str) -> None:
    path = written / OUTCOME_FILE
    whole = json.loads(path.read_text())
    for value in WRONG:
        if not is_right(part, value):
            path.write_text(json.dumps({**whole, part: value}))
            refused(lambda: outcomes(written), str(written))
    if part in ("row", "earlier"):
        row = whole["row"] if part == "row" else whole["earlier"][0]
        for name in ("rung", "state", "score", "steps", "seconds", "remark"):
            without = {other: value for other, value in row.items() if other != name}
            rows = [{**row, name: value} for value in WRONG if not is_right(name, value)]
            for damaged in [without, *(each for each in rows if each != row and each["steps"] != 7)]:
                path.write_text(json.dumps({**whole, part: damaged if part == "row" else [damaged]}))
                refused(lambda: outcomes(written), f"{OUTCOME_FILE} cannot be read: .*; remove the folder")


@pytest.mark.parametrize("keep", [0, 1, 60, -3])
def test_a_truncated_file_is_named(written: Path, keep: int) -> None:
    path = written / OUTCOME_FILE
    path.write_bytes(path.read_bytes()[:keep])
    refused(lambda: outcomes(written), f"{OUTCOME_FILE} cannot be read")


EDITS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "copied": (lambda folder: shutil.copytree(folder / "setting-0", folder / "setting-1"), "setting-1 is of the se"),
    "renamed": (lambda folder: (folder / "setting-0").rename(folder / "setting-1"), "setting-1 is of the setting seed"),
    "a file": (lambda folder: (folder / "setting-1").write_text(""), "setting-1/setting.json cannot be read"),
    "an earlier checkpoint": (
        lambda folder: (folder / "setting-0/checkpoint/step4").rename(folder / "setting-0/checkpoint/step2"),
        "step2 is not of step 4, whose params are the best; remove .*setting-0 to train it again",
    ),
    "metrics": (lambda folder: (folder / "setting-0/metrics.jsonl").write_text("{}\n"), "metrics.jsonl:1: a row"),
}


def test_a_folder_that_was_moved_is_named(short: Job, client: Client, tmp_path: Path) -> None:
    whole, search = tmp_path / "whole", {"job": short, "client": client, "progress": False}
    dsinga.search(**search, space={"seed": [1]}, workspace=whole)
    for name, (edit, message) in EDITS.items():
        edit(shutil.copytree(whole, folder := tmp_path / name))
        seeds = [1] if "checkpoint" in name else [1, 2]
        with pytest.raises(UserError, match=message):
            dsinga.search(**search, space={"seed": seeds}, workspace=folder, resume=True)
        shutil.rmtree(folder)
