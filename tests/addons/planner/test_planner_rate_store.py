"""Measured rates are kept in a file of this machine, unless other work disturbed a measurement."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dsinga.addons.planner.rate_store import (
    BUSY,
    ProcessorTimes,
    RateStore,
    disturbed,
    rates_file,
    read_processor_times,
)


def must_not_measure() -> Sequence[float]:
    raise AssertionError("measured again")


def test_a_rate_is_measured_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "rates.json"
    store = RateStore(path)
    assert store.get("conv", lambda: (1.5, 2.5)) == (1.5, 2.5)
    assert store.get("conv", must_not_measure) == (1.5, 2.5)
    store.save()
    assert RateStore(path).get("conv", must_not_measure) == (1.5, 2.5)
    assert [file.name for file in path.parent.iterdir()] == ["rates.json"]


def test_two_stores_that_measure_at_the_same_time_keep_both_rates(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    first, second = RateStore(path), RateStore(path)
    first.get("a", lambda: (1,))
    second.get("b", lambda: (2,))
    first.save()
    second.save()
    both = RateStore(path)
    assert both.get("a", must_not_measure) == (1.0,)
    assert both.get("b", must_not_measure) == (2.0,)


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"versions": {}, "figures": {"a": [1]}}', '{"versions": null}', "\udcff"]
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(content, errors="surrogateescape")
    store = RateStore(path)
    assert store.get("a", lambda: (3,)) == (3,)
    store.save()
    assert RateStore(path).get("a", must_not_measure) == (3.0,)


def test_a_folder_that_cannot_be_made_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = RateStore(tmp_path / "file" / "rates.json")
    assert store.get("a", lambda: (3,)) == (3,)
    store.save()


def test_without_a_path_nothing_is_written() -> None:
    store = RateStore()
    assert store.get("a", lambda: (3,)) == (3,)
    store.save()


@pytest.mark.skipif(sys.platform != "linux", reason="the convention of Linux")
def test_the_file_is_in_the_cache_folder_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert rates_file().parent == tmp_path / "dsinga"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rates_file().parent == tmp_path / ".cache" / "dsinga"
    assert rates_file(tmp_path / "own").parent == tmp_path / "own"


def attempts_of(busy: Sequence[bool], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[float, ...]]:
    """Return figures 1, 2, ... of attempts to measure, during which the machine is busy or not, in this order."""
    watched = iter(busy)
    monkeypatch.setattr("dsinga.addons.planner.rate_store.start_watching", lambda: lambda: next(watched))
    return ((float(number),) for number in itertools.count(1))


def test_a_rate_is_measured_again_if_the_machine_was_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = attempts_of([True, False], monkeypatch)
    store = RateStore(tmp_path / "rates.json")
    assert store.get("conv", lambda: next(figures)) == (2.0,)
    assert store.warning == ""
    store.save()
    assert RateStore(store.path).get("conv", must_not_measure) == (2.0,)


def test_a_rate_of_a_busy_machine_is_used_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = attempts_of([True, True, False, False], monkeypatch)
    store = RateStore(tmp_path / "rates.json")
    assert store.get("conv", lambda: next(figures)) == (1.0,)
    assert store.get("conv", must_not_measure) == (1.0,)
    assert store.warning.startswith("the machine was busy with other work during 1 of 1 measurements")
    store.save()
    assert not store.path.exists()
    assert store.get("ip", lambda: next(figures)) == (3.0,)
    store.save()
    again = RateStore(store.path)
    assert again.get("ip", must_not_measure) == (3.0,)
    assert again.get("conv", lambda: (7,)) == (7.0,)


def test_what_is_measured_is_announced_at_once_and_that_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = attempts_of([False, True, True, True, True], monkeypatch)
    sentences: list[str] = []
    store = RateStore(announce=sentences.append)

    def measure() -> Sequence[float]:
        if not store.doubtful:
            assert sentences[-1] == "measuring the layer kReLU, 64x8, in 1 thread, measurement 1"
        return next(figures)

    for key in ("onednn, 1 at once x1: kReLU 64x8 { layer { } }", "a", "b"):
        store.get(key, measure, "the layer kReLU, 64x8, in 1 thread")
    assert sentences[1:] == [BUSY], "once, as soon as it is known"
    monkeypatch.setattr("dsinga.addons.planner.rate_store.ANNOUNCE_SECONDS", 0.0)
    monkeypatch.setattr("dsinga.addons.planner.rate_store.start_watching", lambda: lambda: False)
    store.get("barrier", measure)
    assert sentences[2:] == ["measuring barrier, measurement 4"]


def test_second_attempts_end_where_they_have_taken_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = attempts_of([True] * 5, monkeypatch)
    store = RateStore()
    assert store.get("a", lambda: next(figures)) == (1.0,)
    monkeypatch.setattr("dsinga.addons.planner.rate_store.REPEAT_SECONDS", 0.0)
    assert store.get("b", lambda: next(figures)) == (3.0,)
    assert store.get("c", lambda: next(figures)) == (4.0,)
    assert store.doubtful == {"a", "b", "c"}


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
