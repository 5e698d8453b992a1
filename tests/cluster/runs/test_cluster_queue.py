"""Several runs at once on one cluster: each takes free Dask workers, waits for some, and gives them back."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from dsinga import Cancelled, RunError, UserError, cluster
from dsinga.api import roots, train
from dsinga.cluster.queue import claims
from dsinga.cluster.queue.claims import Request, claim_workers
from dsinga.cluster.run.driver import TrainedParams
from dsinga.cutting.cluster_topology import Topology
from dsinga.job import Job
from dsinga.loop.cancellation import Cancellation
from dsinga.loop.initial_state import RunOptions
from tests.support.gated_runs import PATIENCE, Gate, run_states
from tests.support.polling import wait_until
from tests.support.refusals import refused
from tests.support.small_job import assert_same, with_topology

pytestmark = pytest.mark.usefixtures("announced_at_once")


class Runs:
    """Starts runs in threads, each with a client of its own of the same scheduler."""

    def __init__(self, client: Client, pool: ThreadPoolExecutor, clients: contextlib.ExitStack):
        self.client, self.pool, self._clients = client, pool, clients

    def new_client(self) -> Client:
        client = Client(self.client.scheduler.address, set_as_default=False)  # type: ignore[union-attr]
        return self._clients.enter_context(client)

    def start(self, job: Job, gate: Gate, client: Client | None = None, **options: Any) -> Future[TrainedParams]:
        client = client or self.new_client()
        return self.pool.submit(cluster.train, job, client, gate, RunOptions(roots=roots(job, None), **options))

    def states(self) -> dict[str, str]:
        """Return the state of each run by the name of its job, in the order of their arrival."""
        return run_states(self.client)

    def wait_until(self, states: dict[str, str]) -> None:
        """Wait until these are the states of all runs."""
        wait_until(lambda: self.states() == states, PATIENCE)


@pytest.fixture
def runs(threads: Client) -> Iterator[Runs]:
    """Runs on three Dask workers of one thread each."""
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as clients:
        yield Runs(threads, pool, clients)
        assert run_states(threads) == {}


def named(job: Job, name: str, workers: int = 1) -> Job:
    return with_topology(job, workers).replace(name=name)


def endless(job: Job, name: str, workers: int = 1) -> Job:
    return named(job, name, workers).replace(train_steps=1_000_000)


def test_runs_of_several_clients_take_free_workers_and_wait_their_turn(job: Job, runs: Runs) -> None:
    gates = [Gate() for _ in range(5)]
    alone = train(named(job, "alone"), runs.client, progress=False).params
    results: list[Future[TrainedParams]] = []
    for number, (gate, workers) in enumerate(zip(gates, [1, 2, 2, 1, 1], strict=True)):
        results.append(runs.start(named(job, f"j{number}", workers), gate))
        runs.wait_until({f"j{k}": "running" if k < 2 else "waiting" for k in range(number + 1)})
    assert gates[4].waited.wait(PATIENCE)
    assert "the run of 'j4' has waited 0:00:" in gates[4].sentences[0]
    assert "for 1 worker thread: 'j0' of " in gates[4].sentences[0]
    assert "'j2' of " in gates[4].sentences[0]
    assert " came before; " in gates[4].sentences[0]
    gates[0].go.set()  # j2 needs two threads: those behind it must not take the one that is free now
    assert results[0].result(PATIENCE).step == 50
    runs.wait_until({"j1": "running", "j2": "waiting", "j3": "waiting", "j4": "waiting"})
    gates[1].go.set()
    runs.wait_until({"j2": "running", "j3": "running", "j4": "waiting"})
    gates[3].go.set()
    runs.wait_until({"j2": "running", "j4": "running"})
    for gate in gates:
        gate.go.set()
    outcomes = [result.result(PATIENCE) for result in results]
    assert [outcome.step for outcome in outcomes] == [50] * 5
    for number in (0, 3, 4):
        assert_same(outcomes[number].params, alone)


def fail() -> None:
    raise ZeroDivisionError


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("act", "error"), [(fail, ZeroDivisionError), pytest.param(interrupt, KeyboardInterrupt, marks=pytest.mark.ci)]
)
def test_a_run_that_fails_gives_its_workers_to_the_next(
    job: Job, runs: Runs, act: Callable[[], None], error: type[BaseException]
) -> None:
    first, second = Gate(), Gate(opened=True)

    def record(row: dict[str, Any]) -> None:
        Gate.record(first, row)
        act()

    first.record = record  # type: ignore[method-assign]
    failing = runs.start(endless(job, "first", 3), first)
    assert first.reached.wait(PATIENCE)
    following = runs.start(named(job, "second", 3), second)
    runs.wait_until({"first": "running", "second": "waiting"})
    first.go.set()
    with pytest.raises(error):
        failing.result(PATIENCE)
    assert following.result(PATIENCE).step == 50


def test_a_client_that_closes_gives_its_workers_to_the_next(job: Job, runs: Runs) -> None:
    first, second, third = Gate(), Gate(opened=True), Gate(opened=True)
    closing, waiting = runs.new_client(), runs.new_client()
    failing = runs.start(endless(job, "first", 3), first, closing)
    assert first.reached.wait(PATIENCE)
    leaving = runs.start(named(job, "second", 3), second, waiting)
    runs.wait_until({"first": "running", "second": "waiting"})
    following = runs.start(named(job, "third", 3), third)
    runs.wait_until({"first": "running", "second": "waiting", "third": "waiting"})
    waiting.close()
    runs.wait_until({"first": "running", "third": "waiting"})
    closing.close()
    first.go.set()
    assert following.result(PATIENCE).step == 50
    for result in (failing, leaving):
        assert result.exception(PATIENCE) is not None


def test_a_run_is_cancelled_at_once_where_nothing_is_kept_of_it(job: Job, runs: Runs) -> None:
    gate, cancelled = Gate(), threading.Event()
    running = runs.start(endless(job, "first", 3), gate, cancelled=cancelled)
    assert gate.reached.wait(PATIENCE)
    cancelled.set()
    gate.go.set()
    refused(lambda: running.result(PATIENCE), "the run was cancelled", "steps were done", error=Cancelled)


def test_a_run_that_waits_says_that_the_cluster_has_become_too_small(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CALL_SECONDS", 0.05)
    topology = Topology(2, 1)
    sentences: SimpleQueue[str] = SimpleQueue()
    cancelled = threading.Event()

    def claim(client: Client) -> None:
        with claim_workers(client, Request("second", "second", topology), Cancellation(cancelled), sentences.put):
            raise AssertionError("it has begun")

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as local,
        Client(local, set_as_default=False) as client,
        ThreadPoolExecutor() as pool,
        claim_workers(client, Request("first", "first", topology), Cancellation(), lambda sentence: None),
    ):
        waiting = pool.submit(claim, client)
        assert "for 2 worker threads: 'first' of " in sentences.get(timeout=PATIENCE)
        local.sync(local.workers[0].close)
        assert (
            "for 2 worker threads, more than the Dask cluster has now (1 thread on 1 Dask worker); it needs more Dask "
            "workers; it begins by itself, "
        ) in sentences.get(timeout=PATIENCE)
        cancelled.set()
        assert isinstance(waiting.exception(PATIENCE), Cancelled)


def test_a_wait_that_is_interrupted_or_ends_with_its_timeout_leaves_the_queue(job: Job, runs: Runs) -> None:
    first, second = Gate(), Gate()

    def waiting(sentence: str) -> None:
        raise KeyboardInterrupt  # as Ctrl-C does in the main thread

    second.waiting = waiting  # type: ignore[method-assign]
    running = runs.start(named(job, "first", 3), first)
    assert first.reached.wait(PATIENCE)
    with pytest.raises(KeyboardInterrupt):
        cluster.train(named(job, "second"), runs.client, second, RunOptions(roots=roots(job, None)))
    runs.wait_until({"first": "running"})
    with dask.config.set({"dsinga.queue_timeout": "10ms"}), pytest.raises(RunError, match="as long as dsinga.queue_t"):
        train(named(job, "second"), runs.client, progress=False)
    runs.wait_until({"first": "running"})
    first.go.set()
    assert running.result(PATIENCE).step == 50


def test_another_version_of_the_queue_is_refused(job: Job, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    train(named(job, "first"), runs.client, progress=False)
    monkeypatch.setattr(claims, "PROTOCOL", 4)
    with pytest.raises(UserError, match=r"another version of dsinga serves .* \(protocol 3, here 4\); use the"):
        train(named(job, "second"), runs.client, progress=False)


def test_the_queue_is_registered_once(runs: Runs) -> None:
    """Clients register it at the same time; what the first one has claimed stays."""
    request = Request("first", "first", Topology(1, 1))
    with claim_workers(runs.client, request, Cancellation(), print) as claim:
        assert [(info["nthreads"], info["host_threads"]) for info in claim.workers.values()] == [(1, 3)]
        request = Request("second", "second", Topology(2, 1))
        with claim_workers(runs.new_client(), request, Cancellation(), print) as other:
            assert [(info["nthreads"], info["host_threads"]) for info in other.workers.values()] == [(1, 2)] * 2
            assert not claim.workers.keys() & other.workers.keys()
            assert runs.states() == {"first": "running", "second": "running"}


def test_the_error_of_a_run_survives_that_its_client_has_given_the_scheduler_up(runs: Runs) -> None:
    client = runs.new_client()
    request = Request("lost", "lost", Topology(1, 1))
    with pytest.raises(KeyError, match="first"), claim_workers(client, request, Cancellation(), print):  # noqa: PT012
        client.sync(client.rpc.close)
        raise KeyError("first")
    client.close()  # so the scheduler drops the claim
