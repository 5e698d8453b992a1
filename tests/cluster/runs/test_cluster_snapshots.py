"""When snapshots are made, and which one is the newest."""

import logging
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.run.snapshots import Snapshots
from dsinga.engine.engine import Snapshot


class Copies(Future[float]):
    """The copies that a run has been asked for, which come when the test says so."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step


class Run:
    """A run that is asked for snapshots."""

    def __init__(self) -> None:
        self.requests: list[Copies] = []

    def request_snapshot(self, step: int) -> tuple[list[Copies], list[Any]]:
        self.requests.append(Copies(step))
        return [self.requests[-1]], []

    def join_copies(self, copies: list[float], replicas: list[Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"w": np.full(3, copies[0], np.float32)}, {}


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    """Snapshots that are due at once."""
    monkeypatch.setattr("dsinga.cluster.run.snapshots.LEAST_SECONDS", 0.0)
    return Snapshots(Snapshot(0, {"w": np.zeros(3, np.float32)}, None), 0.5)


def requested(snapshots: Snapshots, run: Run, step: int) -> Copies:
    """Return the copies for ``step``, which are asked for as soon as they are due."""
    deadline = time.monotonic() + 60
    count = len(run.requests)
    while len(run.requests) == count:
        assert time.monotonic() < deadline
        snapshots.request(run, step)  # type: ignore[arg-type]
    return run.requests[-1]


def test_a_snapshot_counts_once_all_its_parts_are_there(snapshots: Snapshots) -> None:
    run = Run()
    copies = requested(snapshots, run, 5)
    assert not snapshots.collect()
    copies.set_result(copies.step)
    assert not snapshots.collect()  # the steps before it are not known to be done
    snapshots.reach(4)
    assert not snapshots.collect()
    snapshots.reach(5)
    assert snapshots.collect()
    assert snapshots.newest.step == 5
    assert snapshots.newest.params["w"][0] == 5


def test_there_is_one_request_at_a_time_and_none_for_an_old_step(snapshots: Snapshots) -> None:
    run = Run()
    requested(snapshots, run, 5)
    snapshots.request(run, 6)  # type: ignore[arg-type]
    assert [copies.step for copies in run.requests] == [5]
    snapshots.drop()
    snapshots.replace(Snapshot(9, {}, {}))
    snapshots.request(run, 9)  # type: ignore[arg-type]
    assert len(run.requests) == 1


@pytest.mark.parametrize("error", [RunError("past"), RuntimeError("Worker holding Actor was lost"), TimeoutError()])
def test_copies_that_fail_leave_the_snapshot_before(snapshots: Snapshots, error: Exception) -> None:
    copies = requested(snapshots, Run(), 5)
    copies.set_exception(error)
    snapshots.reach(5)
    assert not snapshots.collect()
    assert snapshots.newest.step == 0
    assert requested(snapshots, Run(), 6).step == 6


def test_too_little_memory_ends_snapshots_with_a_warning(
    snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    copies = requested(snapshots, run, 5)
    copies.set_exception(MemoryError())
    snapshots.reach(5)
    with caplog.at_level(logging.WARNING):
        assert not snapshots.collect()
    assert "too little memory for snapshots" in caplog.text
    snapshots.request(run, 7)  # type: ignore[arg-type]
    assert len(run.requests) == 1


def test_the_state_of_the_loop_is_added_at_its_step(snapshots: Snapshots) -> None:
    copies = requested(snapshots, Run(), 5)
    snapshots.add_loop(4, lambda: {"at": 4})
    snapshots.add_loop(5, lambda: {"at": 5})
    copies.set_result(copies.step)
    snapshots.reach(5)
    assert snapshots.collect()
    assert snapshots.newest.loop == {"at": 5}


def test_a_share_of_zero_makes_none() -> None:
    run = Run()
    Snapshots(Snapshot(0, {}, None), 0.0).request(run, 5)  # type: ignore[arg-type]
    assert not run.requests


def test_servers_may_change_copies(snapshots: Snapshots) -> None:
    snapshot = Snapshot(3, {"w": np.ones(2, np.float32)}, {"w": {"history": np.ones(2, np.float32)}})
    params, state = snapshot.copy()
    params["w"][:] = 5
    state["w"]["history"][:] = 7
    assert snapshot.params["w"][0] == snapshot.state["w"]["history"][0] == 1  # type: ignore[index]
    assert snapshot.nbytes == 16
