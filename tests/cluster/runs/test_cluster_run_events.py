"""What a run publishes for those who watch the cluster: events, at most two a second; nothing where none can."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client

from dsinga.api import train
from dsinga.base.errors import Cancelled, Diverged, RunError
from dsinga.cluster import connect, run_events
from dsinga.cluster.run_events import MAX_ROWS, DashboardLoader, EventSender, _state, _thinned
from dsinga.job import Job
from dsinga.loop.cancellation import CANCELLED
from tests.support.scheduler_messages import count_messages
from tests.support.small_job import with_topology


@pytest.fixture
def watched(threads: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """The in-process cluster, whose scheduler nobody could look at otherwise, without earlier events."""
    monkeypatch.setattr(run_events, "_is_hidden", lambda client: False)
    monkeypatch.setattr(run_events, "EVENT_SECONDS", 0.0)
    threads.run_on_scheduler(lambda dask_scheduler: dask_scheduler._broker.truncate("dsinga"))
    return threads


def published(client: Client) -> list[dict[str, Any]]:
    return [event for _, event in client.get_events("dsinga")]


def test_a_run_publishes_its_rows_timings_and_end(job: Job, watched: Client) -> None:
    job = with_topology(job, 2).replace(train_steps=30, test_freq=30)
    result = train(job, watched, progress=False)
    first, *rounds, last = published(watched)
    assert {(event["run"], event["job"]) for event in (first, *rounds, last)} == {(first["run"], "small")}
    assert [event["event"] for event in rounds] == ["round"] * len(rounds)
    assert (first["event"], first["step"], first["train_steps"], first["batchsize"]) == ("begin", 0, 30, 100)
    assert [len(workers) for workers in first["workers"]] == [2]
    assert (last["event"], last["step"], last["state"]) == ("end", 30, "done")
    assert [row for event in rounds for row in event["rows"]] == list(result.history)
    groups = [group for event in rounds for group in event["groups"]]
    assert sum(group["steps"] for group in groups) == 30
    kinds = ("compute", "exchange", "data", "crossing", "within")
    assert all(len(group[kind]) == 2 and min(group[kind]) >= 0 for group in groups for kind in kinds)
    assert sum(sum(group["within"]) for group in groups) > 0
    steps = [event["step"] for event in rounds if "step" in event]
    assert steps == sorted(steps)
    assert steps[-1] == 30
    assert all(event["samples_per_second"] > 0 for event in rounds if "step" in event)


def test_asynchronous_groups_publish_how_stale_their_gradients_are(job: Job, watched: Client) -> None:
    job = with_topology(job, 1).replace(train_steps=60)
    train(job.replace(cluster=job.cluster.replace(nworker_groups=2)), watched, progress=False)
    events = published(watched)
    steps: Counter[int] = Counter()
    for event in events[1:-1]:
        steps.update({group["group"]: group["steps"] for group in event["groups"]})
    assert steps == {0: 60, 1: 60}
    counts = [entry for event in events[1:-1] for entry in event["staleness"]]
    assert all(updates > 0 and 0 <= largest <= total <= updates * largest for _, updates, total, largest in counts)


def test_a_failed_run_publishes_its_end_too(job: Job, watched: Client) -> None:
    def fail(step: int, metrics: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(with_topology(job, 1), watched, progress=False, extensions=[fail])
    last = published(watched)[-1]
    assert (last["event"], last["state"]) == ("end", "failed")


@pytest.mark.parametrize(
    ("stopped", "failure", "state"),
    [
        ("", None, "done"),
        ("the loss is good enough", None, "stopped"),
        (CANCELLED, None, "cancelled"),
        ("", Cancelled(""), "cancelled"),
        ("", KeyboardInterrupt(), "cancelled"),
        ("", Diverged(""), "diverged"),
        ("", RunError(""), "failed"),
    ],
)
def test_the_word_for_an_end(stopped: str, failure: BaseException | None, state: str) -> None:
    assert _state(stopped, failure) == state


def test_rows_of_training_are_thinned_and_others_are_not() -> None:
    rows = [{"step": step, "phase": "val" if step % 10 == 0 else "train"} for step in range(1, 5001)]
    kept = _thinned(rows)
    assert [row for row in kept if row["phase"] == "val"] == rows[9::10]
    train_steps = [row["step"] for row in kept if row["phase"] == "train"]
    assert MAX_ROWS / 2 < len(train_steps) <= MAX_ROWS
    assert train_steps[-1] == 4999
    assert _thinned(rows[:50]) == rows[:50]


def test_an_embedded_cluster_without_a_dashboard_gets_no_events(job: Job) -> None:
    with connect(workers=1) as client:
        counts = count_messages(client.cluster.scheduler)
        train(with_topology(job, 1).replace(train_steps=5), client, progress=False)
        assert counts["log_event"] == 0
        assert client.get_events("dsinga") == ()


def test_a_second_has_at_most_two_events(job: Job, watched: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_events, "EVENT_SECONDS", 3600.0)
    train(with_topology(job, 1).replace(train_steps=40, disp_freq=1), watched, progress=False)
    kinds = [event["event"] for event in published(watched)]
    assert kinds == ["begin", "round", "round", "end"]  # the first round, and the rest at the end


def test_events_are_sent_in_order_and_those_too_many_are_left_out(threads: Client) -> None:
    threads.run_on_scheduler(lambda dask_scheduler: dask_scheduler._broker.truncate("dsinga"))
    sender = EventSender(threads)
    for number in range(200):
        sender.send({"event": "round", "number": number})
    sender.send({"event": "end"})
    sender.wait(60)
    *rounds, last = published(threads)
    numbers = [event["number"] for event in rounds]
    assert numbers == sorted(numbers)
    assert 0 < len(numbers) <= 200
    assert last == {"event": "end"}


def test_a_client_that_was_closed_meanwhile_does_no_harm() -> None:
    with connect(workers=1) as client:
        sender = EventSender(client)
    sender.send({"event": "end"})
    sender.wait(5)


def test_a_fault_of_the_pages_fails_no_run(job: Job, watched: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = []

    def fail(scheduler: Any) -> None:
        faults.append(scheduler)
        raise AttributeError("another version of bokeh")

    monkeypatch.setattr("dsinga.cluster.dashboard.install", fail)
    watched.run_on_scheduler(lambda dask_scheduler: dask_scheduler.plugins.pop(DashboardLoader.name, None))
    train(with_topology(job, 1).replace(train_steps=2), watched, progress=False)
    assert len(faults) == 1
    assert published(watched)[-1]["state"] == "done"
