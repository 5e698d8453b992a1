"""A workspace that is moved or deleted while a run writes it: the run ends, says so, and nothing is lost."""

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsinga import RunError
from dsinga.api import train
from dsinga.checkpoint import latest
from dsinga.job import Job
from dsinga.monitor import read_metrics
from dsinga.monitor.workspace_lock import HOLDER, locked_workspace
from tests.support.small_job import assert_same

LOST = r"the workspace .*work was moved or deleted while the run was writing it"
MADE_AGAIN = rf"{LOST}; it is made again, with all metrics and without the earlier checkpoints"


def at_step(step: int, act: Callable[[], Any]) -> Callable[..., None]:
    """Return an extension that calls ``act`` at the first row of a step."""
    waits = [step]

    def extension(at: int, metrics: Any) -> None:
        if waits and at >= waits[0]:
            waits.clear()
            act()

    return extension


def replace_by_an_old_run(workspace: Path) -> None:
    workspace.rename(workspace.with_name("moved"))
    (workspace / "checkpoint/step1000").mkdir(parents=True)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(shutil.rmtree, marks=pytest.mark.ci),
        pytest.param(lambda workspace: workspace.rename(workspace.with_name("moved")), marks=pytest.mark.ci),
        replace_by_an_old_run,
    ],
    ids=["deleted", "moved", "replaced"],
)
def test_the_run_ends_with_a_checkpoint_and_all_rows(job: Job, tmp_path: Path, act: Callable[[Path], Any]) -> None:
    job = job.replace(train_steps=200, disp_freq=10, checkpoint_freq=10)
    workspace = tmp_path / "work"
    extension = at_step(40, lambda: act(workspace))
    with pytest.raises(RunError, match=MADE_AGAIN + r"; \d+ steps were done; go on from .* with resume=True") as lost:
        train(job, workspace=workspace, progress=False, extensions=[extension])
    step = int(re.findall(r"(\d+) steps were done", str(lost.value))[0])
    assert 40 <= step < 200
    assert latest(workspace / "checkpoint") == workspace / f"checkpoint/step{step}"
    assert [row["step"] for row in read_metrics(workspace / "metrics.jsonl")][0] <= 10
    assert not (workspace / HOLDER).exists()
    resumed = train(job, workspace=workspace, progress=False, resume=True)
    whole = train(job, workspace=tmp_path / "whole", progress=False)
    assert_same(resumed.params, whole.params)
    rows, expected = (
        [(row["step"], row["phase"], row["loss"]) for row in read_metrics(tmp_path / name / "metrics.jsonl")]
        for name in ("work", "whole")
    )
    assert rows == expected


def test_a_program_may_change_its_working_directory(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    job = job.replace(train_steps=60, disp_freq=10, checkpoint_freq=10)
    extension = at_step(20, lambda: os.chdir("below"))
    result = train(job, workspace="work", progress=False, extensions=[extension])
    assert (result.step, result.unsaved, result.workspace) == (60, "", tmp_path / "work")
    assert latest(tmp_path / "work/checkpoint") == tmp_path / "work/checkpoint/step60"
    assert not (tmp_path / "below/work").exists()


def test_nothing_is_written_where_another_run_has_begun(job: Job, tmp_path: Path) -> None:
    job = job.replace(train_steps=200, disp_freq=10, checkpoint_freq=10)
    workspace = tmp_path / "work"
    with locked_workspace(tmp_path / "other"):

        def act() -> None:
            workspace.rename(tmp_path / "moved")
            (tmp_path / "other").rename(workspace)

        with pytest.raises(RunError, match=rf"{LOST}; no checkpoint was written"):
            train(job, workspace=workspace, progress=False, extensions=[at_step(40, act)])
        assert [path.name for path in workspace.iterdir()] == [HOLDER]
    assert latest(tmp_path / "moved/checkpoint") is not None


def test_a_loss_after_the_last_step_is_said_in_the_result(job: Job, tmp_path: Path) -> None:
    job = job.replace(train_steps=20, disp_freq=10, checkpoint_freq=10)
    workspace = tmp_path / "work"
    result = train(job, workspace=workspace, progress=False, extensions=[at_step(20, lambda: shutil.rmtree(workspace))])
    assert re.search(MADE_AGAIN, repr(result))
    assert (workspace / "checkpoint/step20").exists() or result.unsaved
    assert len(read_metrics(workspace / "metrics.jsonl")) == len(result.history)


def test_a_metrics_file_that_is_deleted_is_written_again(job, tmp_path, caplog):
    job = job.replace(train_steps=60, disp_freq=10)
    file = tmp_path / "metrics.jsonl"
    with caplog.at_level(logging.WARNING):  # Dask has set the level higher
        result = train(job, workspace=tmp_path, progress=False, extensions=[at_step(30, file.unlink)])
    assert read_metrics(file) == result.history
    assert "metrics.jsonl was moved or deleted while the run was writing it; it is written again" in caplog.text
