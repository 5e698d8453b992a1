"""Extensions that write files, and the checkpoints that are kept, in real runs that are resumed."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsinga.api import train
from dsinga.checkpoint import read_params
from dsinga.extensions import CSV, EverySteps, Extension, KeepBest, MLflow, TensorBoard
from dsinga.job import Job, LRGenConf, loads, to_text
from tests.support.extension_runs import Acting, rows, validating
from tests.support.refusals import refused
from tests.support.small_job import assert_same


def test_three_checkpoints_are_kept_and_a_run_goes_on_from_them(job: Job, tmp_path: Path) -> None:
    """Also the best params survive, those of an early step, whose own checkpoint is gone."""
    job = validating(job, checkpoint_freq=5, checkpoint_keep=3)
    job = job.replace(extension=[{"type": "kKeepBest", "monitor": "val/loss", "mode": "max"}])  # the first, of step 0
    unbroken = train(job, progress=False)
    train(job.replace(train_steps=23), workspace=tmp_path, progress=False)
    assert sorted(os.listdir(tmp_path / "checkpoint")) == ["step15", "step20", "step23"]
    resumed = train(job, workspace=tmp_path, resume=True, progress=False)
    assert sorted(os.listdir(tmp_path / "checkpoint")) == ["step30", "step35", "step40"]
    assert "those after 0 steps" in resumed.remarks[0]
    assert_same(resumed.params, unbroken.params)
    assert_same(read_params(tmp_path / "best.safetensors"), unbroken.params)


def test_a_checkpoint_is_complete_before_an_older_one_goes(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from dsinga.loop import checkpoints

    remove, seen = checkpoints.remove_old_checkpoints, []

    def look(folder: Path, keep: int) -> None:
        seen.append(sorted(os.listdir(folder)))
        remove(folder, keep)

    monkeypatch.setattr(checkpoints, "remove_old_checkpoints", look)
    job = validating(job, checkpoint_freq=20, checkpoint_keep=1)
    train(job, workspace=tmp_path, progress=False)
    assert seen == [["step20"], ["step20", "step40"]]
    assert os.listdir(tmp_path / "checkpoint") == ["step40"]


class Seeing(Extension):
    """Notes what the view says when rows are shown, and how it is closed."""

    pauses = False

    def __init__(self) -> None:
        self.trigger = EverySteps(1)
        self.seen: list[tuple[int, float, float]] = []
        self.closed: list[BaseException | None] = []

    def run(self, loop: Any) -> None:
        self.seen.append((loop.step, loop.learning_rate, loop.samples_per_second))

    def close(self, error: BaseException | None) -> None:
        self.closed.append(error)


def test_extensions_see_the_learning_rate_and_the_speed(job: Job) -> None:
    conf = LRGenConf(type="kFixedStep", fixedstep_conf={"step": [0, 10, 25], "step_lr": [0.01, 0.02, 0.005]})
    job = validating(job, updater=job.updater.replace(learning_rate=conf))
    halving = Acting(100, lambda loop: loop.set_rate_factor(30, 0.5), after=20)
    seeing = Seeing()
    train(job, extensions=[halving, seeing], progress=False)
    rates = {step: rate for step, rate, _ in seeing.seen}
    assert (rates[9], rates[10], rates[25], rates[29], rates[30]) == (0.01, 0.02, 0.005, 0.005, 0.0025)
    assert all(speed > 0 for _, _, speed in seeing.seen)
    assert seeing.closed == [None]


def test_extensions_are_closed_when_a_run_fails(job: Job) -> None:
    def fail(loop: Any) -> None:
        raise ZeroDivisionError("a fault of its own")

    seeing = Seeing()
    with pytest.raises(ZeroDivisionError) as caught:
        train(validating(job), extensions=[seeing, Acting(8, fail)], progress=False)
    assert seeing.closed == [caught.value]


def test_a_run_with_all_files_is_resumed(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    job = validating(job, checkpoint_freq=10)
    unbroken = train(job, progress=False)

    def extensions() -> list[Extension]:
        return [CSV(), TensorBoard(histogram_freq=20), MLflow(str(tmp_path / "mlruns")), KeepBest("val/loss")]

    def fail(loop: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # at step 26, with a checkpoint
        train(job, workspace=tmp_path, extensions=[*extensions(), Acting(26, fail)], progress=False)
    resumed = train(job, workspace=tmp_path, extensions=extensions(), resume=True, progress=False)
    assert rows(resumed) == rows(unbroken)
    with open(tmp_path / "metrics.csv", newline="") as file:
        lines = [{name: cell for name, cell in line.items() if cell} for line in csv.DictReader(file)]
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{name: str(value) for name, value in row.items()} for row in written]
    assert {path.name for path in (tmp_path / "tensorboard").iterdir()} == {"train", "val"}
    assert_logged(tmp_path, job, written)


def assert_logged(folder: Path, job: Job, written: list[dict[str, Any]]) -> None:
    """Assert that one run of MLflow has all rows once, the job and the last checkpoint."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=str(folder / "mlruns"))
    (run,) = client.search_runs([client.get_experiment_by_name("Default").experiment_id])
    assert run.info.status == "FINISHED"
    losses = client.get_metric_history(run.info.run_id, "val/loss")
    expected = [(row["step"], row["loss"]) for row in written if row["phase"] == "val"]
    assert [(metric.step, metric.value) for metric in losses] == expected
    path = client.download_artifacts(run.info.run_id, "checkpoint/step40", str(folder))
    assert_same(read_params(path), read_params(folder / "checkpoint" / "step40"))
    assert Path(client.download_artifacts(run.info.run_id, "job.conf", str(folder))).read_text() == to_text(job)


@pytest.mark.parametrize(
    ("extension", "message"),
    [
        ('type: kCSV path: "s3://bucket/rows.csv"', "kCSV: it writes local files only, not s3://bucket/rows.csv"),
        ('type: kCSV path: "folder"', "kCSV: folder is a folder; give it the path of a file"),
        ('type: kCSV path: "a_file/rows.csv"', "kCSV: a_file/rows.csv cannot be written, because of .*a_file; give it"),
        ('type: kTensorBoard folder: "a_file/runs"', "kTensorBoard: a_file/runs cannot be written, because of "),
        ('type: kMLflow uri: "a_file"', "kMLflow: MLflow at a_file failed: "),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_old_run_is_moved(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str, message: str
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "work").mkdir()
    for name in ("a_file", "work/metrics.jsonl"):
        (tmp_path / name).write_text("")
    job = job.replace(extension=loads(f"train_steps: 1\nextension {{ {extension} }}", "own.conf").extension)
    refused(lambda: train(job, workspace=tmp_path / "work", progress=False), f"^own.conf:2: extension {message}")
    assert os.listdir(tmp_path / "work") == ["metrics.jsonl"]
