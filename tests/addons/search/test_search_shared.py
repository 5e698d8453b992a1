"""Several programs on one folder, and clusters that are lost: no setting fails by these, and none is lost."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dsinga
from dsinga import RunError, SearchResult, nn
from dsinga.addons.search.metric_values import Rung
from dsinga.addons.search.result import OUTCOME_FILE, read_outcome, write_outcome
from dsinga.addons.search.setting import Setting
from dsinga.base.errors import SchedulerLost, UserError, WorkerLost, WorkspaceHeld
from dsinga.extensions import EarlyStopping, Extension, KeepBest, LoopView
from dsinga.extensions.triggers import EverySteps
from dsinga.job import Job
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RATE = "updater.learning_rate.base_lr"
LIMIT = 60
SPACE = {"seed": [3, 4, 5]}


@pytest.fixture
def search(short: Job, client: Client, tmp_path: Path) -> dict[str, Any]:
    """The arguments of a search with a folder."""
    return {"job": short, "space": SPACE, "client": client, "workspace": tmp_path, "progress": False}


@contextlib.contextmanager
def another_search(search: dict[str, Any], **options: Any) -> Iterator[None]:
    """Run another search in a thread, whose runs wait, for as long as the context lasts."""
    waits, goes_on = threading.Event(), threading.Event()

    def wait(step: int, metrics: dict[str, float]) -> None:
        waits.set()
        assert goes_on.wait(LIMIT)

    thread = threading.Thread(target=lambda: dsinga.search(**search, **options, extensions=[wait]))
    thread.start()
    assert waits.wait(LIMIT)
    try:
        yield
    finally:
        goes_on.set()
        thread.join(LIMIT)


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"halving": 2, "first_rung": 2}], ids=str)
def test_a_second_search_on_a_folder_is_refused(search: dict[str, Any], options: dict[str, Any]) -> None:
    with (
        another_search(search),
        pytest.raises(WorkspaceHeld, match=r"another run is writing to the workspace .*: process"),
    ):
        dsinga.search(**search, **options)
    assert [row["state"] for row in dsinga.search(**search, resume=True)] == ["finished"] * 3


def test_programs_join_a_search_by_the_numbers_of_settings(search: dict[str, Any], tmp_path: Path) -> None:
    with another_search({**search, "space": {"seed": [3]}}, only=[0]):
        with pytest.raises(WorkspaceHeld, match="writing to the workspace .*setting-0"):
            dsinga.search(**search)  # which would move that setting's files
        refused(lambda: dsinga.search(**search, only=[0]), "setting-0", "resume=True", error=WorkspaceHeld)
        result = dsinga.search(**search, resume=True)
        assert [row["state"] for row in result] == ["cut", "finished", "finished"]
        assert "another run is writing" in result[0]["remark"]
    assert [row["state"] for row in dsinga.search(**search, resume=True)] == ["finished"] * 3


class Losing(Extension):
    """Raises an error in one run, when it has begun or after two steps, so many times."""

    def __init__(self, error: Exception, times: int, seed: int = 4):
        self.trigger, self._error, self._seed, self._left = EverySteps(2), error, seed, [times]

    def __deepcopy__(self, memo: Any) -> Losing:
        return self  # one for all runs

    def run(self, loop: LoopView) -> None:
        if loop.job.seed == self._seed and self._left[0]:
            self._left[0] -= 1
            raise self._error


def test_programs_share_a_search(search: dict[str, Any], tmp_path: Path) -> None:
    """What has failed is trained again by its number alone, and what the cluster has failed is without that."""
    own = ValueError("a fault of mine")
    for number, error in ((2, own), (1, own), (0, RunError("the cluster is lost"))):
        with pytest.raises(RunError, match=str(error)):
            dsinga.search(**search, only=[number], extensions=[Losing(error, 9, seed=3 + number)])
    (row,) = dsinga.search(**search, only=[2], resume=True)
    assert (row["number"], row["seed"], row["state"]) == (2, 5, "finished")
    assert not (tmp_path / "search.csv").exists()
    result = dsinga.search(**search, resume=True)
    assert [(row["seed"], row["state"]) for row in result] == [(3, "finished"), (4, "failed"), (5, "finished")]
    assert (tmp_path / "search.csv").exists()
    alone = dsinga.train(search["job"].replace(seed=result.best["seed"]), search["client"], progress=False)  # type: ignore[index]
    assert_same(result.best_result.params, alone.params)  # type: ignore[union-attr]


@pytest.mark.parametrize("with_folder", [True, False])
def test_a_setting_whose_worker_is_lost_starts_again(search: dict[str, Any], with_folder: bool) -> None:
    search["workspace"] = search["workspace"] if with_folder else None
    result = dsinga.search(**search, extensions=[Losing(WorkerLost("the Dask worker was lost"), 2)])
    whole = dsinga.search(**{**search, "workspace": None})
    assert [(row["state"], row["score"]) for row in result] == [(row["state"], row["score"]) for row in whole]


ERRORS = [RunError("the cluster is lost"), SchedulerLost("the Dask scheduler was lost")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("sampled", [False, True])
def test_a_lost_cluster_fails_no_setting(search: dict[str, Any], error: Exception, sampled: bool, tmp_path: Path):
    """The search ends, with what has ended, and a resumed one is the undisturbed one."""
    if sampled:
        optuna = pytest.importorskip("optuna")
        search |= {"space": {"seed": [4]}, "sampler": optuna.samplers.RandomSampler(seed=1), "samples": 3, "at_once": 1}
    losing = {"extensions": [Losing(error, 9)]}
    if sampled or isinstance(error, SchedulerLost):
        ended = "0" if sampled else r"\d"
        with pytest.raises(type(error), match=rf"{error}; {ended} of 3 settings have ended; go on with resume=True"):
            dsinga.search(**search, **losing)
    else:
        states = [row["state"] for row in dsinga.search(**search, **losing)]
        assert states == ["finished", "cut", "finished"]
    for path in tmp_path.glob("setting-*/setting.json"):
        assert (json.loads(path.read_text())["row"] or {"state": ""})["state"] != "failed"
    result = dsinga.search(**search, resume=True)
    whole = dsinga.search(**{**search, "workspace": None})
    assert [(row["seed"], row["score"]) for row in result] == [(row["seed"], row["score"]) for row in whole]


def test_a_run_that_was_killed_is_not_gone_on_with_by_another_setting(search: dict[str, Any], tmp_path: Path) -> None:
    search["job"] = search["job"].replace(checkpoint_freq=2)
    with pytest.raises(RunError, match="the only setting failed|is lost"):
        dsinga.search(**{**search, "space": {"seed": [4]}}, extensions=[Losing(RunError("is lost"), 9)])
    assert (tmp_path / "setting-0" / "checkpoint").exists()
    refused(lambda: dsinga.search(**search, resume=True), "setting-0", "seed=4, not seed=3")


KEEPING: dict[str, Any] = {
    "last": lambda: lambda step, metrics: None,
    "best": lambda: KeepBest("test/loss"),
    "other": lambda: KeepBest("test/accuracy"),
    "delta": lambda: KeepBest("test/loss", min_delta=0.3),
    "stopping": lambda: EarlyStopping("test/loss", patience=2, restore_best_weights=True),
}


@pytest.mark.parametrize("options", [{}, {"halving": 2, "first_rung": 4}], ids=["whole", "halved"])
@pytest.mark.parametrize("keeping", KEEPING.values(), ids=KEEPING)
def test_the_score_is_that_of_the_params_that_are_returned(
    search: dict[str, Any], keeping: Any, options: dict[str, Any]
) -> None:
    search |= {"job": search["job"].replace(train_steps=12, test_freq=1), "space": {RATE: [0.5, 1.0]}}
    for resume in (False, True):
        result: SearchResult = dsinga.search(**search, **options, extensions=[keeping()], resume=resume)
        assert result.best is not None
        measured = dsinga.evaluate(result.best_result.job, result.best_result)  # type: ignore[union-attr]
        assert measured["loss"] == pytest.approx(result.best["score"], rel=1e-4)


def test_a_callback_that_a_search_has_no_use_for_is_refused(search: dict[str, Any], tmp_path: Path) -> None:
    backup = nn.callbacks.BackupAndRestore(tmp_path, save_freq=3)
    refused(lambda: dsinga.search(**search, extensions=[backup]), "BackupAndRestore", "give workspace=")
    assert not any(tmp_path.iterdir())


# A search's folder that was edited by hand: what is damaged is named in one sentence before anything trains.
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
