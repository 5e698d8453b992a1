"""When a pass is recorded, captured, launched, or run eagerly: the states, on a device that notes its calls."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsinga.job import Phase
from dsinga.layers import Context, Records, Rows
from dsinga.ops.types import NotCapturable
from dsinga.passes.captured_passes import GRAPHS, REJECTED, CapturedPasses
from dsinga.training.metrics import UnreadMetrics

NET: Any = SimpleNamespace(bridged=False, stages=())


class OutOfMemoryError(MemoryError):
    """CuPy's error of this name."""


class NotedPass:
    """Notes what is done with it; its only metric is what the records hold."""

    warm_ups, is_on_host = 2, False

    @property
    def nbytes(self) -> int:
        return 10

    def __init__(self, device: Device):
        self._device, self._value, self._captured = device, 0.0, False

    def put(self, name: str, array: Any) -> Any:
        self._value = float(array[0])
        return array

    @contextlib.contextmanager
    def recording(self, step: int) -> Iterator[None]:
        self._device.notes.append("record")
        yield

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        self._device.notes[-1] = "capture"
        yield
        if self._device.failure is not None:
            raise self._device.failure
        self._captured = True

    def results(self, outputs: Any) -> Any:
        return outputs

    def cut(self, action: Any) -> None:
        raise AssertionError("nothing is exchanged")

    @property
    def captured(self) -> bool:
        return self._captured

    def launch(self, step: int) -> None:
        self._device.notes.append(f"launch {step}")
        if self._device.failure is not None:
            raise self._device.failure

    def read(self) -> list[float]:
        return [self._value]

    def cancel(self) -> None:
        self._device.notes.append("cancel")


class Device:
    """What a worker's kernels do for captured passes."""

    calls_before_capture = 0

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.failure: Exception | None = None

    def new_pass(self) -> NotedPass:
        self.notes.append("new")
        return NotedPass(self)


class Runs:
    """Passes on batches of some sizes, one after another."""

    def __init__(self) -> None:
        self.device, self.step, self.replays = Device(), 0, 0
        self.passes = CapturedPasses(self.device, "passes")  # type: ignore[arg-type]
        self.fault: Exception | None = None

    def __call__(self, rows: int = 4, value: float = 1.5, key: Any = "key") -> Any:
        """Run a pass; return its metrics and what the device was told."""
        self.device.notes.clear()

        def compute(records: Any, params: Any, ctx: Any) -> None:
            if self.fault is not None:
                raise self.fault
            ctx.unread.append(UnreadMetrics([("loss", {"loss": (np.float64(0), rows)})]))

        def replay() -> None:
            self.replays += 1

        records = {"data": Records(np.full(rows, value))}
        result = self.passes.compute(
            key,
            NET,
            records,
            Context(self.device, Phase.kTrain, Rows(0, rows, rows), 0, self.step),
            compute,
            replay=replay,
        )
        self.step += 1
        return result and result.metrics, list(self.device.notes)

    def warm(self, **options: Any) -> None:
        for _ in range(NotedPass.warm_ups + 1):
            assert self(**options)[0] is not None


@pytest.fixture
def run() -> Runs:
    return Runs()


def test_two_passes_are_recorded_and_the_third_is_captured_and_launched(run: Runs):
    assert run() == ({"loss": (1.5, 4)}, ["new", "record"])
    assert run()[1] == ["record"]
    assert run(value=2.5) == ({"loss": (2.5, 4)}, ["capture", "launch 2"])
    assert run.replays == 0
    assert run(value=3.5) == ({"loss": (3.5, 4)}, ["launch 3"])
    assert run.replays == 1


def test_another_batch_size_or_key_has_another_graph(run: Runs):
    run.warm()
    assert run(rows=3)[1] == ["new", "record"]
    assert run(key="other")[1] == ["new", "record"]
    assert run()[1] == ["launch 5"]
    assert len(run.passes) == 3
    assert run.passes.nbytes == 30


def test_a_ninth_graph_takes_the_place_of_the_one_that_was_longest_unused(run: Runs):
    for rows in range(1, GRAPHS + 1):
        run.warm(rows=rows)
    run(rows=1)
    assert run(rows=GRAPHS + 1)[1] == ["new", "record"]
    assert len(run.passes) == GRAPHS
    assert run(rows=1)[1][0].startswith("launch")
    assert run(rows=2)[1] == ["new", "record"]


def test_shapes_that_take_turns_are_called_on_a_host_where_they_are_too_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Device, "calls_before_capture", 3)
    monkeypatch.setattr(NotedPass, "is_on_host", True)
    monkeypatch.setattr(NotedPass, "warm_ups", 0)
    run, new = Runs(), 0
    for turn in range(40):
        for rows in range(1, 2 * GRAPHS):
            new += "new" in run(rows=rows)[1]
        assert turn < 3 or new >= GRAPHS
    assert new < 4 * GRAPHS


@pytest.mark.parametrize("when", ["recorded", "captured", "launched"])
def test_a_failure_is_said_once_and_passes_are_called_from_then_on(run, when, caplog):
    for _ in range({"recorded": 0, "captured": NotedPass.warm_ups, "launched": NotedPass.warm_ups + 1}[when]):
        run()
    if when == "recorded":
        run.fault = NotCapturable("the host reads\nan array")
    else:
        run.device.failure = RuntimeError("the host reads\nan array")
    with caplog.at_level(logging.INFO, "dsinga"):
        assert run()[0] is None
        assert run() == (None, [])
        assert run(rows=3)[0] is None or when != "recorded"  # another key fails for the same reason
    assert caplog.messages == ["passes are not captured as CUDA graphs: the host reads an array"]
    assert caplog.records[0].levelno == (logging.INFO if when == "recorded" else logging.WARNING)
    assert run.passes.failures == ["the host reads an array"]


def test_without_memory_all_graphs_are_given_up(run: Runs):
    run.warm()
    run.fault = OutOfMemoryError("Out of memory allocating 512 bytes")
    assert run(rows=3)[0] is None
    assert len(run.passes) == 0
    run.fault = None
    assert run(rows=3) == (None, [])
    assert run()[1] == ["new", "record"]  # that which had been captured may be so again


def test_a_pass_that_is_not_finite_is_called_and_others_are_launched_again(run: Runs):
    run.warm()
    for _ in range(2):
        assert run(value=np.nan)[0] is None
        assert run()[0] is not None
    for _ in range(REJECTED):
        assert run(value=np.inf)[0] is None
    assert run() == (None, [])  # so many in a row are no accident
    assert run.passes.failures == [f"metrics of {REJECTED} of them in a row were not finite"]


def test_a_graph_is_launched_again_before_it_has_ended_and_no_other_one(run: Runs):
    run.warm()
    run.warm(key="other")
    records = {"data": Records(np.full(4, 1.5))}
    running = run.passes.launch("key", records, 6)
    assert run.passes.launch("other", records, 7, running) is None
    assert run.passes.launch("new", records, 7, running) is None
    assert run.passes.launch("key", {"data": Records(np.full(4, np.nan))}, 7, running) is running
    assert running is not None
    assert run.passes.finish(running, NET) is None
    assert run.device.notes[-3:] == ["launch 6", "launch 7", "cancel"]


def test_a_backend_without_graphs_calls_all_passes(run: Runs):
    run.device.new_pass = lambda: None  # type: ignore[method-assign, return-value]
    assert run() == (None, [])
    assert run.passes.failures == []
