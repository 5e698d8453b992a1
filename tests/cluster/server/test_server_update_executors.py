"""Updates in a background thread, and shared by threads: the bits of inline updates, no wait without an end."""

import contextlib
import gc
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.server import (
    BackgroundExecutor,
    CooperativeExecutor,
    InlineExecutor,
    Push,
    Shard,
    Slice,
    SliceSpec,
    served_slice,
    update_executors,
)
from dsinga.job import UpdaterConf
from dsinga.training import create_updater
from dsinga.training.updaters import SGD
from tests.support.refusals import refused
from tests.support.shard_network import WAIT, GatedSGD

SIZES = {0: 2500, 1: 7, 2: 300}
STEPS = 4
SHARING = [BackgroundExecutor, CooperativeExecutor]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Split updates into many blocks, and run most of them in the background."""
    monkeypatch.setattr(served_slice, "BLOCK", 64)
    monkeypatch.setattr(update_executors, "MIN_BACKGROUND_ELEMENTS", 100)


def make_shard(workers, executor=CooperativeExecutor, updater=None):
    conf = UpdaterConf(type="kSGD", momentum=0.9, weight_decay=0.01)
    specs = [SliceSpec(Slice(id, f"w{id}", 0, n, 0), contributors=range(workers)) for id, n in SIZES.items()]
    shard = Shard(specs, updater or create_updater(conf), executor=executor)
    rng = np.random.default_rng(1)
    shard.put({id: rng.standard_normal(size, np.float32) for id, size in SIZES.items()})
    return shard


def gradient(id, step, worker):
    rng = np.random.default_rng([id, step, worker])
    return rng.standard_normal(SIZES[id], np.float32) * rng.choice(np.float32([1e-3, 1, 1e3]), SIZES[id])


def push(shard, step, worker, ids=SIZES):
    shard.push(Push(0, 0, step, worker), {id: gradient(id, step, worker) for id in ids})


@pytest.mark.parametrize("executor", [InlineExecutor, *SHARING])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_bits_are_those_of_inline_updates(workers, executor, restless_threads):
    shard, inline = make_shard(workers, executor), make_shard(workers, InlineExecutor)

    def work(worker):
        shuffle = random.Random(worker).shuffle
        for step in range(STEPS):
            order = list(SIZES)
            shuffle(order)
            for id in order:
                shard.executor.wait(shard.pull([id], step), WAIT)
                push(shard, step, worker, [id])

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    for step in range(STEPS):
        for worker in range(workers):
            push(inline, step, worker)
    actual, expected = shard.snapshot(STEPS, WAIT), inline.snapshot(STEPS, WAIT)
    for id in SIZES:
        np.testing.assert_array_equal(actual.values[id].view(np.int32), expected.values[id].view(np.int32))
        np.testing.assert_array_equal(actual.state[id]["history"], expected.state[id]["history"])
    shard.close(RunError("the run has ended"))


def test_the_last_push_runs_its_share_of_blocks_and_a_wait_the_rest():
    shard = make_shard(2)
    push(shard, 0, 0)
    pulled = shard.pull(SIZES, 1)
    push(shard, 0, 1)
    assert not pulled.done()
    assert shard.executor.wait(pulled, WAIT).keys() == SIZES.keys()


def test_a_single_worker_runs_all_blocks():
    shard = make_shard(1)
    push(shard, 0, 0)
    assert shard.pull(SIZES, 1).done()


@pytest.mark.parametrize("executor", SHARING)
def test_a_skipped_step_changes_nothing(executor):
    shard = make_shard(2, executor)
    before = shard.snapshot(0, WAIT).values
    for worker in range(2):
        shard.push(Push(0, 0, 0, worker, skip=True), dict.fromkeys(SIZES, np.empty(0, np.float32)))
    after = shard.executor.wait(shard.pull(SIZES, 1), WAIT)
    assert all((after[id] == before[id]).all() for id in SIZES)


def test_a_wait_ends_at_its_timeout():
    shard = make_shard(2)
    push(shard, 0, 0)
    with pytest.raises(TimeoutError):
        shard.executor.wait(shard.pull([0], 1), 0.01)


@pytest.mark.parametrize("executor", [InlineExecutor, *SHARING])
@pytest.mark.parametrize("broken", ["change", "rate"])
def test_an_error_of_the_updater_fails_pushes_and_waiting_pulls(broken, executor):
    class Failing(SGD):
        pass

    def fail(*arguments):
        raise ZeroDivisionError("a user's updater")

    updater = Failing(UpdaterConf(type="kSGD"))
    setattr(updater, broken, fail)
    shard = make_shard(2, executor, updater)
    waiting = shard.pull([0], 1)
    push(shard, 0, 0)
    with contextlib.suppress(ZeroDivisionError):  # in the thread that pushes or in that of the server
        push(shard, 0, 1)
    failed = "updating slice w.* at step 0 failed: ZeroDivisionError"
    refused(lambda: shard.executor.wait(waiting, WAIT), failed, error=RunError)
    refused(lambda: push(shard, 1, 0), failed, error=RunError)


@pytest.mark.parametrize("executor", [InlineExecutor, *SHARING])
def test_a_closed_shard_is_freed_without_garbage_collection(executor):
    """Its arrays are large, so they must not wait in a reference cycle for the garbage collector."""
    gc.disable()
    try:
        shard = make_shard(1, executor)
        push(shard, 0, 0)
        shard.executor.wait(shard.pull(SIZES, 1), WAIT)
        reference = weakref.ref(shard)
        shard.close(RunError("the run has ended"))
        del shard
        assert reference() is None
    finally:
        gc.enable()


def test_the_last_push_returns_before_an_update_in_the_background():
    updater = GatedSGD()
    shard = make_shard(2, BackgroundExecutor, updater)
    pulled = shard.pull([0], 1)
    push(shard, 0, 0, [0])
    push(shard, 0, 1, [0])
    assert not pulled.done()
    updater.gate.set()
    assert pulled.result(WAIT).keys() == {0}
    push(shard, 0, 0, [1])
    push(shard, 0, 1, [1])
    assert shard.pull([1], 1).done(), "a small update is done by the last push"
    assert threading.current_thread() in updater.threads
    shard.close(RunError("the run has ended"))


def test_the_background_thread_ends_with_the_server():
    updater = GatedSGD()
    shard = make_shard(2, BackgroundExecutor, updater)
    before = set(threading.enumerate())
    push(shard, 0, 0, [0])
    push(shard, 0, 1, [0])
    (thread,) = set(threading.enumerate()) - before
    shard.close(RunError("the run has ended"))
    updater.gate.set()
    thread.join(WAIT)
    assert not thread.is_alive()
