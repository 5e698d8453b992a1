"""What is lost where workers meet."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsinga.planner.link import Link, Links
from dsinga.planner.meetings import MEETINGS, PUNCTUAL, Lateness, lateness, time_meetings
from dsinga.planner.program import Compute, Exchange, Group, Program, Receive, Send
from dsinga.planner.simulate import simulate

LATE = Lateness(short=1.0, long=16.0, after_short=0.5, after_long=3.5)


@pytest.mark.parametrize(("stretch", "seconds"), [(1.0, 0.5), (4.0, 1.5), (16.0, 3.5), (1000.0, 3.5), (0.25, 0.0)])
def test_grows_with_the_root_of_the_stretch_between_what_was_measured(stretch: float, seconds: float) -> None:
    assert LATE.seconds(stretch) == pytest.approx(seconds)


def test_never_falls_and_is_never_below_nothing() -> None:
    falling = Lateness(1.0, 16.0, 2.0, 1.0)
    assert falling.seconds(16.0) == 2.0
    assert PUNCTUAL.seconds(5.0) == 0.0


def test_messages_are_told_apart_from_what_is_late() -> None:
    """Two workers, two lengths of stretch, a tenth of a second for the messages."""
    found = lateness([[(1.0, 0.3), (4.0, 0.7)], [(3.0, 0.5), (6.0, 0.9)]], told=0.1)
    assert found == pytest.approx((2.0, 5.0, 0.3, 0.7))


def test_threads_meet() -> None:
    barrier = threading.Barrier(2, timeout=30)
    with ThreadPoolExecutor(2) as pool:
        found = [future.result() for future in [pool.submit(time_meetings, barrier.wait) for _ in range(2)]]
    for short, long in found:
        assert 0 < short[0] < long[0]
        assert min(short[1], long[1]) > 0
    assert len(found[0]) == len(MEETINGS)


FREE = Link(0.0)


def pair(first: float, exchange: bool = False) -> list[Program]:
    """Return two workers that meet once an iteration, one after ``first`` seconds, the other after 4."""
    if exchange:
        return [Program([Compute(seconds), Exchange("x", 0), Receive("x")]) for seconds in (first, 4.0)]
    return [
        Program([Compute(seconds), Send(1 - own, "x", 0), Receive("x")]) for own, seconds in enumerate((first, 4.0))
    ]


@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize(
    ("first", "homes", "seconds"),
    [
        (4.0, (0, 1), 5.5),  # each is late by 1.5 s, as the other sees it
        (4.0, (0, 0), 4.0),  # but not in the same process
        (1.0, (0, 1), 4.0),  # who is there first waits for the other anyway, who sees no lateness
    ],
)
def test_who_waits_waits_for_who_is_late(first: float, homes: tuple[int, int], seconds: float, exchange: bool) -> None:
    links = Links(FREE, FREE, FREE, late=LATE)
    group = Group(pair(first, exchange), homes, (), {})
    assert simulate(group, links).seconds == pytest.approx(seconds)


def test_what_is_not_waited_for_costs_nothing() -> None:
    """What is sent after 4 s is late by 1.5 s, and looked at 2 s later: as a gradient in the midst of backward."""
    programs = [Program([Compute(4.0), Send(1 - own, "x", 0), Compute(2.0), Receive("x")]) for own in range(2)]
    assert simulate(Group(programs, (0, 1), (), {}), Links(FREE, FREE, FREE, late=LATE)).seconds == pytest.approx(6.0)
