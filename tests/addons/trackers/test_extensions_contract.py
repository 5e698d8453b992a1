"""Every extension passes the contract of extensions."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dsinga.addons.search.learning_rate import RateSweep
from dsinga.addons.search.metric_values import Rung
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
from dsinga.job import Job
from dsinga.testing import ExtensionContract, SimulatedLoop
from tests.cluster.runs.test_loop_products import KINDS, train_kind
from tests.support.refusals import refused

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
