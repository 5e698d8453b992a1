"""Shards of several server groups: every update reaches each group once, even if a group is slow; errors close them."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.server import Push, SumSync, routes
from tests.support.refusals import refused
from tests.support.shard_network import GRAPHS, WAIT, Network, ones

SUM = partial(SumSync, frequency=1)


def test_changes_of_other_server_groups_count_for_the_staleness():
    network = Network(GRAPHS["two"], slices=1)
    for shard, group in zip(network.shards, (0, 1), strict=True):
        shard.pull([0], 0, group).result(WAIT)
        shard.push(Push(0, group, 0, 0), {0: ones()})
    assert [shard.staleness_meter.read()[0].total for shard in network.shards] == [0, 0]
    network.shards[0].pull([0], 1, 0).result(WAIT)
    network.deliver(1)  # the change of group 1 arrives between pull and push
    network.shards[0].push(Push(0, 0, 1, 0), {0: ones()})
    assert network.shards[0].staleness_meter.read()[0].total == 1


class ThreadedNetwork(Network):
    """A network that delivers messages later, in another thread."""

    def __init__(self, *arguments, pool, **options):
        self.pool = pool
        super().__init__(*arguments, **options)

    def send(self, sender, group, route, ids, arrays):
        receive = self.shards[group].group_sync.receive
        return self.pool.submit(receive, route, ids, arrays, sender)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("frequency", [1, 3])
def test_all_groups_have_the_same_values_in_the_end(graph, frequency, restless_threads):
    worker_groups, workers, steps = 2, 2, 8
    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(20) as threads:
        options = {"worker_groups": worker_groups, "contributors": range(workers)}
        network = ThreadedNetwork(GRAPHS[graph], frequency, pool=pool, **options)

        def work(group, worker):
            shard = network.shards[group // worker_groups]
            for step in range(steps):
                for value in shard.pull(range(2), step, group).result(WAIT).values():
                    assert (value == value[0]).all()
                    assert value[0] >= workers * step
                for id in (1, 0):
                    shard.push(Push(0, group, step, worker), {id: ones(-1)})

        all_groups = range(worker_groups * len(network.shards))
        futures = [threads.submit(work, group, worker) for group in all_groups for worker in range(workers)]
        for future in futures:
            future.result(3 * WAIT)
        last, numbers = None, []
        while numbers != last:
            flushes = [shard.group_sync.flush() for shard in network.shards]
            last, numbers = numbers, [flush.result(WAIT) for flush in flushes]
        for group in range(len(network.shards)):
            for id in (0, 1):
                np.testing.assert_array_equal(network.value(group, id), ones(len(all_groups) * workers * steps))


def test_a_change_is_sent_after_every_frequency_updates_of_a_slice():
    network = Network(GRAPHS["two"], frequency=3)
    for step in range(7):
        network.shards[0].push(Push(0, 0, step, 0), {0: ones(-1)} if step > 1 else {0: ones(-1), 1: ones(-1)})
        count = {0: 0, 1: 0, 2: 1, 3: 0, 4: 0, 5: 1, 6: 0}[step]
        assert len(network.messages) == count
        if count:
            assert [changes.keys() for _, _, changes, *_ in network.messages] == [{0}]
            network.deliver()
    np.testing.assert_array_equal(network.value(1), ones(6))
    network.flush()
    np.testing.assert_array_equal(network.value(1), ones(7))
    np.testing.assert_array_equal(network.value(1, 1), ones(2))


def test_slices_pushed_together_are_sent_together():
    network = Network(GRAPHS["two"], slices=3)
    network.shards[0].push(Push(0, 0, 0, 0), {id: ones(-1) for id in range(3)})
    ((_, _, changes, *_),) = network.messages
    assert changes.keys() == {0, 1, 2}


def test_a_slow_group_gets_one_message_with_the_sum():
    network = Network(GRAPHS["two"])
    for step in range(5):
        network.shards[0].push(Push(0, 0, step, 0), {0: ones(-1), 1: ones(-10)})
    assert len(network.messages) == 1
    assert network.shards[0].pending() == "server group 1 has not taken the changes sent to it"
    network.deliver()
    assert len(network.messages) == 1
    np.testing.assert_array_equal(network.value(1), ones(1))
    network.deliver()
    assert not network.messages
    np.testing.assert_array_equal(network.value(1), ones(5))
    np.testing.assert_array_equal(network.value(1, 1), ones(50))


def test_received_changes_are_not_sent_back_or_counted_as_updates():
    network = Network(GRAPHS["two"], frequency=2)
    network.shards[0].push(Push(0, 0, 0, 0), {0: ones(-1)})
    network.flush()
    network.shards[1].push(Push(0, 1, 0, 0), {0: ones(-1)})
    assert not network.messages
    network.shards[1].push(Push(0, 1, 1, 0), {0: ones(-1)})
    np.testing.assert_array_equal(network.messages[0][2][0], ones(2))


def test_a_pulled_value_does_not_change_when_changes_arrive():
    network = Network(GRAPHS["two"])
    first = network.shards[0].pull([0], 0, 0).result(0)[0]
    network.shards[1].push(Push(0, 1, 0, 0), {0: ones(-1)})
    network.deliver()
    assert not first.any()
    network.shards[0].push(Push(0, 0, 0, 0), {0: ones(-1)})
    np.testing.assert_array_equal(network.shards[0].pull([0], 1, 0).result(0)[0], ones(2))


def test_all_groups_get_the_average_of_slices_that_are_not_trainable():
    network = Network(GRAPHS["star"], trainable=False)
    for group in range(4):
        network.shards[group].push(Push(0, group, 0, 0), {0: ones(4.0 * group)})
    network.flush()
    for group in range(4):
        np.testing.assert_array_equal(network.value(group), ones(6))


def test_a_late_estimate_of_another_group_leaves_a_variance_positive():
    """Half of the change that another group has made of a large value would make a small one negative."""
    network = Network(GRAPHS["two"], trainable=False)
    estimates = [(0, 0, 10.0), (1, 0, 10.0), None, (1, 1, 0.1), (0, 1, 0.1), (0, 2, 0.01), None]
    for estimate in estimates:
        if estimate is None:
            network.flush()
        else:
            group, step, number = estimate
            network.shards[group].push(Push(0, group, step, 0), {0: ones(number)})
    np.testing.assert_allclose(network.value(0), ones(0.055), rtol=1e-6)
    np.testing.assert_array_equal(network.value(1), network.value(0))


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_averages_stay_within_the_estimates_at_a_low_frequency(momentum):
    network = Network(GRAPHS["star"], frequency=30, trainable=False)
    for step in range(300):
        for group in range(4):
            old = network.shards[group].pull([0], step, group).result(0)[0]
            network.shards[group].push(Push(0, group, step, 0), {0: (1 - momentum) * old + momentum * ones(group)})
        while network.messages:
            network.deliver()
    network.flush()
    for group in range(4):
        assert (network.value(group) >= 0).all()
        assert (network.value(group) <= 3).all()
        np.testing.assert_allclose(network.value(group), network.value(0), rtol=1e-5)


def test_flushing_ends_only_when_no_message_is_in_flight():
    network = Network(GRAPHS["chain"], frequency=100)
    network.shards[2].push(Push(0, 2, 0, 0), {0: ones(-1)})
    flush = network.shards[2].group_sync.flush()
    assert not flush.done()
    network.deliver()
    assert flush.result(0) == 1
    second_flush = network.shards[0].group_sync.flush()  # group 0 forwards the change
    assert not second_flush.done()
    assert network.flush() == 3  # in the first round group 3 has nothing to forward yet
    np.testing.assert_array_equal(network.value(1), ones(1))


def test_a_group_that_takes_no_message_in_time_is_lost():
    """Else a site that is silent, with its connection open, would never be missed: no thread waits for it."""
    network = Network(GRAPHS["two"])
    shard = network.shards[0]
    shard.synchronise(SUM, 0, network.table, partial(network.send, 0), patience=1e-9)
    shard.push(Push(0, 0, 0, 0), {0: ones()})
    refused(lambda: shard.push(Push(0, 0, 1, 0), {0: ones()}), "group 1 has not", "for 1e-09 s", error=RunError)
    assert not network.messages[0][3].done()


@pytest.mark.parametrize("error", [OSError("connection reset"), RunError("server 0 of group 1 was lost")])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_lost_group_that_does_not_come_back_closes_the_shard(error, when):
    network = Network(GRAPHS["two"])
    shard = network.shards[0]
    shard.synchronise(SUM, 0, network.table, partial(network.send, 0), patience=0)

    def fail(*message):
        raise error

    if when == "at once":
        shard.synchronise(SUM, 0, routes(GRAPHS["two"], 2), fail)
    shard.push(Push(0, 0, 0, 0), {0: ones(-1)})
    waiting = [shard.pull([0], 2, 0)]
    if when == "later":
        waiting = [shard.pull([0], 2, 0), shard.group_sync.flush()]
        network.messages[0][3].set_exception(error)
        for future in waiting:
            assert str(error) in str(future.exception(0))
    for call in (
        lambda: shard.push(Push(0, 0, 1, 0), {0: ones()}),
        lambda: shard.group_sync.receive(0, [0], [ones()], 1),
        lambda: shard.group_sync.flush().result(0),
    ):
        with pytest.raises(RunError, match=str(error)):
            call()


def test_many_changes_while_a_message_is_in_flight_are_sent_without_recursion():
    """The thread that sends continues with changes made meanwhile in a loop, not by recursion."""
    network = Network(GRAPHS["two"])
    shard, steps = network.shards[0], iter(range(1, 3000))

    def send(group, route, ids, arrays):
        step = next(steps, None)
        if step is not None:
            shard.push(Push(0, 0, step, 0), {0: ones(-1)})
        arrival = Future()
        network.shards[group].group_sync.receive(route, ids, arrays, 0)
        arrival.set_result(None)
        return arrival

    shard.synchronise(SUM, 0, routes(GRAPHS["two"], 2), send)
    shard.push(Push(0, 0, 0, 0), {0: ones(-1)})
    np.testing.assert_array_equal(network.value(1), ones(3000))
