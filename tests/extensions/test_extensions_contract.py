"""Every extension passes the contract of extensions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dsinga.api.learning_rate import RateSweep
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
    MedianRule,
    MedianStopping,
    MetricValues,
    MLflow,
    ReduceOnPlateau,
    StopOnTime,
    TensorBoard,
    create_extensions,
)
from dsinga.job import Job
from dsinga.testing import ExtensionContract


class TestDisplay(ExtensionContract):
    def create(self) -> Extension:
        return Display(EverySteps(13) | AtEnd())


class TestEvaluation(ExtensionContract):
    def create(self) -> Extension:
        return Evaluation(EverySteps(17, 5) | AtEnd(), "test")


class TestCheckpointing(ExtensionContract):
    def create(self) -> Extension:
        return Checkpointing(EverySteps(9))


class TestEarlyStopping(ExtensionContract):
    def create(self) -> Extension:
        return EarlyStopping("val/loss", patience=3)


class TestEarlyStoppingOfTraining(ExtensionContract):
    def create(self) -> Extension:
        return EarlyStopping("train/accuracy", patience=6, min_delta=0.05)


class TestMetricValues(ExtensionContract):
    def create(self) -> Extension:
        return MetricValues("val/loss")


class TestMedianStopping(ExtensionContract):
    """Of a run that the rule ends: one that is complete would be among those that the next one is compared with."""

    def create(self) -> Extension:
        rule = MedianRule()
        for number in range(5):
            rule.add([(step, 1.3 + number / 100) for step in range(55, 200, 5)])
        return MedianStopping(rule, "val/loss")

    def test_the_rule_ends_the_run(self) -> None:
        loop = self.simulate(self.create())
        assert loop.step == 60
        assert "worse than the median 1.32 of 5 complete runs" in loop.stopped


class TestKeepBest(ExtensionContract):
    def create(self) -> Extension:
        return KeepBest("val/loss")


class TestReduceOnPlateau(ExtensionContract):
    def create(self) -> Extension:
        return ReduceOnPlateau("val/loss", factor=0.5, patience=2, cooldown=2, min_factor=0.2)


class TestStopOnTime(ExtensionContract):
    """With more time than there is: each run has its own."""

    def create(self) -> Extension:
        return StopOnTime("1h")


class TestCSV(ExtensionContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "metrics.csv"

    def create(self) -> Extension:
        return CSV(self.path)


class TestTensorBoard(ExtensionContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def create(self) -> Extension:
        return TensorBoard(self.path, histogram_freq=50)


class TestMLflow(ExtensionContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        self.path = tmp_path / "mlruns"

    def create(self) -> Extension:
        return MLflow(str(self.path))


class TestRateSweep(ExtensionContract):
    """Of a loss that diverges."""

    def create(self) -> Extension:
        return RateSweep()

    def metrics_of(self, phase: str, step: int) -> Mapping[str, float]:
        return {"loss": 1.05 ** abs(step - 60)}


class TestFunction(ExtensionContract):
    def create(self) -> Extension:
        return create_extensions(Job(train_steps=1), [lambda step, metrics: None])[-1]


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


class TestCounting(ExtensionContract):
    def create(self) -> Extension:
        return Counting()


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

    with pytest.raises((AssertionError, TypeError), match=message):
        getattr(Wrong(), check)()
