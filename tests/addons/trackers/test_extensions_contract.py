"""Every extension passes the contract of extensions."""

import csv
import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dsinga.addons.search.learning_rate import RateSweep
from dsinga.addons.search.metric_values import Rung
from dsinga.api import train
from dsinga.checkpoint import read_params
from dsinga.extensions import (
    CSV,
    AtEnd,
    Checkpointing,
    Display,
    EarlyStopping,
    Evaluation,
    EverySteps,
    Extension,
    KeepBest,
    MetricValues,
    MLflow,
    ReduceOnPlateau,
    StopBeyond,
    StopOnTime,
    TensorBoard,
    create_extensions,
)
from dsinga.job import Job, LRGenConf, loads, to_text
from dsinga.testing import ExtensionContract, SimulatedLoop
from tests.cluster.runs.test_loop_products import KINDS, train_kind
from tests.support.extension_runs import Acting, rows, validating
from tests.support.refusals import refused
from tests.support.small_job import assert_same

CREATE: dict[str, Callable[[Path], Extension]] = {
    "Display": lambda folder: Display(EverySteps(13) | AtEnd()),
    "Evaluation": lambda folder: Evaluation(EverySteps(17, 5) | AtEnd(), "test"),
    "Checkpointing": lambda folder: Checkpointing(EverySteps(9)),
    "EarlyStopping": lambda folder: EarlyStopping("val/loss", patience=3),
    "EarlyStopping of training": lambda folder: EarlyStopping("train/accuracy", patience=6, min_delta=0.05),
    "MetricValues": lambda folder: MetricValues("val/loss"),
    "MetricValues of a rung": lambda folder: MetricValues("val/loss", rung=Rung(55, 200)),
    "KeepBest": lambda folder: KeepBest("val/loss"),
    "ReduceOnPlateau": lambda folder: ReduceOnPlateau("val/loss", 0.5, patience=2, cooldown=2, min_factor=0.2),
    "StopBeyond": lambda folder: StopBeyond("train/loss", below=0.1),
    "StopOnTime": lambda folder: StopOnTime("1h"),  # more than there is: each run has its own time
    "CSV": lambda folder: CSV(folder / "metrics.csv"),
    "TensorBoard": lambda folder: TensorBoard(folder, histogram_freq=50),
    "MLflow": lambda folder: MLflow(str(folder / "mlruns")),
    "function": lambda folder: create_extensions(Job(train_steps=1), [lambda step, metrics: None])[-1],
    "a user's own": lambda folder: Counting(),
}


class TestExtension(ExtensionContract):
    @pytest.fixture(autouse=True, params=CREATE)
    def kind(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        self.create = functools.partial(CREATE[request.param], tmp_path)  # type: ignore[method-assign]

    def simulate(self, extension: Extension, checkpoint: Mapping[str, Any] | None = None) -> SimulatedLoop:
        if not isinstance(extension, MLflow):
            return super().simulate(extension, checkpoint)
        return SimulatedLoop([extension], self.metrics_of, checkpoint_freq=70).run(checkpoint)  # a run takes 0.2 s


class TestRateSweep(ExtensionContract):
    """Of a loss that diverges."""

    def create(self) -> Extension:
        return RateSweep()

    def metrics_of(self, phase: str, step: int) -> Mapping[str, float]:
        return {"loss": 1.05 ** abs(step - 60)}


class Counting(Extension):
    """A user's own, right or wrong."""

    def __init__(self, keeps: bool = True, resets: bool = True, plain: bool = True):
        self.trigger = EverySteps(10)
        self.count = 0
        self._keeps, self._resets, self._plain = keeps, resets, plain

    def start(self, loop) -> None:
        if self.count >= 12:
            loop.stop("there were 12 runs")

    def run(self, loop) -> None:
        self.count += 1
        self.start(loop)

    def state_dict(self):
        if not self._plain:
            return {"count": {self.count}}
        return {"count": self.count} if self._keeps else {}

    def load_state(self, state) -> None:
        if state or self._resets:
            self.count = state.get("count", 0)


@pytest.mark.parametrize(
    ("wrong", "check", "message"),
    [
        ({"keeps": False}, "test_a_resumed_run_does_what_an_unbroken_one_does", "resumed after 7 steps|resumed after"),
        ({"resets": False}, "test_one_object_serves_several_runs", "in a second run of one object"),
        ({"resets": False}, "test_an_empty_state_is_that_of_a_new_run", "count"),
        ({"plain": False}, "test_the_state_can_be_saved", "count is neither plain data nor an array"),
    ],
)
def test_the_contract_names_the_fault_of_a_wrong_extension(wrong: dict[str, bool], check: str, message: str) -> None:
    class Wrong(ExtensionContract):
        def create(self) -> Extension:
            return Counting(**wrong)

    refused(lambda: getattr(Wrong(), check)(), message, error=(AssertionError, TypeError))


# Tables and curves are written in every kind of run.
def writes_a_table(result: Any, folder: Path) -> None:
    assert len((folder / "metrics.csv").read_text().splitlines()) == 1 + len(result.history)


def writes_curves(result: Any, folder: Path) -> None:
    assert list((folder / "tensorboard").rglob("events.*"))


TRACKERS: dict[str, Callable[[Any, Path], None]] = {"type: kCSV": writes_a_table, "type: kTensorBoard": writes_curves}


@pytest.mark.parametrize("text", TRACKERS, ids=lambda text: text.split()[1])
@pytest.mark.parametrize("kind", KINDS)
def test_trackers_write_in_every_kind_of_run(kind: str, text: str, threads: Client, tmp_path: Path) -> None:
    TRACKERS[text](train_kind(kind, threads, tmp_path, text), tmp_path)


# Extensions that write files, and the checkpoints that are kept, in real runs that are resumed.
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
