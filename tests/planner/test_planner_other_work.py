"""Other work is noticed where it takes cores that a measurement may need, and only there."""

from __future__ import annotations

import pytest

from dsinga.planner.rate_store import ProcessorTimes, disturbed, read_processor_times

START = ProcessorTimes(100.0, 5000.0, 30.0)


@pytest.mark.parametrize(
    ("others", "own", "cores", "expected"),
    [
        (0.0, 1.0, 2, False),
        (0.1, 1.9, 2, False),  # the system's own work
        (1.0, 1.0, 2, True),
        (0.6, 1.4, 2, True),
        (1.0, 1.0, 4, False),  # cores are idle
        (3.0, 1.0, 4, True),
        (0.5, 0.5, 1, True),
    ],
)
def test_other_work_disturbs_where_no_core_is_idle(others: float, own: float, cores: int, expected: bool) -> None:
    end = ProcessorTimes(START.clock + 1, START.everybody + others + own, START.process + own)
    assert disturbed(START, end, cores) is expected


def test_a_tick_in_a_short_time_is_no_other_work() -> None:
    end = ProcessorTimes(START.clock + 0.02, START.everybody + 0.06, START.process + 0.03)
    assert not disturbed(START, end, 2)


def test_nothing_is_noticed_where_the_system_cannot_say() -> None:
    assert not disturbed(None, START, 1)
    assert not disturbed(START, None, 1)


def test_processor_times_grow() -> None:
    first, second = read_processor_times(), read_processor_times()
    if first is None or second is None:
        pytest.skip("the system does not say how its cores are used")
    assert all(early <= late for early, late in zip(first, second, strict=True))
