"""Runs as futures: submitted, looked at, waited for, awaited and cancelled."""

import asyncio
import gc
import inspect
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from distributed import Client

import dsinga
from dsinga import Cancelled, UserError
from dsinga.api.execution import TrainingOptions
from dsinga.cluster import connect
from dsinga.cluster.clients import SharedCluster
from dsinga.job import Job
from dsinga.monitor.workspace_lock import locked_workspace
from tests.support.async_client import async_client
from tests.support.refusals import refused
from tests.support.small_job import assert_same, with_topology

LIMIT = 60


@pytest.fixture(scope="module")
def single() -> Iterator[Client]:
    """A client of an in-process cluster that has room for one run at a time."""
    with connect(workers=1) as client:
        yield client


@pytest.fixture
def short(job: Job) -> Job:
    return with_topology(job, 1).replace(train_steps=4, disp_freq=2)


class Gate:
    """A function of a run that reports each row of metrics, and holds the run up until the gate is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        self.reached.set()
        assert self.opened.wait(LIMIT)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def endless(job: Job) -> Job:
    return job.replace(train_steps=1_000_000, disp_freq=1)


def test_a_submitted_run_has_the_result_of_training(short: Job, single: Client) -> None:
    ended: SimpleQueue[dsinga.Run] = SimpleQueue()
    tested = short.replace(test_freq=4)
    run = dsinga.submit(tested, single)
    run.add_done_callback(ended.put)
    assert_same(run.result(LIMIT).params, dsinga.train(tested, single, progress=False).params)
    assert ended.get(timeout=LIMIT) is run
    assert run.exception() is None
    assert run.done()
    assert not run.cancelled()
    assert not run.cancel()
    progress = run.progress
    assert (progress["state"], progress["step"], progress["steps"]) == ("finished", 4, 4)
    assert progress["samples_per_second"] > 0
    assert progress["loss"] > 0
    assert run.history.phase("train")[:, "step"] == [2, 4]
    assert progress["test_accuracy"] == run.history.phase("test")[-1, "accuracy"]
    assert repr(run).startswith("<Run of 'small': finished, step 4 of 4, samples_per_second ")
    assert '<progress value="4" max="4">' in run._repr_html_()


def test_a_run_waits_behind_another_one_and_can_be_cancelled_there(short: Job, single: Client, gate: Gate) -> None:
    first = dsinga.submit(short, single, extensions=[gate])
    assert gate.reached.wait(LIMIT)
    assert first.state == "running"
    assert first.history[-1, "step"] == 2
    second, third = dsinga.submit(short, single), dsinga.submit(short, single)
    assert second.state == third.state == "queued"
    assert second.cancel()
    refused(lambda: second.result(LIMIT), "the run was cancelled", error=Cancelled)
    assert second.cancelled()
    assert second.state == "cancelled"
    gate.opened.set()
    assert first.result(LIMIT).step == third.result(LIMIT).step == 4


def test_a_run_that_is_cancelled_goes_on_from_its_checkpoint(short: Job, single: Client, tmp_path: Path) -> None:
    running = threading.Event()
    run = dsinga.submit(endless(short), single, workspace=tmp_path, extensions=[lambda *_: running.set()])
    assert running.wait(LIMIT)
    assert run.cancel()
    refused(lambda: run.result(LIMIT), r"\d+ steps were done; go on from .*step\d+ with resume=True", error=Cancelled)
    steps = run.progress["step"] + 3
    resumed = dsinga.train(
        endless(short).replace(train_steps=steps), single, workspace=tmp_path, resume=True, progress=False
    )
    whole = dsinga.train(endless(short).replace(train_steps=steps), single, progress=False)
    assert_same(resumed.params, whole.params)


def test_a_cluster_keeps_the_client_of_a_run_of_graphs_that_is_cancelled(short: Job, single: Client) -> None:
    """The scheduler fails to cancel tasks of graphs on which others depend, and drops the client then."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("distributed.core")
    logger.addHandler(handler)
    try:
        seen = threading.Event()
        run = dsinga.submit(
            short.replace(train_steps=10_000), single, grain="graph", extensions=[lambda step, metrics: seen.set()]
        )
        assert seen.wait(LIMIT)
        run.cancel()
        assert isinstance(run.exception(LIMIT), Cancelled)
        assert single.submit(abs, -1, pure=False).result(LIMIT) == 1
    finally:
        logger.removeHandler(handler)
    assert errors == []


def test_the_fault_of_a_run_is_raised_by_its_result(short: Job, single: Client) -> None:
    run = dsinga.submit(short.replace(train_steps=0), single)
    refused(lambda: run.result(LIMIT), "train_steps")
    assert isinstance(run.exception(), UserError)
    assert run.state == "failed"
    assert "train_steps" in repr(run)


def test_a_timeout_leaves_the_run_as_it_is(short: Job, single: Client, gate: Gate) -> None:
    run = dsinga.submit(short, single, extensions=[gate])
    refused(lambda: run.result(0.01), "<Run.*> has not ended after 0.01 s", error=TimeoutError)
    refused(lambda: run.exception("10ms"), "has not ended after 0.01 s", error=TimeoutError)
    refused(lambda: run.result("soon"), "^timeout= takes seconds or a time such as '5s', not 'soon'")

    async def wait() -> dsinga.Result:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run, 0.01)  # cancels the task that waits, not the run
        gate.opened.set()
        return await run

    assert asyncio.run(asyncio.wait_for(wait(), LIMIT)).step == run.result(f"{LIMIT} seconds").step == 4


def test_a_task_lends_its_thread_while_it_waits_for_a_run(short: Job, single: Client) -> None:
    task = single.submit(lambda job: dsinga.submit(job).result(LIMIT).step, short, pure=False)
    assert task.result(LIMIT) == 4


@pytest.mark.parametrize("given", [False, True])
def test_runs_are_awaited(short: Job, given: bool) -> None:
    async def use() -> list[Any]:
        async with async_client(set_as_default=not given) as client:
            runs = [dsinga.submit(short.replace(seed=seed), client if given else None) for seed in (0, 0, 1)]
            if given:
                refused(lambda: runs[0].result(LIMIT), "await it: result = await run")
            return await asyncio.gather(*runs)

    first, second, other = asyncio.run(asyncio.wait_for(use(), LIMIT))
    assert_same(first.params, second.params)
    assert (first.params["w2"] != other.params["w2"]).any()


def test_to_cancel_what_awaits_training_cancels_the_run(short: Job) -> None:
    async def use() -> int:
        async with async_client() as client:
            running = asyncio.Event()
            loop = asyncio.get_running_loop()

            def tell(step: int, metrics: dict[str, float]) -> None:
                loop.call_soon_threadsafe(running.set)

            training = asyncio.ensure_future(
                dsinga.train(endless(short), client, progress=False, extensions=[tell])  # type: ignore[arg-type]
            )
            await running.wait()
            training.cancel()
            with pytest.raises(asyncio.CancelledError):
                await training
            return (await dsinga.train(short, client, progress=False)).step  # type: ignore[misc]

    assert asyncio.run(asyncio.wait_for(use(), LIMIT)) == 4, "the thread is free again"


def test_an_argument_that_training_does_not_have_is_refused_at_once(short: Job) -> None:
    refused(lambda: dsinga.submit(short, epoch=3), r"'epoch'; did you mean 'epochs'", error=TypeError)


def test_the_options_are_the_arguments_of_train() -> None:
    names = ["job", "client", *(field.name for field in fields(TrainingOptions))]
    assert list(inspect.signature(dsinga.train).parameters) == names
    defaults = {field.name: field.default for field in fields(TrainingOptions)}
    parameters = inspect.signature(dsinga.train).parameters
    assert {name: parameters[name].default for name in defaults} == defaults


def test_runs_without_a_cluster_share_one() -> None:
    shared = SharedCluster()
    with shared.open(1) as first:
        with shared.open(1) as second:
            assert second is first
        with shared.open(first.sync(first.scheduler.identity)["n_workers"] + 1) as larger:
            assert larger is not first
        assert first.status == "running"
    assert first.status == "closed"
    with shared.open(1) as later:
        assert later is not first
        assert later.status == "running"


def test_a_run_without_a_cluster_uses_the_shared_one(short: Job) -> None:
    assert dsinga.submit(short).result(LIMIT).step == 4


def test_a_failure_that_nobody_asks_for_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.conf")
    asked, ignored = dsinga.submit(missing), dsinga.submit(missing)
    assert isinstance(asked.exception(LIMIT), UserError)
    ignored._thread.join(LIMIT)
    with caplog.at_level(logging.ERROR):  # Dask has set the level higher
        del asked, ignored
        gc.collect()
    errors = [record.getMessage() for record in caplog.records if record.name == "dsinga.cluster.background"]
    assert len(errors) == 1
    assert f"the run of {missing!r} has failed: cannot read the job file" in errors[0]


def test_two_runs_do_not_write_to_one_workspace(single: Client, short: Job, gate: Gate, tmp_path: Path) -> None:
    first = dsinga.submit(endless(short), single, workspace=tmp_path, extensions=[gate])
    assert gate.reached.wait(LIMIT)
    with pytest.raises(UserError, match="another run is writing to the workspace"), locked_workspace(tmp_path):
        pass
    gate.opened.set()
    first.cancel()
    first.exception(LIMIT)
    assert dsinga.train(short, single, workspace=tmp_path, progress=False).step == 4


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"workers": "2"}, "workers is '2'; give a whole number of at least 1"),
        ({"resume": "autoo"}, "no checkpoint 'autoo' to resume from; give the folder of one"),
        ({"resources": {"NONE": 1}}, "no Dask worker has the resource NONE=1"),
        ({"resources": "GPU=1"}, "resources= takes amounts by name, as in {'GPU': 1}, not 'GPU=1'"),
        ({"hosts": "nowhere"}, "no Dask worker is on 'nowhere'"),
        ({"hosts": [17]}, "no Dask worker is on '17'"),
    ],
)
def test_arguments_without_a_meaning_here_are_refused(
    single: Client, short: Job, option: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refused(lambda: dsinga.train(short, single, workspace=tmp_path, progress=False, **option), re.escape(message))


def test_a_worker_is_chosen_by_the_number_that_is_its_name(single: Client, short: Job) -> None:
    assert dsinga.train(short, single, hosts=[0], progress=False).step == 4  # type: ignore[list-item]


def test_a_result_with_a_recovery_shows_its_metrics(job: Job) -> None:
    result = dsinga.train(with_topology(job, 1).replace(train_steps=4, disp_freq=2), progress=False)
    before = repr(result)
    assert "train loss" in before
    result.history.append({"step": 4, "phase": "recovery", "time": 1.0, "lost": "a Dask worker", "steps_again": 2})
    assert repr(result) == before
