"""The exchange of params with servers gives the same values by every transport."""

import functools
import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga import RunError
from dsinga.base.buffers import address
from dsinga.cluster.on_workers.connections import connection_to
from dsinga.cluster.on_workers.server_actor import ServerActor
from dsinga.cluster.server import Shard, Slice, SliceSpec, slice_for_servers
from dsinga.cluster.server.service import ShardService
from dsinga.cluster.transport.endpoints import Endpoint, close_endpoints, find_service
from dsinga.cluster.transport.interface import DirectTransport, Transport, wait_for
from dsinga.cluster.transport.remote import RemoteTransport
from dsinga.cluster.transport.shared_memory import connect_to_host
from dsinga.cluster.worker.config import ServerKey
from dsinga.cluster.worker.exchange import Exchange, move_local_slices, param_homes
from dsinga.cluster.worker.exchange_options import ExchangeOptions, Meter
from dsinga.cluster.worker.server_client import ServerClient, WorkerId
from dsinga.job import Compression, ParamConf, PullTime, UpdaterConf
from dsinga.layers.interface.declarations import ParamSpec
from dsinga.net import Param
from dsinga.ops import SparseRows
from dsinga.training import create_updater
from dsinga.training.local_updater import LocalUpdater
from dsinga.training.updaters import SGD
from tests.support.refusals import refused
from tests.support.small_job import assert_same
from tests.support.socket_pairs import socket_pair

SHAPES = {"w1": (4, 3), "b1": (4,), "w2": (2, 4), "b2": (2,)}
RUN = "exchange"
NUMBERS = itertools.count(os.getpid() << 32)  # no two processes of a test run serve under one name


def start_values() -> dict[str, np.ndarray]:
    return {name: np.full(shape, 1.0, np.float32) for name, shape in SHAPES.items()}


def cut(servers: int) -> list[Slice]:
    return slice_for_servers({name: int(np.prod(shape)) for name, shape in SHAPES.items()}, servers)


def with_momentum() -> UpdaterConf:
    return UpdaterConf(type="kSGD", momentum=0.9, weight_decay=0.01, learning_rate={"type": "kFixed", "base_lr": 0.1})


def plain_sgd() -> UpdaterConf:
    return UpdaterConf(type="kSGD", learning_rate={"type": "kFixed", "base_lr": 1.0})


class Transports(list[Transport]):
    """The transports to servers; through shared memory each worker has its own."""

    def __init__(self, make: Callable[[], list[Transport]], one_each: bool):
        super().__init__(make())
        self._make, self._one_each = make, one_each

    def of(self, partition: int) -> list[Transport]:
        return self._make() if self._one_each and partition else self


@pytest.fixture(params=["direct", "remote", "shared"])
def make_transports(request: pytest.FixtureRequest, processes: Client) -> Iterator[Callable[..., Transports]]:
    """A function that makes servers for so many contributors, and returns a transport of one kind to each of them."""
    futures: list[object] = []
    opened: list[Transport] = []

    def make(
        contributors: int, servers: int = 2, conf: UpdaterConf | None = None, trainable: bool = True, codec: Any = None
    ) -> Transports:
        slices, values, updater = cut(servers), start_values(), create_updater(conf or plain_sgd())
        connects: list[Callable[[], Transport]] = []
        for server in range(servers):
            pushers = tuple(range(contributors))
            specs = [
                SliceSpec(slice_, trainable, contributors=pushers, is_gradient=not trainable)
                for slice_ in slices
                if slice_.server == server
            ]
            first = {s.slice.id: values[s.slice.param].reshape(-1)[s.slice.start : s.slice.stop].copy() for s in specs}
            if request.param == "direct":
                shard = Shard(specs, updater)
                shard.put(first)
                connects.append(functools.partial(direct, shard))
                continue
            key = ServerKey(f"{RUN}{next(NUMBERS)}", 0, 0, server)
            future = processes.submit(
                ServerActor, key, specs, updater, (0,), 0, None, 20.0, codec, actor=True, pure=False
            )
            futures.append(future)
            with processes.as_current():
                actor = future.result(timeout=30)
                actor.put(first, None).result(timeout=30)
            if request.param == "remote":
                (address,) = processes.who_has(future)[future.key]
                connects.append(functools.partial(by_connection, address, key.name, processes, opened))
            else:
                connects.append(functools.partial(by_shared_memory, key.name))
        return Transports(lambda: [connect() for connect in connects], one_each=request.param != "direct")

    yield make
    for transport in opened:
        transport.close()
    processes.run(close_endpoints, lambda name: name.startswith(RUN), "the test is over")


def direct(shard: Shard) -> DirectTransport:
    service = ShardService(shard)
    return DirectTransport(lambda: service, "the server")


def by_connection(address: str, name: str, client: Client, opened: list[Transport]) -> Transport:
    opened.append(RemoteTransport(connection_to(address, name, client)()))
    return opened[-1]


def by_shared_memory(name: str) -> Transport:
    transport = connect_to_host(name)
    assert transport is not None
    return transport


def client_of(transport: Transport, partition: int = 0, partitions: int = 1) -> ServerClient:
    return ServerClient(transport, WorkerId(0, 0, partition, partitions))


def exchange(
    transports: list[Transport],
    partition: int = 0,
    partitions: int = 1,
    options: ExchangeOptions = ExchangeOptions(),  # noqa: B008
    meter: Meter | None = None,
    **homes: Any,
) -> Exchange:
    """Return an exchange; ``homes`` are arguments of ``param_homes``."""
    options = options._replace(timeout=min(options.timeout, 20.0), bucket_bytes=16)
    transports = transports.of(partition) if isinstance(transports, Transports) else transports
    clients = {server: client_of(transport, partition, partitions) for server, transport in enumerate(transports)}
    slices = homes.pop("slices", cut(len(clients)))
    all_homes = param_homes(SHAPES, slices, clients, homes.get("lasting"), homes.get("replicas"))
    return Exchange(all_homes, clients, options, meter, homes.get("replicas"))


class TestExchange:
    """The same values by every transport."""

    def test_a_pushed_gradient_is_in_the_next_value(self, make_transports) -> None:
        view = exchange(make_transports(1))
        for step in range(3):
            view.begin(step)
            values = {name: np.array(view[name]) for name in view}
            for name in reversed(list(view)):
                view.push(name, np.full(SHAPES[name], 0.25, np.float32))
            view.finish()
            view.begin(step + 1)
            for name in view:
                np.testing.assert_array_equal(view[name], values[name] - 0.25)

    @pytest.mark.parametrize(
        ("name", "gradient", "message"),
        [
            ("w11", np.zeros((4, 3), np.float32), "pushed for 'w11', which is no param of the net; did you mean 'w1'"),
            ("w1", np.zeros((3, 4), np.float32), r"be float32 of shape \(4, 3\), not float32 of shape \(3, 4\)"),
            ("w1", np.zeros((4, 3)), "not float64"),
            ("b2", [0.0, 0.0], "not a list"),
            ("w1", SparseRows(np.array([2, 2]), np.zeros((2, 3), np.float32), (4, 3)), "must be strictly ascending"),
            ("b1", np.zeros(4, np.float32), "'b1' was pushed twice in step 0"),
        ],
    )
    def test_a_wrong_push_is_refused(self, make_transports, name, gradient, message) -> None:
        view = exchange(make_transports(1))
        view.begin(0)
        view.push("b1", np.zeros(4, np.float32))
        refused(lambda: view.push(name, gradient), message)

    def test_mistakes_are_named_with_their_remedies(self, make_transports) -> None:
        view = exchange(make_transports(1))
        view.begin(0)
        view.push("w1", np.zeros(SHAPES["w1"], np.float32))
        refused(lambda: view["w1"], "'w1' was looked up after its gradient was pushed")
        view = exchange(make_transports(2), options=ExchangeOptions(timeout=0.1))
        view.begin(1)
        refused(lambda: view["w1"], r"waited 0.1 s for the value of 'w1' at step 1 from server 0", error=RunError)
        view = exchange(make_transports(2))
        view.begin(1)
        threading.Timer(0.2, lambda: view.abort("the driver has ended the run")).start()
        refused(lambda: view["b1"], "the driver has ended the run", error=RunError)

    def test_a_gradient_does_not_overtake_that_of_the_step_before(self, make_transports) -> None:
        """Also for a worker that looks up no value."""
        transports = make_transports(2)

        def work(partition: int) -> None:
            view = exchange(transports, partition, 2)
            for step in range(4):
                view.begin(step)
                if partition and step:
                    view["w1"]
                for name in reversed(list(view)):
                    view.push(name, np.full(SHAPES[name], 1 + step, np.float32))
                view.finish()
            view.begin(4)
            for name in view:
                np.testing.assert_array_equal(view[name], start_values()[name] - 2 * (1 + 2 + 3 + 4))

        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(work, range(2)):
                pass

    def test_a_param_without_gradient_is_pushed_zeros(self, make_transports) -> None:
        view = exchange(make_transports(1))
        view.begin(0)
        view.push("w2", np.ones(SHAPES["w2"], np.float32))
        view.finish()
        view.begin(1)
        np.testing.assert_array_equal(view["w1"], start_values()["w1"])
        np.testing.assert_array_equal(view["w2"], start_values()["w2"] - 1)

    def test_arrays_are_summed_and_rows_gathered_over_workers(self, make_transports) -> None:
        transports = make_transports(2)

        def work(number: int) -> tuple[np.ndarray, np.ndarray]:
            view = exchange(transports, number, 2)
            rows = np.full((number + 1, 2), number)
            return view.all_reduce("mean", np.array([1.0, number])), view.all_gather("x", rows)

        with ThreadPoolExecutor(2) as pool:
            for sum_, rows in pool.map(work, range(2)):
                np.testing.assert_array_equal(sum_, [2.0, 1.0])
                np.testing.assert_array_equal(rows, [[0, 0], [1, 1], [1, 1]])


def train_two(transports: list[Transport], steps: int = 3, **options: Any) -> list[dict[str, np.ndarray]]:
    """Let two workers push random gradients for some steps; return the final values of each."""

    def work(partition: int) -> dict[str, np.ndarray]:
        arguments = {name: make() for name, make in options.items()}
        view = exchange(transports, partition, 2, **arguments)
        for step in range(steps):
            rng = np.random.default_rng([step, partition])
            view.begin(step)
            for name in view:
                assert view[name].shape == SHAPES[name]
            for name in reversed(list(view)):
                view.push(name, rng.standard_normal(SHAPES[name]).astype(np.float32))
            view.finish()
        view.begin(steps)
        return {name: np.array(view[name]) for name in view}

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, range(2)))


def params_named(names: Sequence[str]) -> dict[str, Param]:
    return {name: Param(name, ParamSpec(name, SHAPES[name]), ParamConf()) for name in names}


def replica(names: Sequence[str] = tuple(SHAPES)) -> LocalUpdater:
    replicated = LocalUpdater(create_updater(with_momentum()), params_named(names))
    replicated.put({name: start_values()[name] for name in names})
    return replicated


class TestOptions:
    """Options of the exchange change no bit of the values, except for compression."""

    @pytest.mark.parametrize(
        "options",
        [
            ExchangeOptions(PullTime.kDeferred),
            ExchangeOptions(overlap=False),
            ExchangeOptions(PullTime.kDeferred, overlap=False),
        ],
    )
    def test_the_time_of_the_pull_changes_nothing(self, make_transports, options: ExchangeOptions) -> None:
        expected = train_two(make_transports(2, conf=with_momentum()))
        for values in (*train_two(make_transports(2, conf=with_momentum()), options=lambda: options), expected[1]):
            assert_same(values, expected[0])

    @pytest.mark.parametrize("options", [ExchangeOptions(), ExchangeOptions(PullTime.kDeferred)])
    def test_workers_update_to_the_same_bits_as_servers(self, make_transports, options: ExchangeOptions) -> None:
        expected = train_two(make_transports(2, conf=with_momentum()))
        for values in train_two(make_transports(2, trainable=False), replicas=replica, options=lambda: options):
            assert_same(values, expected[0])

    def test_without_overlap_nothing_is_sent_before_the_end(self, make_transports) -> None:
        (transport,) = make_transports(1, 1)
        view = exchange([transport], options=ExchangeOptions(overlap=False))
        view.begin(0)
        for name in view:
            view.push(name, np.ones(SHAPES[name], np.float32))
        with pytest.raises(TimeoutError):
            client_of(transport).pull([0], 1, {}).result(timeout=0.1)
        view.finish()
        assert wait_for(client_of(transport).pull([0], 1, {}), 20, "")[0][0] == 0

    def test_a_gradient_of_the_whole_batch_is_applied_by_the_worker(self, make_transports) -> None:
        """Every worker computes the gradient of w1 for the whole batch; servers do not have w1."""
        slices = [slice_ for slice_ in cut(2) if slice_.param != "w1"]
        view = exchange(make_transports(1), slices=slices, replicas=replica(["w1"]))
        expected, updater = start_values()["w1"].reshape(-1), create_updater(with_momentum())
        state = updater.create_state(expected.size)
        for step in range(3):
            view.begin(step)
            gradient = np.full(SHAPES["w1"], step + 1, np.float32)
            view.push("w1", gradient)
            refused(lambda: view["w1"], "'w1' was looked up after its gradient was pushed")
            view.finish()
            updater.update(step, expected, gradient.reshape(-1), state)
        view.begin(3)
        np.testing.assert_array_equal(view["w1"], expected.reshape(SHAPES["w1"]))
        assert (view["b1"] == start_values()["b1"]).all()

    @pytest.mark.parametrize("compression", [Compression.kOneBit, Compression.kTopK, Compression.kBF16])
    def test_every_transport_compresses_to_the_same_numbers(self, make_transports, compression: Compression) -> None:
        options = ExchangeOptions(compression=compression, topk_share=0.3)
        shard = Shard([SliceSpec(slice_, contributors=(0, 1)) for slice_ in cut(1)], create_updater(with_momentum()))
        shard.put({slice_.id: np.ones(slice_.size, np.float32) for slice_ in cut(1)})
        expected = train_two([direct(shard)], options=lambda: options)
        actual = train_two(make_transports(2, 1, with_momentum(), codec=options.codec()), options=lambda: options)
        for values in (*actual, expected[1]):
            assert_same(values, expected[0])
        plain = train_two(make_transports(2, 1, with_momentum()))
        assert any((plain[0][name] != expected[0][name]).any() for name in SHAPES)

    @pytest.mark.parametrize("update", ["server", "worker"])
    def test_bfloat16_halves_the_bytes_of_gradients(self, make_transports, update: str) -> None:
        """Values of servers come back in float32, sums of gradients that workers apply in bfloat16."""
        numbers, meter = sum(int(np.prod(shape)) for shape in SHAPES.values()), Meter()

        def train(options: ExchangeOptions, gradient: float) -> dict[str, np.ndarray]:
            trainable = update == "server"
            transports = make_transports(1, 1, with_momentum(), trainable, options.codec())
            view = exchange(transports, options=options, replicas=None if trainable else replica(), meter=meter)
            view.begin(0)
            view.wait_all()
            meter.start()
            for name in view:
                view.push(name, np.full(SHAPES[name], gradient, np.float32))
            view.finish()
            view.begin(1)
            view.wait_all()
            return {name: np.array(view[name]) for name in view}

        expected = train(ExchangeOptions(), 1)
        assert meter.crossing + meter.within == (4 + 4) * numbers
        assert_same(train(ExchangeOptions(compression=Compression.kBF16), 1 + 2**-12), expected)
        if meter.crossing:
            assert meter.crossing == (2 + (4 if update == "server" else 2)) * numbers

    def test_lasting_params_are_not_compressed(self, make_transports) -> None:
        options = ExchangeOptions(compression=Compression.kTopK, topk_share=0.01)
        (transport,) = make_transports(1, 1, trainable=False, codec=options.codec())
        view = exchange([transport], options=options, lasting=dict.fromkeys(SHAPES, 1.0))
        view.begin(0)
        new = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
        for name, value in new.items():
            view.push(name, value.copy())
        view.finish()
        view.begin(1)
        for name in view:
            np.testing.assert_array_equal(view[name], new[name])


def test_mistakes_are_named_with_their_remedies() -> None:
    class Failing(SGD):
        def change(self, *arguments: object) -> None:
            raise OSError("no such file")

    shard = Shard([SliceSpec(Slice(0, "w", 0, 2, 0))], Failing(plain_sgd()))
    shard.put({0: np.zeros(2, np.float32)})
    endpoint = Endpoint("failing", ShardService(shard), to_host=False)
    here, there = socket_pair()
    endpoint.accept(there)
    reply = client_of(RemoteTransport(here)).push_pull(0, {0: np.zeros(2, np.float32)}, {}, False)
    refused(lambda: reply.result(60), r"push_pull failed: OSError\('no such file'\)", error=RunError)
    endpoint.close("the test is over")
    service = ShardService(Shard([], create_updater(plain_sgd())))
    refused(lambda: service.handle("__init__", [], []), "a server has no method '__init__'", error=RunError)


def test_a_released_server_actor_is_not_found() -> None:
    key = ServerKey("released", 0, 0, 0)
    actor = ServerActor(key, [], create_updater(plain_sgd()), (0,), 0, None, 1.0, None, False)
    service = find_service(key.name)
    assert isinstance(service, ShardService)
    waiting = service.shard.pull([], 0)
    del actor
    gc.collect()
    assert find_service(key.name) is None
    assert waiting.done()


def served_value(shard: Shard) -> np.ndarray:
    """Return the memory of the first value of a server."""
    return shard.slices[0].value


class TestTwoHosts:
    """A param with a slice on a server of this process, and one on another host."""

    SIZE = 40

    @pytest.fixture
    def shards(self) -> Iterator[list[Shard]]:
        shards = []
        for server in range(2):
            spec = SliceSpec(Slice(server, "w", server * self.SIZE, (server + 1) * self.SIZE, server))
            shards.append(Shard([spec], create_updater(plain_sgd())))
            shards[server].put({server: np.full(self.SIZE, 1.0, np.float32)})
        yield shards
        close_endpoints(lambda name: name == "elsewhere", "the test is over")

    @pytest.fixture
    def clients(self, shards: list[Shard]) -> Iterator[dict[int, ServerClient]]:
        here, there = socket_pair()
        Endpoint("elsewhere", ShardService(shards[1]), to_host=False).accept(there)
        transport = RemoteTransport(here)
        yield {0: client_of(direct(shards[0])), 1: client_of(transport)}
        transport.close()

    def view(self, clients: dict[int, ServerClient], **options: Any) -> Exchange:
        slices = [Slice(server, "w", server * self.SIZE, (server + 1) * self.SIZE, server) for server in range(2)]
        homes = param_homes({"w": (2, self.SIZE)}, slices, clients)
        move_local_slices(homes, clients)
        return Exchange(homes, clients, ExchangeOptions(timeout=20.0, **options))

    @pytest.mark.parametrize("pull", PullTime)
    def test_values_arrive_where_they_are_used(self, shards, clients, pull) -> None:
        """The value is one array in all steps, part of which is the memory of the server in this process."""
        view = self.view(clients, pull=pull)
        bases = set()
        for step in range(4):
            view.begin(step)
            value = view["w"]
            np.testing.assert_array_equal(value, np.full((2, self.SIZE), 1.0 - step))
            bases.add(address(value))
            assert np.shares_memory(value, served_value(shards[0]))
            assert not value.flags.writeable
            view.push("w", np.ones((2, self.SIZE), np.float32))
            view.finish()
        assert len(bases) == 1

    def test_a_second_worker_of_the_process_gets_copies(self, shards, clients) -> None:
        first, second = self.view(clients), self.view(clients)
        for view in (first, second):
            view.begin(0)
            np.testing.assert_array_equal(view["w"], np.ones((2, self.SIZE)))
        assert np.shares_memory(first["w"], served_value(shards[0]))
        assert not np.shares_memory(second["w"], first["w"])

    def test_values_that_other_processes_read_stay_where_they_are(self, shards, clients) -> None:
        service = ShardService(shards[0], None, published=True)
        clients[0] = client_of(DirectTransport(lambda: service, "the server"))
        view, before = self.view(clients), served_value(shards[0])
        view.begin(0)
        np.testing.assert_array_equal(view["w"], np.ones((2, self.SIZE)))
        assert served_value(shards[0]) is before

    def test_values_that_several_groups_change_stay_where_they_are(self) -> None:
        shard = Shard([SliceSpec(Slice(0, "w", 0, 3, 0))], create_updater(plain_sgd()), groups=(0, 1))
        shard.put({0: np.ones(3, np.float32)})
        memory = np.zeros(3, np.float32)
        shard.move({0: memory})
        assert not memory.any()
