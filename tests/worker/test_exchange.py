"""The exchange of params, and the contract of the roads that it takes."""

from __future__ import annotations

import asyncio
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

from dsinga import RunError, UserError
from dsinga.cluster.server_actor import ServerActor
from dsinga.job import Compression, ParamConf, PullTime, UpdaterConf
from dsinga.layers.base import ParamSpec
from dsinga.net import Param
from dsinga.ops import SparseRows
from dsinga.server import Push, Shard, Slice, SliceSpec, slice_for_servers
from dsinga.training import create_updater
from dsinga.training.updaters import SGD
from dsinga.transport.roads import ActorRoad, DirectRoad, Road, tell, wait_for
from dsinga.transport.sharedroad import SharedRoad, open_road
from dsinga.worker.exchange import Exchange
from dsinga.worker.exchange_options import ExchangeOptions
from dsinga.worker.local_servers import ServerKey, close_shards, local_shard
from dsinga.worker.meter import Meter
from dsinga.worker.replicated_params import ReplicaState, ReplicatedParams
from tests.support.small_job import assert_same

SHAPES = {"w1": (4, 3), "b1": (4,), "w2": (2, 4), "b2": (2,)}
RUN = "roads"
NUMBERS = itertools.count(os.getpid() << 32)  # no two processes of a test run serve under one name


def start_values() -> dict[str, np.ndarray]:
    return {name: np.full(shape, 1.0, np.float32) for name, shape in SHAPES.items()}


def cut(servers: int) -> list[Slice]:
    return slice_for_servers({name: int(np.prod(shape)) for name, shape in SHAPES.items()}, servers)


def with_momentum() -> UpdaterConf:
    return UpdaterConf(type="kSGD", momentum=0.9, weight_decay=0.01, learning_rate={"type": "kFixed", "base_lr": 0.1})


def plain_sgd() -> UpdaterConf:
    return UpdaterConf(type="kSGD", learning_rate={"type": "kFixed", "base_lr": 1.0})


class Ways(list[Road]):
    """The roads to servers; a partition may have to have its own."""

    def __init__(self, make: Callable[[], list[Road]], one_each: bool):
        super().__init__(make())
        self._make, self._one_each = make, one_each

    def of(self, partition: int) -> list[Road]:
        return self._make() if self._one_each and partition else self


@pytest.fixture(params=["direct", "actor", "shared"])
def roads(request: pytest.FixtureRequest, processes: Client) -> Iterator[Callable[..., Ways]]:
    """Make servers for so many contributors; return the road to each, of every kind."""
    made: list[object] = []

    def make(
        contributors: int, servers: int = 2, conf: UpdaterConf | None = None, trainable: bool = True, codec: Any = None
    ) -> Ways:
        slices, values, updater = cut(servers), start_values(), create_updater(conf or plain_sgd())
        found: list[Callable[[], Road]] = []
        for server in range(servers):
            pushers = tuple(range(contributors))
            specs = [SliceSpec(piece, trainable, contributors=pushers) for piece in slices if piece.server == server]
            mine = {s.slice.id: values[s.slice.param].reshape(-1)[s.slice.start : s.slice.stop].copy() for s in specs}
            if request.param == "direct":
                shard = Shard(specs, updater)
                shard.put(mine)
                found.append(functools.partial(DirectRoad, shard, 0))
                continue
            key = ServerKey(f"{RUN}{next(NUMBERS)}", 0, 0, server)
            future = processes.submit(
                ServerActor, key, specs, updater, (0,), 0, None, 20.0, codec, actor=True, pure=False
            )
            made.append(future)
            with processes.as_current():
                actor = future.result(timeout=30)
                actor.put(mine, None).result(timeout=30)
            sizes, widths = ({s.slice.id: getattr(s.slice, what) for s in specs} for what in ("size", "width"))
            widths = {id: width for id, width in widths.items() if width}
            if request.param == "actor":
                found.append(functools.partial(CurrentClient, actor, sizes, processes, widths))
            else:
                found.append(functools.partial(found_road, key.name, sizes, widths))
        return Ways(lambda: [way() for way in found], one_each=request.param == "shared")

    yield make
    processes.run(close_shards, lambda key: key.run.startswith(RUN))


def found_road(name: str, sizes: dict[int, int], widths: dict[int, int]) -> SharedRoad:
    road = open_road(name, sizes, 0, widths)
    assert road is not None
    return road


class CurrentClient(ActorRoad):
    """An ActorRoad walked outside a task, where an Actor needs a current client."""

    def __init__(self, actor: object, sizes: dict[int, int], client: Client, widths: dict[int, int]):
        super().__init__(actor, sizes, 0, widths)
        self._client = client

    def pull(self, *arguments):
        with self._client.as_current():
            return super().pull(*arguments)

    def push(self, push, gradients):
        with self._client.as_current():
            return super().push(push, gradients)

    def push_pull(self, *arguments):
        with self._client.as_current():
            return super().push_pull(*arguments)

    def total(self, *arguments):
        with self._client.as_current():
            return super().total(*arguments)

    def gather(self, *arguments):
        with self._client.as_current():
            return super().gather(*arguments)


def exchange(roads: list[Road], partition: int = 0, partitions: int = 1, **options: Any) -> Exchange:
    options = {"timeout": 20.0, "bucket_bytes": 16, "slices": cut(len(roads)), **options}
    roads = roads.of(partition) if isinstance(roads, Ways) else roads
    return Exchange(SHAPES, options.pop("slices"), roads, (0, 0, partition), partitions, **options)


class TestRoads:
    """What the exchange relies on, by every road."""

    def test_values_come_back_in_the_shapes_of_the_params(self, roads) -> None:
        view = exchange(roads(1))
        view.begin(0)
        for name, value in start_values().items():
            np.testing.assert_array_equal(view[name], value)

    def test_a_pushed_gradient_is_in_the_next_value(self, roads) -> None:
        view = exchange(roads(1))
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
            ("w1", SparseRows(np.array([2, 2]), np.zeros((2, 3), np.float32), (4, 3)), "its rows must rise .*once"),
            ("b1", np.zeros(4, np.float32), "'b1' was pushed twice in step 0"),
        ],
    )
    def test_a_wrong_push_is_refused(self, roads, name, gradient, message) -> None:
        view = exchange(roads(1))
        view.begin(0)
        view.push("b1", np.zeros(4, np.float32))
        with pytest.raises(UserError, match=message):
            view.push(name, gradient)

    def test_a_param_is_not_looked_up_after_its_push(self, roads) -> None:
        view = exchange(roads(1))
        view.begin(0)
        view.push("w1", np.zeros(SHAPES["w1"], np.float32))
        with pytest.raises(UserError, match="'w1' was looked up after its gradient was pushed"):
            view["w1"]

    def test_contributions_of_all_partitions_are_summed(self, roads) -> None:
        ways = roads(2)

        def work(partition: int) -> dict[str, np.ndarray]:
            view = exchange(ways, partition)
            view.begin(0)
            for name in reversed(list(view)):
                view[name]
                view.push(name, np.full(SHAPES[name], 0.25 * (partition + 1), np.float32))
            view.finish()
            view.begin(1)
            return {name: np.array(view[name]) for name in view}

        with ThreadPoolExecutor(2) as pool:
            for values in pool.map(work, range(2)):
                for value in values.values():
                    np.testing.assert_array_equal(value, np.full(value.shape, 0.25, np.float32))

    def test_a_gradient_does_not_overtake_that_of_the_step_before(self, roads) -> None:
        """Of a partition that looks at no value."""
        ways = roads(2)

        def work(partition: int) -> None:
            view = exchange(ways, partition, 2)
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

    def test_a_param_without_gradient_is_pushed_zeros(self, roads) -> None:
        view = exchange(roads(1))
        view.begin(0)
        view.push("w2", np.ones(SHAPES["w2"], np.float32))
        view.finish()
        view.begin(1)
        np.testing.assert_array_equal(view["w1"], start_values()["w1"])
        np.testing.assert_array_equal(view["w2"], start_values()["w2"] - 1)

    def test_totals_are_summed_over_partitions(self, roads) -> None:
        ways = roads(2)
        with ThreadPoolExecutor(2) as pool:
            sums = list(pool.map(lambda p: exchange(ways, p, 2).total("mean", np.array([1.0, p])), range(2)))
        for found in sums:
            np.testing.assert_array_equal(found, [2.0, 1.0])

    def test_rows_are_gathered_from_all_partitions(self, roads) -> None:
        ways = roads(2)
        with ThreadPoolExecutor(2) as pool:
            rows = list(pool.map(lambda p: exchange(ways, p, 2).gather("x", np.full((p + 1, 2), p)), range(2)))
        for found in rows:
            np.testing.assert_array_equal(found, [[0, 0], [1, 1], [1, 1]])

    def test_a_wait_ends_and_says_what_it_waited_for(self, roads) -> None:
        view = exchange(roads(2), timeout=0.6)
        view.begin(0)
        for name in reversed(list(view)):
            view[name]
            view.push(name, np.zeros(SHAPES[name], np.float32))
        view.finish()
        view.begin(1)
        with pytest.raises(RunError, match=r"waited 0.6 s for the value of 'w1' at step 1 from server 0"):
            view["w1"]

    def test_an_abort_ends_a_wait(self, roads) -> None:
        view = exchange(roads(2))
        view.begin(1)
        threading.Timer(0.2, lambda: setattr(view, "aborted", "the driver has ended the run")).start()
        with pytest.raises(RunError, match="the driver has ended the run"):
            view["b1"]

    def test_a_repeated_push_changes_nothing(self, roads) -> None:
        (road,) = roads(1, 1)
        ids = [piece.id for piece in cut(1)]
        gradients = {piece.id: np.ones(piece.stop - piece.start, np.float32) for piece in cut(1)}
        once = wait_for(road.push_pull(Push(0, 0, 0, 0), gradients), 20, "")
        twice = wait_for(road.push_pull(Push(0, 0, 0, 0), {id: np.ones_like(g) for id, g in gradients.items()}), 20, "")
        for id in ids:
            np.testing.assert_array_equal(once[id], twice[id])


def train_two(ways: list[Road], steps: int = 3, **options: Any) -> list[dict[str, np.ndarray]]:
    """Let two partitions push random gradients for some steps; return the values that each has in the end."""

    def work(partition: int) -> dict[str, np.ndarray]:
        own = {name: make() for name, make in options.items()}
        view = exchange(ways, partition, 2, **own)
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


def replica(names: Sequence[str] = tuple(SHAPES)) -> ReplicatedParams:
    made = ReplicatedParams(params_named(names), create_updater(with_momentum()))
    made.put(ReplicaState({name: start_values()[name] for name in names}, None))
    return made


class TestManners:
    """What may be chosen about the exchange leaves every bit of the values as it is, but for compression."""

    @pytest.mark.parametrize(
        "manner",
        [
            ExchangeOptions(PullTime.kDeferred),
            ExchangeOptions(overlap=False),
            ExchangeOptions(PullTime.kDeferred, overlap=False),
        ],
    )
    def test_when_values_are_pulled_changes_nothing(self, roads, manner: ExchangeOptions) -> None:
        expected = train_two(roads(2, conf=with_momentum()))
        for values in (*train_two(roads(2, conf=with_momentum()), options=lambda: manner), expected[1]):
            assert_same(values, expected[0])

    @pytest.mark.parametrize("manner", [ExchangeOptions(), ExchangeOptions(PullTime.kDeferred)])
    def test_workers_update_to_the_same_bits_as_servers(self, roads, manner: ExchangeOptions) -> None:
        expected = train_two(roads(2, conf=with_momentum()))
        for values in train_two(roads(2, trainable=False), replica=replica, options=lambda: manner):
            assert_same(values, expected[0])

    @pytest.mark.parametrize("manner", [ExchangeOptions(), ExchangeOptions(PullTime.kDeferred)])
    def test_workers_apply_sums_that_they_do_not_look_at(self, roads, manner: ExchangeOptions) -> None:
        """As in a worker that only validates with these params."""

        def train_blindly(ways: list[Road], **options: Any) -> dict[str, np.ndarray]:
            view = exchange(ways, options=manner, **options)
            for step in range(3):
                view.begin(step)
                view.finish()
            view.begin(3)
            return {name: np.array(view[name]) for name in view}

        expected = train_blindly(roads(1, conf=with_momentum()))  # by weight decay
        assert_same(train_blindly(roads(1, trainable=False), replica=replica()), expected)

    def test_without_overlap_nothing_is_sent_before_the_end(self, roads) -> None:
        (way,) = roads(1, 1)
        view = exchange([way], options=ExchangeOptions(overlap=False))
        view.begin(0)
        for name in view:
            view.push(name, np.ones(SHAPES[name], np.float32))
        with pytest.raises(TimeoutError):
            way.pull([0], 1).result(timeout=0.1)
        view.finish()
        assert wait_for(way.pull([0], 1), 20, "")[0][0] == 0

    def test_a_whole_gradient_is_applied_where_it_was_computed(self, roads) -> None:
        """Of w1 every partition has the gradient of the whole batch; servers know nothing of it."""
        slices = [piece for piece in cut(2) if piece.param != "w1"]
        view = exchange(roads(1), slices=slices, replica=replica(["w1"]))
        expected, updater = start_values()["w1"].reshape(-1), create_updater(with_momentum())
        state = updater.create_state(expected.size)
        for step in range(3):
            view.begin(step)
            gradient = np.full(SHAPES["w1"], step + 1, np.float32)
            view.push("w1", gradient)
            with pytest.raises(UserError, match="'w1' was looked up after its gradient was pushed"):
                view["w1"]
            view.finish()
            updater.update(step, expected, gradient.reshape(-1), state)
        view.begin(3)
        np.testing.assert_array_equal(view["w1"], expected.reshape(SHAPES["w1"]))
        assert (view["b1"] == start_values()["b1"]).all()

    @pytest.mark.parametrize("compression", [Compression.kOneBit, Compression.kTopK])
    def test_all_roads_compress_to_the_same_numbers(self, roads, compression: Compression) -> None:
        manner = ExchangeOptions(compression=compression, topk_share=0.3)
        direct = [Shard([SliceSpec(piece, contributors=(0, 1)) for piece in cut(1)], create_updater(with_momentum()))]
        direct[0].put({piece.id: np.ones(piece.size, np.float32) for piece in cut(1)})
        expected = train_two([DirectRoad(direct[0], 0)], options=lambda: manner)
        found = train_two(roads(2, 1, with_momentum(), codec=manner.codec()), options=lambda: manner)
        for values in (*found, expected[1]):
            assert_same(values, expected[0])
        plain = train_two(roads(2, 1, with_momentum()))
        assert any((plain[0][name] != expected[0][name]).any() for name in SHAPES)

    def test_lasting_params_are_not_compressed(self, roads) -> None:
        manner = ExchangeOptions(compression=Compression.kTopK, topk_share=0.01)
        (way,) = roads(1, 1, trainable=False, codec=manner.codec())
        view = exchange([way], options=manner, lasting=dict.fromkeys(SHAPES, 1.0))
        view.begin(0)
        new = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
        for name, value in new.items():
            view.push(name, value.copy())
        view.finish()
        view.begin(1)
        for name in view:
            np.testing.assert_array_equal(view[name], new[name])

    def test_bytes_are_counted_on_the_side_where_they_go(self, roads, request) -> None:
        meter = Meter()
        view = exchange(roads(1), meter=meter)
        view.begin(0)
        view.settle()
        meter.start()
        for name in view:
            view.push(name, np.zeros(SHAPES[name], np.float32))
        view.finish()
        view.begin(1)
        for name in view:
            view[name]
        both_ways = 2 * 4 * sum(int(np.prod(shape)) for shape in SHAPES.values())
        direct = request.node.callspec.params["roads"] == "direct"
        assert (meter.crossing, meter.within) == ((0, both_ways) if direct else (both_ways, 0))


def test_what_is_held_goes_out_and_comes_back() -> None:
    names = ["w1"]
    one, two = replica(names), ReplicatedParams(params_named(names), create_updater(with_momentum()))
    one.update(0, "w1", 0, np.ones(12, np.float32))
    held = one.copy(names)
    two.put(held)
    for step in range(1, 3):
        for each in (one, two):
            each.update(step, "w1", 6, np.full(6, step, np.float32))
    np.testing.assert_array_equal(one["w1"], two["w1"])
    fresh = ReplicatedParams(params_named(["b1"]), create_updater(with_momentum()))
    with pytest.raises(UserError, match="resume with the updater that wrote it"):
        fresh.put(ReplicaState({"b1": np.zeros(4)}, {"b1": {"other": np.zeros(4)}}))
    assert held.state is not None
    assert held.state["w1"]["history"].any()


def test_an_updater_that_fails_is_not_a_lost_server() -> None:
    class Failing(SGD):
        def change(self, *arguments: object) -> None:
            raise OSError("no such file")

    key = ServerKey("failing", 0, 0, 0)
    actor = ServerActor(key, [SliceSpec(Slice(0, "w", 0, 2, 0))], Failing(plain_sgd()), (0,), 0, None, 20.0)
    actor.put({0: np.zeros(2, np.float32)}, None)
    with pytest.raises(RunError, match=r"updating at step 0 failed: OSError\('no such file'\)"):
        asyncio.run(actor.push_pull(tell(Push(0, 0, 0, 0), [0], None, []), np.zeros(2, np.float32)))


def test_a_server_of_this_process_is_found(processes: Client) -> None:
    key = ServerKey("here", 0, 0, 0)
    actor = ServerActor(key, [], create_updater(plain_sgd()), (0,), 0, None, 1.0)
    assert local_shard(key) is not None
    close_shards(lambda other: other == key)
    assert local_shard(key) is None
    del actor


def test_a_server_that_dask_lets_go_of_is_gone(processes: Client) -> None:
    key = ServerKey("released", 0, 0, 0)
    actor = ServerActor(key, [], create_updater(plain_sgd()), (0,), 0, None, 1.0)
    shard = local_shard(key)
    assert shard is not None
    waiting = shard.pull([], 0)
    del actor
    gc.collect()
    assert local_shard(key) is None
    assert waiting.done()


def test_a_lost_actor_is_a_lost_server() -> None:
    class Gone:
        def result(self, timeout: float | None = None) -> None:
            raise OSError("Unable to contact Actor's worker")

    with pytest.raises(RunError, match="a server was lost while waiting for the value of 'w'"):
        wait_for(Gone(), 5, "the value of 'w'")
