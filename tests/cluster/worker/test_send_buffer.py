"""Gradients in memory shared with a server of another process are not copied, and not overwritten too early."""

import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.base import buffers
from dsinga.cluster.server import Push, Shard, Slice, SliceSpec
from dsinga.cluster.server.service import ShardService
from dsinga.cluster.transport.endpoints import Endpoint, connect
from dsinga.cluster.transport.shared_buffer import SharedArrays
from dsinga.cluster.transport.shared_memory import connect_to_host
from dsinga.cluster.worker.server_client import SendBuffer, ServerClient, WorkerId, open_send_buffer
from dsinga.job import UpdaterConf, loads
from dsinga.training import create_updater
from tests.support.polling import wait_until
from tests.support.small_job import JOB, assert_same, with_topology

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="anonymous memory files are Linux's")

SIZE = 30_000  # numbers: more than what the pool leaves to malloc
WAIT = 60.0


class Server:
    """A server of this process, reached as if it were in another one, with one slice of two contributors."""

    def __init__(self, size: int = SIZE, width: int = 0, clip_norm: float = 0.0):
        self.name = uuid.uuid4().hex
        self.slice = Slice(0, "w", 0, size, 0, width)
        conf = UpdaterConf(type="kSGD", learning_rate={"type": "kFixed", "base_lr": 1.0}, clip_norm=clip_norm)
        self.shard = Shard([SliceSpec(self.slice, contributors=(0, 1))], create_updater(conf))
        arrays = SharedArrays({0: size})
        self.endpoint = Endpoint(self.name, ShardService(self.shard), arrays.buffer)
        self.shard.put(arrays.fill({0: np.zeros(size, np.float32)}))

    def connect(self, partition: int = 0) -> tuple[ServerClient, SendBuffer]:
        """Return the client of a worker, and its send buffer."""
        transport = connect_to_host(self.name)
        assert transport is not None
        client = ServerClient(transport, WorkerId(0, 0, partition, 1))
        send_buffer = open_send_buffer({0: transport}, [self.slice], {"w": (self.slice.size,)})
        assert send_buffer is not None
        client.use_send_buffer(send_buffer)
        return client, send_buffer

    def push(self, partition: int, number: float, step: int = 0) -> None:
        """Let a worker of this process push the same number everywhere."""
        gradient = np.full(self.slice.size, number, np.float32)
        self.shard.push(Push(0, 0, step, partition), {0: gradient})

    def close(self) -> None:
        self.endpoint.close("the test is over")


def place(send_buffer: SendBuffer, array: np.ndarray) -> int | None:
    """Return where in a send buffer an array lies."""
    return send_buffer.buffer.offset_of(array)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def filled(send_buffer: SendBuffer, number: float) -> np.ndarray:
    """Return an array of the pool, as a worker with this send buffer gets it."""
    with buffers.use_bases(send_buffer.bases):
        array = buffers.empty((SIZE,))
    array[:] = number
    return array


def wait_until_read(client: ServerClient) -> None:
    """Wait until the server has read all messages of the client."""
    client.collective("all_reduce", "here", np.zeros(1)).result(WAIT)


def test_the_server_adds_up_the_shared_gradients_when_all_have_come(server: Server) -> None:
    """The test changes the first gradient after its push, which a run never does, to show that there is no copy."""
    client, send_buffer = server.connect()
    gradient = filled(send_buffer, 1.0)
    answer = client.push_pull(0, {0: gradient}, {}, False)
    wait_until_read(client)
    gradient[:10] = 5.0
    server.push(1, 2.0)
    value = answer.result(WAIT)[0]
    np.testing.assert_array_equal(value[:10], np.full(10, -7.0))
    np.testing.assert_array_equal(value[10:], np.full(SIZE - 10, -3.0))


@pytest.mark.parametrize("deferred", [False, True])
def test_memory_is_reused_only_when_the_server_is_done_with_it(server: Server, deferred: bool) -> None:
    client, send_buffer = server.connect()
    gradient = filled(send_buffer, 1.0)
    offset = place(send_buffer, gradient)
    assert offset is not None
    if deferred:
        client.push(0, {0: gradient})
        answer = client.pull([0], 1, {})
    else:
        answer = client.push_pull(0, {0: gradient}, {}, False)
    del gradient
    assert place(send_buffer, filled(send_buffer, 7.0)) is None, "another array gets other memory meanwhile"
    server.push(1, 2.0)
    np.testing.assert_array_equal(answer.result(WAIT)[0], np.full(SIZE, -3.0))
    assert place(send_buffer, filled(send_buffer, 7.0)) == offset


def test_a_gradient_outside_of_the_send_buffer_arrives_too(server: Server) -> None:
    """Before and after a gradient in the send buffer, and as a row of a larger array."""
    client, send_buffer = server.connect()
    gradients = [np.full(SIZE, 1.0, np.float32), filled(send_buffer, 1.0), np.full((3, SIZE), 1.0, np.float32)[1]]
    for step, gradient in enumerate(gradients):
        answer = client.push_pull(step, {0: gradient}, {}, False)
        server.push(1, 1.0, step)
        np.testing.assert_array_equal(answer.result(WAIT)[0], np.full(SIZE, -2.0 * (step + 1)))


def test_a_gradient_outlives_the_worker_that_pushed_it(server: Server) -> None:
    client, send_buffer = server.connect()
    client.push(0, {0: filled(send_buffer, 1.0)})
    wait_until_read(client)
    del client, send_buffer
    gc.collect()
    server.push(1, 2.0)
    np.testing.assert_array_equal(server.shard.pull([0], 1).result(WAIT)[0], np.full(SIZE, -3.0))


def test_the_server_does_not_change_shared_gradients() -> None:
    """With clip_norm it needs the whole sum, which has memory of its own."""
    server = Server(clip_norm=1e9)
    connections = [server.connect(partition) for partition in range(2)]
    gradients = []
    for partition, (client, send_buffer) in enumerate(connections):
        gradients.append(filled(send_buffer, partition + 1.0))
        client.push(0, {0: gradients[-1]})
    np.testing.assert_array_equal(connections[0][0].pull([0], 1, {}).result(WAIT)[0], np.full(SIZE, -3.0))
    np.testing.assert_array_equal(gradients[0], np.full(SIZE, 1.0))
    np.testing.assert_array_equal(gradients[1], np.full(SIZE, 2.0))
    server.close()


def test_a_skipped_step_keeps_no_memory(server: Server) -> None:
    client, send_buffer = server.connect()
    offset = place(send_buffer, filled(send_buffer, 1.0))
    client.push(0, {0: np.empty(0, np.float32)}, skip=True)
    assert place(send_buffer, filled(send_buffer, 1.0)) == offset


@pytest.mark.parametrize(("size", "width"), [(8, 0), (SIZE, 10)])
def test_small_and_sparse_gradients_have_no_send_buffer(size: int, width: int) -> None:
    server = Server(size, width)
    transport = connect_to_host(server.name)
    assert transport is not None
    assert open_send_buffer({0: transport}, [server.slice], {"w": (size,)}) is None
    server.close()


def test_a_worker_with_servers_in_its_process_has_no_send_buffer(server: Server) -> None:
    assert open_send_buffer({0: connect(server.name, None)}, [server.slice], {"w": (SIZE,)}) is None


def test_params_of_the_same_shape_have_separate_memory() -> None:
    send_buffer = SendBuffer([4 * SIZE, 8 * SIZE, 4 * SIZE])
    send_buffer.buffer.close()
    with buffers.use_bases(send_buffer.bases):
        arrays = [buffers.empty(shape) for shape in ((SIZE,), (2, SIZE // 2), (SIZE, 2), (SIZE,))]
    places = [place(send_buffer, array) for array in arrays]
    assert None not in places[:3]
    assert len(set(places)) == 4
    assert places[3] is None
    assert place(send_buffer, arrays[2][SIZE // 2 :]) == places[2] + 4 * SIZE
    assert place(send_buffer, arrays[1].T) is None


def shared_memory_files() -> int:
    """Return how many files of shared memory this process has mapped or open, after garbage collection if any."""
    if count := mapped_or_open():
        gc.collect()
        count = mapped_or_open()
    return count


def mapped_or_open() -> int:
    """Return how many files of shared memory this process has mapped or open."""
    open_files = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("memfd:dsinga" in line for line in [*open_files, *Path("/proc/self/maps").read_text().splitlines()])


def test_processes_give_the_bits_of_threads_and_release_shared_memory(
    stores: Path, threads: Client, processes: Client
) -> None:
    job = loads(JOB.replace("num_output: 10 ", "num_output: 80 "), str(stores / "small.conf"))
    job = with_topology(job.replace(train_steps=6), 2, 2)
    expected = train(job, threads, progress=False)
    before = processes.run(shared_memory_files)
    for _ in range(2):
        assert_same(train(job, processes, progress=False).params, expected.params)
    wait_until(lambda: processes.run(shared_memory_files) == before)
