"""The cost of a barrier."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from dsinga.addons.planner.link import (
    BARRIERS,
    BLOCKS,
    FREE_BARRIER,
    BarrierCost,
    Link,
    Links,
    barrier_cost,
    time_barriers,
)
from dsinga.addons.planner.program import AllToAll, Compute, GroupProgram, Receive, Send, WorkerProgram
from dsinga.addons.planner.simulate import simulate

COST = BarrierCost(short=1.0, long=16.0, after_short=0.5, after_long=3.5)


@pytest.mark.parametrize(("computed", "seconds"), [(1.0, 0.5), (4.0, 1.5), (16.0, 3.5), (1000.0, 3.5), (0.25, 0.0)])
def test_cost_grows_with_the_square_root_of_the_computing_time(computed: float, seconds: float) -> None:
    assert COST.seconds(computed) == pytest.approx(seconds)


def test_cost_never_falls_and_is_never_negative() -> None:
    falling = BarrierCost(1.0, 16.0, 2.0, 1.0)
    assert falling.seconds(16.0) == 2.0
    assert FREE_BARRIER.seconds(5.0) == 0.0


def test_the_time_of_messages_is_subtracted() -> None:
    """Two workers, a short and a long interval, 0.1 s for the messages."""
    cost = barrier_cost([[(1.0, 0.3), (4.0, 0.7)], [(3.0, 0.5), (6.0, 0.9)]], message_seconds=0.1)
    assert cost == pytest.approx((2.0, 5.0, 0.3, 0.7))


def test_computing_and_barriers_are_timed_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that a pass of computing advances by 1 s, and a barrier by 0.25 s."""
    seconds = [0.0]

    def advance(by: float) -> None:
        seconds[0] += by

    monkeypatch.setattr("dsinga.addons.planner.link.time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(np, "tanh", lambda numbers, out: advance(1.0))
    assert time_barriers(lambda: advance(0.25)) == [(passes, 0.25) for passes in BARRIERS]


def test_two_threads_wait_at_as_many_barriers() -> None:
    barrier = threading.Barrier(2, timeout=60)
    waits: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(time_barriers, lambda: waits.append(barrier.wait())) for _ in range(2)]
        timings = [future.result() for future in futures]
    assert [len(timing) for timing in timings] == [len(BARRIERS)] * 2
    assert waits.count(0) == waits.count(1) == BLOCKS * sum(barriers + 1 for barriers in BARRIERS.values())


FREE = Link(0.0)


def pair(first: float, all_to_all: bool = False) -> list[WorkerProgram]:
    """Return two workers that wait for each other once an iteration, one after ``first`` seconds, the other after 4."""
    if all_to_all:
        return [WorkerProgram([Compute(seconds), AllToAll("x", 0), Receive("x")]) for seconds in (first, 4.0)]
    return [
        WorkerProgram([Compute(seconds), Send(1 - worker, "x", 0), Receive("x")])
        for worker, seconds in enumerate((first, 4.0))
    ]


@pytest.mark.parametrize("all_to_all", [False, True])
@pytest.mark.parametrize(
    ("first", "processes", "seconds"),
    [
        (4.0, (0, 1), 5.5),  # each worker's message is 1.5 s late
        (4.0, (0, 0), 4.0),  # no cost is given for workers of one process
        (1.0, (0, 1), 4.0),  # the slower worker does not wait, and the faster one waits for it anyway
    ],
)
def test_a_barrier_costs_workers_that_are_equally_fast(
    first: float, processes: tuple[int, int], seconds: float, all_to_all: bool
) -> None:
    links = Links(FREE, FREE, FREE, barrier_between=COST)
    group = GroupProgram(pair(first, all_to_all), processes, (), {})
    assert simulate(group, links).seconds == pytest.approx(seconds)


def test_a_message_that_is_needed_later_costs_nothing() -> None:
    """A message sent after 4 s is 1.5 s late but needed 2 s later only, like a gradient in the backward pass."""
    programs = [
        WorkerProgram([Compute(4.0), Send(1 - worker, "x", 0), Compute(2.0), Receive("x")]) for worker in range(2)
    ]
    assert simulate(
        GroupProgram(programs, (0, 1), (), {}), Links(FREE, FREE, FREE, barrier_between=COST)
    ).seconds == pytest.approx(6.0)
