"""Shards of several server groups: every update comes to each once, and a neighbour may be slow; if lost, all hear."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.errors import RunError
from dsinga.job import UpdaterConf
from dsinga.server import Push, Shard, Slice, SliceSpec, routes
from dsinga.training import create_updater

WAIT = 20.0  # seconds; only a test that fails waits so long
SIZE = 12
GRAPHS = {
    "two": [(0, 1)],
    "all to all": [(0, 1), (0, 2), (1, 2)],
    "star": [(0, 1), (0, 2), (0, 3)],
    "chain": [(2, 0), (0, 3), (3, 1)],
    "ring": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)],
}


def sgd():
    return create_updater(UpdaterConf(type="kSGD", learning_rate={"type": "kFixed", "base_lr": 1.0}))


def ones(times=1.0):
    return np.full(SIZE, times, np.float32)


class Mail:
    """Messages between shards, each delivered when the test says so."""

    def __init__(self, edges, frequency=1, slices=2, worker_groups=1, **changes):
        self.shards, self.waiting = [], []
        table = routes(edges, 1 + max(map(max, edges)))
        specs = [SliceSpec(Slice(id, f"p{id}", 0, SIZE, 0), **changes) for id in range(slices)]
        for group in range(len(table.own)):
            own = range(group * worker_groups, (group + 1) * worker_groups)
            shard = Shard(specs, sgd(), own)
            shard.synchronise(group, table, frequency, self.send)
            shard.put({id: ones(0) for id in range(slices)})
            self.shards.append(shard)

    def send(self, neighbour, route, ids, arrays):
        arrival = Future()
        self.waiting.append((neighbour, route, dict(zip(ids, arrays, strict=True)), arrival))
        return arrival

    def deliver(self, number=0):
        neighbour, route, changes, arrival = self.waiting.pop(number)
        self.shards[neighbour].receive(route, changes)
        arrival.set_result(None)

    def value(self, group, id=0):
        return self.shards[group].snapshot(None, WAIT).values[id]

    def settle(self):
        """Flush as a driver does, whose rounds end when the numbers stay as they are; return the number of rounds."""
        last, rounds = None, 0
        while True:
            flushed = [shard.flush() for shard in self.shards]
            while self.waiting:
                self.deliver(-1)
            numbers = [future.result(0) for future in flushed]
            rounds += 1
            if numbers == last:
                return rounds
            last = numbers


class Direct(Mail):
    """Messages that arrive at once, in the thread of the sender."""

    def send(self, neighbour, route, ids, arrays):
        arrival = Future()
        self.shards[neighbour].receive(route, dict(zip(ids, arrays, strict=True)))
        arrival.set_result(None)
        return arrival


class Threaded(Mail):
    """Messages that arrive some time later, in another thread."""

    def __init__(self, *arguments, pool, **options):
        self.pool = pool
        super().__init__(*arguments, **options)

    def send(self, neighbour, route, ids, arrays):
        return self.pool.submit(self.shards[neighbour].receive, route, dict(zip(ids, arrays, strict=True)))


@pytest.mark.parametrize("graph", GRAPHS)
@given(data=st.data(), frequency=st.integers(1, 3))
def test_every_update_comes_to_every_group_once_in_any_interleaving(graph, data, frequency):
    mail = Mail(GRAPHS[graph], frequency)
    groups = range(len(mail.shards))
    steps, total = [[0, 0] for _ in groups], [0.0, 0.0]
    for _ in range(data.draw(st.integers(0, 25))):
        if mail.waiting and data.draw(st.booleans()):
            mail.deliver(data.draw(st.integers(0, len(mail.waiting) - 1)))
            continue
        group, id = data.draw(st.sampled_from(groups)), data.draw(st.integers(0, 1))
        change = float(10 ** data.draw(st.integers(0, 5)))
        mail.shards[group].push(Push(0, group, steps[group][id], 0), {id: ones(-change)})
        steps[group][id] += 1
        total[id] += change
    mail.settle()
    for group in groups:
        for id in (0, 1):
            np.testing.assert_array_equal(mail.value(group, id), ones(total[id]))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("frequency", [1, 3])
@pytest.mark.parametrize("kind", ["direct", "threaded"])
def test_threads_of_all_groups_agree_in_the_end(graph, frequency, kind, restless_threads):
    worker_groups, partitions, steps = 2, 2, 8
    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(20) as workers:
        options = {"worker_groups": worker_groups, "contributors": range(partitions)}
        if kind == "direct":
            net = Direct(GRAPHS[graph], frequency, **options)
        else:
            net = Threaded(GRAPHS[graph], frequency, pool=pool, **options)

        def work(group, partition):
            shard = net.shards[group // worker_groups]
            for step in range(steps):
                for value in shard.pull(range(2), step, group).result(WAIT).values():
                    assert (value == value[0]).all()
                    assert value[0] >= partitions * step
                for id in (1, 0):
                    shard.push(Push(0, group, step, partition), {id: ones(-1)})

        everybody = range(worker_groups * len(net.shards))
        working = [workers.submit(work, group, partition) for group in everybody for partition in range(partitions)]
        for future in working:
            future.result(3 * WAIT)
        last, numbers = None, []
        while numbers != last:
            last, numbers = numbers, [future.result(WAIT) for future in [shard.flush() for shard in net.shards]]
        for group in range(len(net.shards)):
            for id in (0, 1):
                np.testing.assert_array_equal(net.value(group, id), ones(len(everybody) * partitions * steps))


def test_a_change_is_sent_every_so_many_updates_of_a_slice():
    mail = Mail(GRAPHS["two"], frequency=3)
    for step in range(7):
        mail.shards[0].push(Push(0, 0, step, 0), {0: ones(-1)} if step > 1 else {0: ones(-1), 1: ones(-1)})
        sent = {0: 0, 1: 0, 2: 1, 3: 0, 4: 0, 5: 1, 6: 0}[step]
        assert len(mail.waiting) == sent
        if sent:
            assert [changes.keys() for _, _, changes, _ in mail.waiting] == [{0}]
            mail.deliver()
    np.testing.assert_array_equal(mail.value(1), ones(6))
    mail.settle()
    np.testing.assert_array_equal(mail.value(1), ones(7))
    np.testing.assert_array_equal(mail.value(1, 1), ones(2))


def test_what_is_pushed_together_is_sent_together():
    mail = Mail(GRAPHS["two"], slices=3)
    mail.shards[0].push(Push(0, 0, 0, 0), {id: ones(-1) for id in range(3)})
    ((_, _, changes, _),) = mail.waiting
    assert changes.keys() == {0, 1, 2}


def test_a_slow_neighbour_gets_one_message_with_the_sum():
    mail = Mail(GRAPHS["two"])
    for step in range(5):
        mail.shards[0].push(Push(0, 0, step, 0), {0: ones(-1), 1: ones(-10)})
    assert len(mail.waiting) == 1
    assert mail.shards[0].pending() == "server group 1 has not taken the changes sent to it"
    mail.deliver()
    assert len(mail.waiting) == 1
    np.testing.assert_array_equal(mail.value(1), ones(1))
    mail.deliver()
    assert not mail.waiting
    np.testing.assert_array_equal(mail.value(1), ones(5))
    np.testing.assert_array_equal(mail.value(1, 1), ones(50))


def test_what_is_received_is_not_sent_back_nor_counted_as_an_update():
    mail = Mail(GRAPHS["two"], frequency=2)
    mail.shards[0].push(Push(0, 0, 0, 0), {0: ones(-1)})
    mail.settle()
    mail.shards[1].push(Push(0, 1, 0, 0), {0: ones(-1)})
    assert not mail.waiting
    mail.shards[1].push(Push(0, 1, 1, 0), {0: ones(-1)})
    np.testing.assert_array_equal(mail.waiting[0][2][0], ones(2))


def test_a_group_sees_what_it_has_pulled_until_it_pulls_again():
    mail = Direct(GRAPHS["two"])
    first = mail.shards[0].pull([0], 0, 0).result(0)[0]
    mail.shards[1].push(Push(0, 1, 0, 0), {0: ones(-1)})
    assert not first.any()
    mail.shards[0].push(Push(0, 0, 0, 0), {0: ones(-1)})
    np.testing.assert_array_equal(mail.shards[0].pull([0], 1, 0).result(0)[0], ones(2))


def test_of_slices_that_are_not_trainable_all_groups_get_the_average():
    mail = Mail(GRAPHS["star"], trainable=False)
    for group in range(4):
        mail.shards[group].push(Push(0, group, 0, 0), {0: ones(4.0 * group)})
    mail.settle()
    for group in range(4):
        np.testing.assert_array_equal(mail.value(group), ones(6))


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_averages_stay_within_the_estimates_however_rarely_they_are_exchanged(momentum):
    mail = Mail(GRAPHS["star"], frequency=30, trainable=False)
    for step in range(300):
        for group in range(4):
            old = mail.shards[group].pull([0], step, group).result(0)[0]
            mail.shards[group].push(Push(0, group, step, 0), {0: (1 - momentum) * old + momentum * ones(group)})
        while mail.waiting:
            mail.deliver()
    mail.settle()
    for group in range(4):
        assert (mail.value(group) >= 0).all()
        assert (mail.value(group) <= 3).all()
        np.testing.assert_allclose(mail.value(group), mail.value(0), rtol=1e-5)


def test_settling_is_over_only_when_nothing_is_under_way():
    mail = Mail(GRAPHS["chain"], frequency=100)
    mail.shards[2].push(Push(0, 2, 0, 0), {0: ones(-1)})
    flushed = mail.shards[2].flush()
    assert not flushed.done()
    mail.deliver()
    assert flushed.result(0) == 1
    further = mail.shards[0].flush()  # group 0 passes it on
    assert not further.done()
    assert mail.settle() == 3  # in the first round group 3 has nothing yet that it could pass on
    np.testing.assert_array_equal(mail.value(1), ones(1))


@pytest.mark.parametrize("error", [OSError("connection reset"), RunError("server 0 of group 1 was lost")])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_neighbour_that_is_lost_fails_everybody(error, when):
    mail = Mail(GRAPHS["two"])
    shard = mail.shards[0]

    def refuse(*message):
        raise error

    if when == "at once":
        shard.synchronise(0, routes(GRAPHS["two"], 2), 1, refuse)
    shard.push(Push(0, 0, 0, 0), {0: ones(-1)})
    waiting = [shard.pull([0], 2, 0)]
    if when == "later":
        waiting = [shard.pull([0], 2, 0), shard.flush()]
        mail.waiting[0][3].set_exception(error)
        for future in waiting:
            assert str(error) in str(future.exception(0))
    for call in (
        lambda: shard.push(Push(0, 0, 1, 0), {0: ones()}),
        lambda: shard.receive(0, {0: ones()}),
        lambda: shard.flush().result(0),
    ):
        with pytest.raises(RunError, match=str(error)):
            call()


def test_close_ends_a_flush():
    mail = Mail(GRAPHS["two"])
    mail.shards[0].push(Push(0, 0, 0, 0), {0: ones()})
    flushed = mail.shards[0].flush()
    error = RunError("the run has ended")
    mail.shards[0].close(error)
    assert flushed.exception(0) is error
    mail.deliver()  # what arrives after that changes nothing
    assert not mail.waiting


def test_many_changes_while_a_message_is_under_way_do_not_pile_up_calls():
    """The thread that sends goes on with what others have brought meanwhile, without recursion."""
    mail = Mail(GRAPHS["two"])
    shard, rest = mail.shards[0], iter(range(1, 3000))

    def send(neighbour, route, ids, arrays):
        step = next(rest, None)
        if step is not None:
            shard.push(Push(0, 0, step, 0), {0: ones(-1)})
        arrival = Future()
        mail.shards[neighbour].receive(route, dict(zip(ids, arrays, strict=True)))
        arrival.set_result(None)
        return arrival

    shard.synchronise(0, routes(GRAPHS["two"], 2), 1, send)
    shard.push(Push(0, 0, 0, 0), {0: ones(-1)})
    np.testing.assert_array_equal(mail.value(1), ones(3000))
