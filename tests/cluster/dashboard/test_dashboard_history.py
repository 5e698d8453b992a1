"""The dashboard's history of runs: read from events, in bounded memory, with a colour for each run."""

import itertools
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.cluster.dashboard.history import MAX_RUNS, SLOTS, TOPIC, RunHistory, labels, shortened
from dsinga.cluster.dashboard.records import Series
from tests.support.run_events import GROUP, begin, end, round_of


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> RunHistory:
    """A history for which the time goes on by a second with each event."""
    clock = itertools.count(1000.0)
    monkeypatch.setattr("dsinga.cluster.dashboard.history.time", types.SimpleNamespace(time=lambda: next(clock)))
    return RunHistory()


def tell(history: RunHistory, *events: Any) -> RunHistory:
    for event in events:
        history.log_event(TOPIC, event)
    return history


@given(st.integers(1, 40), st.lists(st.integers(), max_size=200))
def test_a_series_keeps_few_points_evenly_and_the_last_one(most: int, values: list[int]) -> None:
    series = Series(most)
    for x, y in enumerate(values):
        series.add(x, y)
    points = list(series)
    assert len(points) == len(series) <= most + 1
    assert all(values[int(x)] == y for x, y in points)
    assert not values or points[-1] == (len(values) - 1, values[-1])
    strides = {int(second[0] - first[0]) for first, second in itertools.pairwise(points[:-1])}
    assert len(strides) <= 1
    assert len(values) > most or [y for _, y in points] == values


def test_the_figures_of_a_round(history: RunHistory) -> None:
    rows = [
        {"step": 50, "phase": "train", "time": 0.5, "epoch": 1.0, "loss": 0.5, "accuracy": 0.75},
        {"step": 50, "phase": "val", "time": 0.6, "loss": 0.7},
    ]
    event = round_of("a", step=60, samples_per_second=640.0, metrics={"loss": 0.4}, rows=rows, groups=[GROUP])
    (record,) = tell(history, begin("a", workers=[["x", "y"]]), event, event).runs.values()
    assert (record.step, record.state, record.ended) == (60, "running", None)
    assert {key: list(series) for key, series in record.metrics.items()} == {
        ("train", "loss"): [(50, 0.5)] * 2,
        ("train", "accuracy"): [(50, 0.75)] * 2,
        ("val", "loss"): [(50, 0.7)] * 2,
    }
    assert list(record.speed) == [(1001.0, 640.0), (1002.0, 640.0)]
    assert record.seconds[0, 1] == {"compute": 0.2, "exchange": 0.025, "data": 0.025}
    assert record.crossing.last == 150 / 2.5  # the slowest worker took 2.5 s for the round
    assert record.totals == {"steps": 20, "compute": 6, "exchange": 1.5, "data": 1.5, "crossing": 300, "within": 20}
    assert record.addresses == {(0, 0): "x", (0, 1): "y"}


def test_bytes_a_second_are_of_all_groups_also_of_those_without_a_new_round(history: RunHistory) -> None:
    other = {**GROUP, "group": 1, "crossing": [500, 500]}
    tell(history, begin("a"), *(round_of("a", groups=[group]) for group in (GROUP, other, GROUP)))
    assert history.runs["a"].crossing.columns()[1] == [60.0, 460.0, 460.0]


def test_a_run_ends_by_its_event_or_when_its_client_has_gone(history: RunHistory) -> None:
    tell(history, begin("a"), begin("b", client="d"), begin("c", client="d"), end("c", state="failed"))
    history.remove_client(None, "d")
    assert {run: record.state for run, record in history.runs.items()} == {"a": "running", "b": "lost", "c": "failed"}


def test_events_of_others_change_nothing(history: RunHistory) -> None:
    history.log_event("all", begin("a"))
    tell(history, None, "text", {}, {"event": "begin"}, {"run": "a"})
    assert history.runs == {}
    assert history.version == 0


def test_what_was_published_before_is_replayed_with_its_time() -> None:
    history = RunHistory()
    history.replay([(5.0, begin("a")), (9.0, end("a"))])
    assert [(record.begun, record.ended) for record in history.runs.values()] == [(5.0, 9.0)]


def test_old_runs_are_forgotten_and_running_ones_never(history: RunHistory) -> None:
    tell(history, begin("first"))
    for number in range(2 * MAX_RUNS):
        tell(history, begin(f"{number}"), end(f"{number}"))
    assert len(history.runs) == MAX_RUNS
    assert list(history.runs)[:2] == ["first", f"{MAX_RUNS + 1}"]


def test_running_runs_have_different_colours_and_the_newest_of_each_is_shown(history: RunHistory) -> None:
    tell(history, begin("long"))
    for number in range(3 * SLOTS):
        tell(history, begin(f"{number}"), end(f"{number}"))
        slots = [record.slot for record in history.shown()]
        assert len(set(slots)) == len(slots) == min(number + 2, SLOTS)
    assert [record.run for record in history.shown()] == ["long", *(str(2 * SLOTS + 1 + k) for k in range(SLOTS - 1))]
    tell(history, *(begin(f"more {number}") for number in range(2 * SLOTS)))
    assert len(history.shown()) == SLOTS


def test_labels_tell_runs_of_one_job_apart(history: RunHistory) -> None:
    tell(history, begin("11112222"), begin("33334444"), begin("55556666", job="lenet"))
    names = labels(list(history.runs.values()))
    assert list(names.values()) == ["mlp 1111", "mlp 3333", "lenet"]
    assert shortened("a-job-with-a-long-name 1111", 16) == "a-job-with… 1111"
    assert shortened("mlp 1111", 16) == "mlp 1111"
