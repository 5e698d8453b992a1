"""Updates in a background thread: the last worker to push does not wait for them, and the bits are the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dsinga.errors import RunError
from dsinga.job import UpdaterConf
from dsinga.server import BackgroundExecutor, InlineExecutor, Push, Shard, Slice, SliceSpec
from dsinga.server.update_executors import MIN_BACKGROUND_ELEMENTS
from dsinga.training import create_updater
from dsinga.training.updaters import SGD

WAIT = 10.0  # seconds; only a failing test waits so long
SIZES = {0: MIN_BACKGROUND_ELEMENTS + 1, 1: 8, 2: 2 * MIN_BACKGROUND_ELEMENTS}
CONF = UpdaterConf(type="kSGD", momentum=0.9, weight_decay=0.01)


class GatedUpdater(SGD):
    """Waits before each update until it is allowed to go on."""

    def __init__(self) -> None:
        super().__init__(CONF)
        self.gate = threading.Event()
        self.fails = False
        self.threads: set[threading.Thread] = set()

    def change(self, *arguments) -> None:
        self.threads.add(threading.current_thread())
        assert self.gate.wait(WAIT)
        if self.fails:
            raise ValueError("broken")
        super().change(*arguments)


def make_shard(updater, executor=BackgroundExecutor) -> Shard:
    specs = [SliceSpec(Slice(id, f"w{id}", 0, size, 0), contributors=(0, 1)) for id, size in SIZES.items()]
    shard = Shard(specs, updater, executor=executor)
    shard.put({id: np.ones(size, np.float32) for id, size in SIZES.items()})
    return shard


@pytest.fixture
def gated() -> Iterator[tuple[Shard, GatedUpdater]]:
    updater = GatedUpdater()
    shard = make_shard(updater)
    yield shard, updater
    updater.gate.set()
    shard.close(RunError("the run has ended"))


def push(shard: Shard, step: int, worker: int, ids=SIZES, skip: bool = False) -> None:
    rng = np.random.default_rng([step, worker])
    gradients = {id: rng.standard_normal(SIZES[id], np.float32) for id in ids}
    shard.push(Push(0, 0, step, worker, skip), gradients)


def test_the_bits_are_those_of_inline_updates() -> None:
    shards = [make_shard(create_updater(CONF), executor) for executor in (BackgroundExecutor, InlineExecutor)]
    for shard in shards:
        for step in range(3):
            for worker in (1, 0):
                push(shard, step, worker)
            shard.pull(SIZES, step + 1).result(WAIT)
    background, inline = (shard.snapshot(3, WAIT) for shard in shards)
    for id in SIZES:
        np.testing.assert_array_equal(background.values[id], inline.values[id])
        np.testing.assert_array_equal(background.state[id]["history"], inline.state[id]["history"])
    shards[0].close(RunError("the run has ended"))


def test_the_last_push_returns_before_the_update(gated: tuple[Shard, GatedUpdater]) -> None:
    shard, updater = gated
    pulled = shard.pull([0], 1)
    push(shard, 0, 0)
    push(shard, 0, 1)
    assert not pulled.done()
    updater.gate.set()
    assert pulled.result(WAIT).keys() == {0}


def test_a_small_update_is_done_by_the_last_push(gated: tuple[Shard, GatedUpdater]) -> None:
    shard, updater = gated
    updater.gate.set()
    push(shard, 0, 0, [1])
    push(shard, 0, 1, [1])
    assert shard.pull([1], 1).done()
    assert updater.threads == {threading.current_thread()}


def test_a_skipped_step_advances_the_version(gated: tuple[Shard, GatedUpdater]) -> None:
    shard, _ = gated
    push(shard, 0, 0, skip=True)
    push(shard, 0, 1, skip=True)
    np.testing.assert_array_equal(shard.pull([0], 1).result(WAIT)[0], np.ones(SIZES[0]))


def test_an_error_of_the_updater_fails_waiting_and_later_calls(gated: tuple[Shard, GatedUpdater]) -> None:
    shard, updater = gated
    updater.fails = True
    updater.gate.set()
    pulled = shard.pull([0], 1)
    push(shard, 0, 0)
    push(shard, 0, 1)
    with pytest.raises(RunError, match=r"updating slice w0\[0:65537\] at step 0 failed: ValueError\('broken'\)"):
        pulled.result(WAIT)
    with pytest.raises(RunError, match="failed: ValueError"):
        push(shard, 1, 0)


def test_the_thread_ends_with_the_server() -> None:
    updater = GatedUpdater()
    shard = make_shard(updater)
    before = set(threading.enumerate())
    push(shard, 0, 0)
    push(shard, 0, 1)
    (thread,) = set(threading.enumerate()) - before
    shard.close(RunError("the run has ended"))
    updater.gate.set()
    thread.join(WAIT)
    assert not thread.is_alive()
