"""What a shard promises: the bits of one sequential run whatever the order of arrival, and no wait without an end."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.errors import RunError, UserError
from dsinga.job import SlicingMethod, UpdaterConf
from dsinga.server import Push, Shard, SliceSpec, slice_for_servers
from dsinga.server.served_slice import ServedSlice
from dsinga.training import create_updater
from dsinga.training.updaters import SGD

SIZES = {"w1": 2500, "b1": 7, "w2": 300}
WAIT = 10.0  # seconds; only a test that fails waits so long
STEPS = 4


def make_updater(**changes):
    return create_updater(UpdaterConf(type="kSGD", momentum=0.9, weight_decay=0.01, **changes))


def specs(sizes=SIZES, partitions=1, server=0, servers=1, **changes):
    pieces = slice_for_servers(sizes, servers, SlicingMethod.kBlock)
    changes = {"lr_scale": 2.0, "wd_scale": 0.5, "contributors": range(partitions), **changes}
    return [SliceSpec(piece, **changes) for piece in pieces if piece.server == server]


def first_values(sizes=SIZES):
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}


def gradient(name, step, partition):
    """Gradients of very different size, so that the order of addition shows in the bits."""
    rng = np.random.default_rng([len(name), ord(name[0]), int(name[1]), step, partition])
    return rng.standard_normal(SIZES[name], np.float32) * rng.choice(np.float32([1e-3, 1, 1e3]), SIZES[name])


def pieces_of(arrays, some_specs):
    return {spec.slice.id: arrays[spec.slice.param][spec.slice.start : spec.slice.stop].copy() for spec in some_specs}


def gradients(some_specs, step, partition):
    names = {spec.slice.param for spec in some_specs}
    return pieces_of({name: gradient(name, step, partition) for name in names}, some_specs)


def make_shard(some_specs, updater=None, **options):
    shard = Shard(some_specs, updater or make_updater(), **options)
    shard.put(pieces_of(first_values(), some_specs))
    return shard


def sequential(partitions, steps, start=0):
    """Values and state by name of one updater applied to whole params, gradients added in the order of partitions."""
    updater, values = make_updater(), first_values()
    state = {name: updater.create_state(size) for name, size in SIZES.items()}
    for step in range(start, start + steps):
        for name, value in values.items():
            total = gradient(name, step, 0)
            for partition in range(1, partitions):
                total += gradient(name, step, partition)
            updater.update(step, value, total, state[name], 2.0, 0.5)
    return values, state


def assert_same(found, some_specs, wanted):
    expected = pieces_of(wanted, some_specs)
    assert found.keys() == expected.keys()
    for id, value in found.items():
        np.testing.assert_array_equal(value.view(np.int32), expected[id].view(np.int32))


def ids_of(some_specs):
    return [spec.slice.id for spec in some_specs]


@given(data=st.data(), partitions=st.integers(1, 4))
def test_any_order_of_arrival_gives_the_bits_of_a_sequential_run(data, partitions):
    all_specs = specs(partitions=partitions)
    shard = make_shard(all_specs)
    # Slices advance independently of each other; within a step of a slice, partitions come in any order.
    turns = data.draw(st.permutations(ids_of(all_specs) * STEPS))
    done = dict.fromkeys(ids_of(all_specs), 0)
    for id in turns:
        step, done[id] = done[id], done[id] + 1
        for partition in data.draw(st.permutations(range(partitions))):
            shard.push(Push(0, 0, step, partition), {id: gradients(all_specs, step, partition)[id]})
    assert_same(shard.pull(ids_of(all_specs), STEPS).result(WAIT), all_specs, sequential(partitions, STEPS)[0])


@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
@pytest.mark.parametrize("servers", [1, 2])
def test_threads_give_the_bits_of_a_sequential_run(partitions, servers, restless_threads):
    per_server = [specs(partitions=partitions, server=server, servers=servers) for server in range(servers)]
    shards = [make_shard(mine) for mine in per_server]

    def work(partition):
        shuffle = random.Random(partition).shuffle
        for step in range(STEPS):
            for shard, mine in zip(shards, per_server, strict=True):
                shard.pull(ids_of(mine), step).result(WAIT)
                ready = list(gradients(mine, step, partition).items())
                shuffle(ready)
                half = len(ready) // 2
                shard.push(Push(0, 0, step, partition), dict(ready[:half]))
                shard.push(Push(0, 0, step, partition), dict(ready[half:]))

    with ThreadPoolExecutor(partitions) as pool:
        list(pool.map(work, range(partitions)))
    for shard, mine in zip(shards, per_server, strict=True):
        assert_same(shard.pull(ids_of(mine), STEPS).result(WAIT), mine, sequential(partitions, STEPS)[0])


def test_every_pull_is_answered_once_whoever_completes_it(restless_threads):
    partitions, steps = 3, 30
    all_specs = specs({f"p{i}": 3 for i in range(8)}, partitions=partitions)
    ids = ids_of(all_specs)
    shard = Shard(all_specs, make_updater())
    shard.put({id: np.zeros(3, np.float32) for id in ids})

    def work(partition):
        draw = random.Random(partition)
        for step in range(steps):
            shard.pull(ids, step).result(WAIT)
            answers = []
            for id in draw.sample(ids, len(ids)):
                shard.push(Push(0, 0, step, partition), {id: np.ones(3, np.float32)})
                wanted = draw.sample(ids, 3)
                answers.append((wanted, shard.pull(wanted, step + 1)))
            for wanted, answer in answers:
                assert answer.result(WAIT).keys() == set(wanted)

    with ThreadPoolExecutor(partitions) as pool:
        list(pool.map(work, range(partitions)))
    assert shard.pending() == "nothing is waited for"


def test_repeated_pushes_are_dropped():
    all_specs = specs(partitions=2)
    shard = make_shard(all_specs)
    wrong = {spec.slice.id: np.full(spec.slice.size, np.nan, np.float32) for spec in all_specs}
    for step in range(STEPS):
        for partition in (1, 0):
            shard.push(Push(0, 0, step, partition), gradients(all_specs, step, partition))
            shard.push(Push(0, 0, step, partition), dict(wrong))  # at once, or just after the update
        for earlier in range(step):
            shard.push(Push(0, 0, earlier, 1), dict(wrong))
    assert_same(shard.pull(ids_of(all_specs), STEPS).result(WAIT), all_specs, sequential(2, STEPS)[0])


@pytest.mark.parametrize("generation", [2, 4])
def test_a_push_of_another_generation_is_refused(generation):
    all_specs = specs()
    shard = make_shard(all_specs, generation=3)
    with pytest.raises(RunError, match=f"step 0 is of generation {generation}, .* of generation 3"):
        shard.push(Push(generation, 0, 0, 0), gradients(all_specs, 0, 0))
    assert_same(shard.pull(ids_of(all_specs), 0).result(WAIT), all_specs, first_values())


def test_gradients_that_cannot_be_written_are_left_alone():
    all_specs = specs(partitions=2)
    shard = make_shard(all_specs)
    for partition in (0, 1):
        received = gradients(all_specs, 0, partition)
        for array in received.values():
            array.flags.writeable = False
        shard.push(Push(0, 0, 0, partition), received)
    assert_same(shard.pull(ids_of(all_specs), 1).result(WAIT), all_specs, sequential(2, 1)[0])


def test_a_slice_that_is_not_trainable_is_replaced_by_the_sum():
    given_away = np.zeros(7, np.float32)
    shard = Shard(specs({"b1": 7}, trainable=False, partitions=2), make_updater())
    shard.put({0: given_away})
    for partition in (1, 0):
        shard.push(Push(0, 0, 0, partition), {0: gradient("b1", 0, partition)})
    found = shard.pull([0], 1).result(WAIT)[0]
    np.testing.assert_array_equal(found, gradient("b1", 0, 0) + gradient("b1", 0, 1))
    assert np.shares_memory(found, given_away)  # which may be a part of the whole param, see ServedSlice.put
    assert shard.snapshot(1, WAIT).state == {0: {}}


def test_a_pull_waits_for_every_slice_that_it_asks_for():
    all_specs = specs()
    shard = make_shard(all_specs)
    ids = ids_of(all_specs)
    all_of_them, one = shard.pull(ids, 1), shard.pull(ids[:1], 1)
    ready = gradients(all_specs, 0, 0)
    shard.push(Push(0, 0, 0, 0), {ids[0]: ready.pop(ids[0])})
    assert one.done()
    assert not all_of_them.done()
    shard.push(Push(0, 0, 0, 0), ready)
    assert sorted(all_of_them.result(0)) == ids
    assert shard.pending() == "nothing is waited for"
    assert shard.pull([], 7).result(0) == {}


def test_a_pull_before_the_first_values_waits_for_them():
    all_specs = specs()
    shard = Shard(all_specs, make_updater(), start=5)
    future = shard.pull(ids_of(all_specs), 5)
    assert not future.done()
    assert shard.pending().startswith("slice w1[0:1024]: its first value has not been put")
    shard.put(pieces_of(first_values(), all_specs))
    assert_same(future.result(0), all_specs, first_values())


def test_a_repeated_put_changes_nothing():
    all_specs = specs()
    shard = make_shard(all_specs)
    shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
    shard.put(pieces_of(first_values(), all_specs))
    assert_same(shard.pull(ids_of(all_specs), 1).result(0), all_specs, sequential(1, 1)[0])


def test_values_are_handed_out_without_a_copy_and_cannot_be_written():
    spec = specs({"b1": 7})
    given_away = np.zeros(7, np.float32)
    shard = Shard(spec, make_updater())
    shard.put({0: given_away})
    before = shard.pull([0], 0).result(0)[0]
    shard.push(Push(0, 0, 0, 0), {0: gradient("b1", 0, 0)})
    after = shard.pull([0], 1).result(0)[0]
    assert np.shares_memory(before, given_away)
    assert np.shares_memory(after, given_away)
    with pytest.raises(ValueError, match="read-only"):
        after[0] = 1


def test_first_values_that_cannot_be_written_are_copied():
    received = np.zeros(7, np.float32)
    received.flags.writeable = False
    shard = Shard(specs({"b1": 7}), make_updater())
    shard.put({0: received})
    shard.push(Push(0, 0, 0, 0), {0: gradient("b1", 0, 0)})
    assert not received.any()
    assert shard.pull([0], 1).result(0)[0].any()


def test_close_wakes_everybody_who_waits_and_refuses_everybody_after():
    all_specs = specs(partitions=2)
    shard = make_shard(all_specs)
    error = RunError("worker 3 was lost")
    waiting = [
        shard.pull(ids_of(all_specs), 1),
        shard.pull([0], 9),
        shard.collective("all_reduce", "k", 0, 0, np.zeros(1), range(2)),
    ]
    with ThreadPoolExecutor(1) as pool:
        waiting.append(pool.submit(shard.snapshot, 7, WAIT))
        shard.close(error)
        shard.close(RunError("a later error"))
        waiting += [shard.pull([0], 0), shard.collective("all_reduce", "k", 0, 1, np.zeros(1), range(2))]
        for future in waiting:
            assert future.exception(WAIT) is error
    for call in (
        lambda: shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0)),
        lambda: shard.put(pieces_of(first_values(), all_specs)),
        lambda: shard.snapshot(0, WAIT),
    ):
        with pytest.raises(RunError, match="worker 3 was lost"):
            call()


def test_what_is_waited_for_can_be_said():
    sizes = {"w1": 450}
    shard = Shard(specs(sizes, partitions=3), make_updater(), start=12)
    shard.put({0: np.zeros(450, np.float32)})
    assert shard.pending() == "nothing is waited for"
    for partition in (2, 0):
        shard.push(Push(0, 0, 12, partition), {0: np.zeros(450, np.float32)})
    assert shard.pending() == "slice w1[0:450] at step 12: partitions 0, 2 have come, 1 is missing"
    shard.collective("all_reduce", "mean", 0, 1, np.zeros(3), range(3))
    assert shard.pending().endswith("; collective 'mean': partition 1 has come, 0, 2 are missing")


def test_a_wait_for_a_partition_that_never_comes_ends_at_its_timeout():
    all_specs = specs(partitions=2)
    shard = make_shard(all_specs)
    shard.push(Push(0, 0, 0, 1), gradients(all_specs, 0, 1))
    with pytest.raises(TimeoutError):
        shard.pull(ids_of(all_specs), 1).result(0.01)
    with pytest.raises(RunError, match=r"no snapshot of version 1 within 0.01 s: slice w1.*partition 1 has come, 0 is"):
        shard.snapshot(1, 0.01)
    shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
    with pytest.raises(RunError):
        shard.snapshot(2, 0.01)
    assert shard.pending() == "nothing is waited for"


def test_many_slices_are_said_in_few_words():
    shard = Shard(specs({f"p{i}": 5 for i in range(50)}), make_updater())
    shard.pull(range(50), 0)
    assert shard.pending().endswith("; and 42 more")


def test_a_snapshot_is_of_exactly_its_version_while_training_goes_on():
    partitions, version = 2, 3
    all_specs = specs(partitions=partitions)
    shard = make_shard(all_specs)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(shard.snapshot, version, WAIT)
        while "slice" not in shard.pending():  # until it waits; one that came late would be refused, not wrong
            assert not future.done()
        for step in range(2 * version):
            for partition in range(partitions):
                shard.push(Push(0, 0, step, partition), gradients(all_specs, step, partition))
        found = future.result(WAIT)
    values, state = sequential(partitions, version)
    assert_same(found.values, all_specs, values)
    assert_same(
        {id: slots["history"] for id, slots in found.state.items()},
        all_specs,
        {n: s["history"] for n, s in state.items()},
    )


def test_a_copy_for_which_there_is_no_memory_fails_whoever_asked_and_nobody_else(monkeypatch):
    def fail(slot):
        raise MemoryError("no memory")

    monkeypatch.setattr(ServedSlice, "copy", fail)
    all_specs = specs()
    shard = make_shard(all_specs)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(shard.snapshot, 1, WAIT)
        while "slice" not in shard.pending():  # until it waits
            assert not asked.done()
        pulled = shard.pull([spec.slice.id for spec in all_specs], 1)
        shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
        with pytest.raises(MemoryError, match="no memory"):
            asked.result(WAIT)
    assert pulled.result(WAIT).keys() == {spec.slice.id for spec in all_specs}


def test_a_snapshot_of_a_version_that_has_passed_is_refused():
    all_specs = specs()
    shard = make_shard(all_specs)
    shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
    with pytest.raises(RunError, match="already past version 0"):
        shard.snapshot(0, WAIT)


def test_a_run_resumed_from_a_snapshot_has_the_bits_of_an_unbroken_one():
    all_specs = specs()
    first = make_shard(all_specs)
    for step in range(2):
        first.push(Push(0, 0, step, 0), gradients(all_specs, step, 0))
    second = Shard(all_specs, make_updater(), generation=1, start=2)
    second.put(*first.snapshot(2, WAIT))
    for step in range(2, STEPS):
        second.push(Push(1, 0, step, 0), gradients(all_specs, step, 0))
    assert_same(second.pull(ids_of(all_specs), STEPS).result(0), all_specs, sequential(1, STEPS)[0])


@pytest.mark.parametrize(("state", "found"), [({}, "none"), ({0: {"mean": np.zeros(7, np.float32)}}, "'mean'")])
def test_the_state_of_another_updater_is_refused(state, found):
    shard = Shard(specs({"b1": 7}), make_updater(), start=2)
    with pytest.raises(UserError, match=f"param 'b1': the checkpoint has the updater state {found}, .* 'history'"):
        shard.put({0: np.zeros(7, np.float32)}, state)


class Blocking(SGD):
    """An updater that stands still in the middle of an update."""

    def __init__(self):
        super().__init__(UpdaterConf(type="kSGD"))
        self.begun, self.go_on = threading.Event(), threading.Event()

    def change(self, lr, w, g, slots, t, s):
        self.begun.set()
        assert self.go_on.wait(WAIT)


def test_an_update_holds_up_nobody_who_has_no_need_of_it():
    all_specs = specs({"b1": 7, "w2": 300}, partitions=2)
    updater = Blocking()
    shard = make_shard(all_specs, updater=updater)
    shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(shard.push, Push(0, 0, 0, 1), {0: gradient("b1", 0, 1)})
        assert updater.begun.wait(WAIT)
        assert shard.pull([1], 0).done()
        assert not shard.pull([0], 1).done()
        assert "b1[0:7] at step 0: all partitions have come, the update is running" in shard.pending()
        with pytest.raises(RunError, match="already past version 0"):
            shard.snapshot(0, WAIT)
        updater.go_on.set()
        last.result(WAIT)
    assert shard.pull([0], 1).done()


class Failing(Blocking):
    def change(self, lr, w, g, slots, t, s):
        raise ZeroDivisionError("a user's updater")


def test_an_updater_that_fails_fails_everybody():
    all_specs = specs({"b1": 7}, partitions=2)
    shard = make_shard(all_specs, updater=Failing())
    waiting = shard.pull([0], 1)
    shard.push(Push(0, 0, 0, 1), {0: gradient("b1", 0, 1)})
    with pytest.raises(ZeroDivisionError):
        shard.push(Push(0, 0, 0, 0), {0: gradient("b1", 0, 0)})
    assert "updating slice b1[0:7] at step 0 failed: ZeroDivisionError" in str(waiting.exception(0))


def test_a_callback_of_a_pull_may_use_the_shard():
    all_specs = specs({"b1": 7})
    shard = make_shard(all_specs)
    shard.pull([0], 1).add_done_callback(lambda _: shard.push(Push(0, 0, 1, 0), {0: gradient("b1", 1, 0)}))
    shard.push(Push(0, 0, 0, 0), {0: gradient("b1", 0, 0)})
    assert_same(shard.pull([0], 2).result(0), all_specs, sequential(1, 2)[0])
