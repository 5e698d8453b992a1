"""Gradients that lie where a server in another process sees them: nobody copies them, and none is overwritten."""

from __future__ import annotations

import gc
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.job import UpdaterConf, loads
from dsinga.ops import buffers
from dsinga.server import Push, Shard, Slice, SliceSpec
from dsinga.training import create_updater
from dsinga.transport.roads import DirectRoad
from dsinga.transport.send_buffer import SendBuffer
from dsinga.transport.sharedroad import Counter, SharedRoad, open_road, open_send_buffer
from tests.support.small_job import JOB, assert_same, with_topology

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="anonymous memory files are Linux's")

SIZE = 30_000  # numbers: more than what the pool leaves to malloc
WAIT = 20.0


class Server:
    """A server of this process that is reached as if it were of another one, with one slice of two contributors."""

    def __init__(self, size: int = SIZE, width: int = 0, clip_norm: float = 0.0):
        self.name = uuid.uuid4().hex
        self.slice = Slice(0, "w", 0, size, 0, width)
        conf = UpdaterConf(type="kSGD", learning_rate={"type": "kFixed", "base_lr": 1.0}, clip_norm=clip_norm)
        self.shard = Shard([SliceSpec(self.slice, contributors=(0, 1))], create_updater(conf))
        self.sizes, self.widths = {0: size}, {0: width} if width else {}
        self.counter = Counter(self.name, self.shard, self.sizes, self.widths, None)
        self.shard.put(self.counter.settle({0: np.zeros(size, np.float32)}))

    def visitor(self) -> tuple[SharedRoad, SendBuffer | None]:
        """Return a partition's road, and its outbox."""
        road = open_road(self.name, self.sizes, 0, self.widths)
        assert road is not None
        return road, open_send_buffer([road], [self.slice], {"w": (self.slice.size,)})

    def push(self, partition: int, number: float, step: int = 0) -> None:
        """Let a partition of this process push the same number everywhere."""
        gradient = np.full(self.slice.size, number, np.float32)
        self.shard.push(Push(0, 0, step, partition), {0: gradient})


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.counter.close()


def filled(outbox: SendBuffer, number: float) -> np.ndarray:
    """Return an array of the pool as a partition gets it that has the outbox."""
    with buffers.use_bases(outbox.bases):
        array = buffers.empty((SIZE,))
    array[:] = number
    return array


def arrived(server: Server, road: SharedRoad) -> None:
    """Return when the server has taken what the road has sent."""
    road.total("here", 0, np.zeros(1), [0]).result(WAIT)


def test_the_server_adds_up_what_lies_there_when_all_have_come(server: Server) -> None:
    """So it has no copy of the first gradient, which changes here after it has come, as it never does in a run."""
    road, outbox = server.visitor()
    assert outbox is not None
    gradient = filled(outbox, 1.0)
    answer = road.push_pull(Push(0, 0, 0, 0), {0: gradient})
    arrived(server, road)
    gradient[:10] = 5.0
    server.push(1, 2.0)
    value = answer.result(WAIT)[0]
    np.testing.assert_array_equal(value[:10], np.full(10, -7.0))
    np.testing.assert_array_equal(value[10:], np.full(SIZE - 10, -3.0))


@pytest.mark.parametrize("deferred", [False, True])
def test_memory_is_not_used_again_before_the_server_is_done_with_it(server: Server, deferred: bool) -> None:
    road, outbox = server.visitor()
    assert outbox is not None
    gradient = filled(outbox, 1.0)
    place = outbox.place(gradient)
    assert place is not None
    if deferred:
        road.push(Push(0, 0, 0, 0), {0: gradient})
        answer = road.pull([0], 1)
    else:
        answer = road.push_pull(Push(0, 0, 0, 0), {0: gradient})
    del gradient
    assert outbox.place(filled(outbox, 7.0)) is None, "another array lies elsewhere meanwhile"
    server.push(1, 2.0)
    np.testing.assert_array_equal(answer.result(WAIT)[0], np.full(SIZE, -3.0))
    assert outbox.place(filled(outbox, 7.0)) == place


def test_a_gradient_that_lies_elsewhere_arrives_too(server: Server) -> None:
    """In the steps before and after others, too, and as part of a larger array."""
    road, outbox = server.visitor()
    assert outbox is not None
    gradients = [np.full(SIZE, 1.0, np.float32), filled(outbox, 1.0), np.full((3, SIZE), 1.0, np.float32)[1]]
    for step, gradient in enumerate(gradients):
        answer = road.push_pull(Push(0, 0, step, 0), {0: gradient})
        server.push(1, 1.0, step)
        np.testing.assert_array_equal(answer.result(WAIT)[0], np.full(SIZE, -2.0 * (step + 1)))


def test_a_gradient_outlives_the_partition_that_has_pushed_it(server: Server) -> None:
    road, outbox = server.visitor()
    assert outbox is not None
    road.push(Push(0, 0, 0, 0), {0: filled(outbox, 1.0)})
    arrived(server, road)
    del road, outbox
    gc.collect()
    server.push(1, 2.0)
    np.testing.assert_array_equal(server.shard.pull([0], 1).result(WAIT)[0], np.full(SIZE, -3.0))


def test_the_server_writes_nothing_there() -> None:
    """Where it needs the whole sum, the pool's memory or that of its own partition holds it."""
    server = Server(clip_norm=1e9)
    visitors = [server.visitor() for _ in range(2)]
    gradients = []
    for partition, (road, outbox) in enumerate(visitors):
        assert outbox is not None
        gradients.append(filled(outbox, partition + 1.0))
        road.push(Push(0, 0, 0, partition), {0: gradients[-1]})
    np.testing.assert_array_equal(visitors[0][0].pull([0], 1).result(WAIT)[0], np.full(SIZE, -3.0))
    np.testing.assert_array_equal(gradients[0], np.full(SIZE, 1.0))
    np.testing.assert_array_equal(gradients[1], np.full(SIZE, 2.0))
    server.counter.close()


def test_a_step_that_is_skipped_holds_no_memory(server: Server) -> None:
    road, outbox = server.visitor()
    assert outbox is not None
    place = outbox.place(filled(outbox, 1.0))
    road.push(Push(0, 0, 0, 0, True), {0: np.empty(0, np.float32)})
    assert outbox.place(filled(outbox, 1.0)) == place


@pytest.mark.parametrize(("size", "width"), [(8, 0), (SIZE, 10)])
def test_small_gradients_and_those_of_rows_have_no_outbox(size: int, width: int) -> None:
    server = Server(size, width)
    assert server.visitor()[1] is None
    server.counter.close()


def test_nor_has_a_partition_whose_servers_are_in_its_process(server: Server) -> None:
    assert open_send_buffer([DirectRoad(server.shard, 0)], [server.slice], {"w": (SIZE,)}) is None


def test_params_of_one_shape_have_memory_each() -> None:
    outbox = SendBuffer([4 * SIZE, 8 * SIZE, 4 * SIZE])
    outbox.segment.close()
    with buffers.use_bases(outbox.bases):
        arrays = [buffers.empty(shape) for shape in ((SIZE,), (2, SIZE // 2), (SIZE, 2), (SIZE,))]
    places = [outbox.place(array) for array in arrays]
    assert None not in places[:3]
    assert len(set(places)) == 4
    assert places[3] is None
    assert outbox.place(arrays[2][SIZE // 2 :]) == places[2] + 4 * SIZE
    assert outbox.place(arrays[1].T) is None


def mapped() -> int:
    """Return how many pieces of shared memory this process has mapped or open, but what nobody refers to."""
    gc.collect()
    held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("memfd:dsinga" in line for line in [*held, *Path("/proc/self/maps").read_text().splitlines()])


def test_processes_train_to_the_bits_of_threads_and_keep_no_memory(
    stores: Path, threads: Client, processes: Client
) -> None:
    job = loads(JOB.replace("num_output: 10 ", "num_output: 80 "), str(stores / "small.conf"))
    job = with_topology(job.replace(train_steps=10), 2, 2)
    expected = train(job, threads, progress=False)
    before = processes.run(mapped)
    for _ in range(2):
        assert_same(train(job, processes, progress=False).params, expected.params)
    deadline = time.monotonic() + WAIT
    while (after := processes.run(mapped)) != before:
        assert time.monotonic() < deadline, (before, after)
