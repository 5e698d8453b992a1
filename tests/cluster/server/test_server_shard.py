"""A shard gives the bits of a sequential run in any order of arrival, and every wait has an end."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.errors import RunError, UserError
from dsinga.cluster.server import Push, Shard, SliceSpec, slice_for_servers
from dsinga.cluster.server.served_slice import ServedSlice
from dsinga.job import SlicingMethod, UpdaterConf
from dsinga.training import create_updater
from tests.support.refusals import refused
from tests.support.shard_network import WAIT, GatedSGD

SIZES = {"w1": 2500, "b1": 7, "w2": 300}
STEPS = 4


def make_updater(**changes):
    return create_updater(UpdaterConf(type="kSGD", momentum=0.9, weight_decay=0.01, **changes))


def specs(sizes=SIZES, workers=1, server=0, servers=1, **changes):
    slices = slice_for_servers(sizes, servers, SlicingMethod.kBlock)
    changes = {"lr_scale": 2.0, "wd_scale": 0.5, "contributors": range(workers), **changes}
    return [SliceSpec(slice_, **changes) for slice_ in slices if slice_.server == server]


def initial_values(sizes=SIZES):
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}


def gradient(name, step, worker):
    """Return a gradient of very different magnitudes, so that its bits depend on the order of addition."""
    rng = np.random.default_rng([len(name), ord(name[0]), int(name[1]), step, worker])
    return rng.standard_normal(SIZES[name], np.float32) * rng.choice(np.float32([1e-3, 1, 1e3]), SIZES[name])


def by_slice(arrays, slice_specs):
    return {spec.slice.id: arrays[spec.slice.param][spec.slice.start : spec.slice.stop].copy() for spec in slice_specs}


def gradients(slice_specs, step, worker):
    names = {spec.slice.param for spec in slice_specs}
    return by_slice({name: gradient(name, step, worker) for name in names}, slice_specs)


def make_shard(slice_specs, updater=None, **options):
    shard = Shard(slice_specs, updater or make_updater(), **options)
    shard.put(by_slice(initial_values(), slice_specs))
    return shard


def sequential(workers, steps, start=0):
    """Return values and state by name after updates of whole params, with gradients added in worker order."""
    updater, values = make_updater(), initial_values()
    state = {name: updater.create_state(size) for name, size in SIZES.items()}
    for step in range(start, start + steps):
        for name, value in values.items():
            total = gradient(name, step, 0)
            for worker in range(1, workers):
                total += gradient(name, step, worker)
            updater.update(step, value, total, state[name], 2.0, 0.5)
    return values, state


def assert_same(values, slice_specs, params):
    expected = by_slice(params, slice_specs)
    assert values.keys() == expected.keys()
    for id, value in values.items():
        np.testing.assert_array_equal(value.view(np.int32), expected[id].view(np.int32))


def ids_of(slice_specs):
    return [spec.slice.id for spec in slice_specs]


@given(data=st.data(), workers=st.integers(1, 4))
def test_any_order_of_arrival_gives_the_bits_of_a_sequential_run(data, workers):
    all_specs = specs(workers=workers)
    shard = make_shard(all_specs)
    # Slices advance independently of each other; within a step of a slice, workers come in any order.
    order = data.draw(st.permutations(ids_of(all_specs) * STEPS))
    steps = dict.fromkeys(ids_of(all_specs), 0)
    for id in order:
        step, steps[id] = steps[id], steps[id] + 1
        for worker in data.draw(st.permutations(range(workers))):
            shard.push(Push(0, 0, step, worker), {id: gradients(all_specs, step, worker)[id]})
    assert_same(shard.pull(ids_of(all_specs), STEPS).result(WAIT), all_specs, sequential(workers, STEPS)[0])


def test_a_slice_that_is_not_trainable_is_replaced_by_the_sum():
    initial = np.zeros(7, np.float32)
    shard = Shard(specs({"b1": 7}, trainable=False, workers=2), make_updater())
    shard.put({0: initial})
    for worker in (1, 0):
        shard.push(Push(0, 0, 0, worker), {0: gradient("b1", 0, worker)})
    value = shard.pull([0], 1).result(WAIT)[0]
    np.testing.assert_array_equal(value, gradient("b1", 0, 0) + gradient("b1", 0, 1))
    assert np.shares_memory(value, initial)  # which may be a view of the whole param, see ServedSlice.put
    assert shard.snapshot(1, WAIT).state == {0: {}}


def test_a_pull_waits_for_all_its_slices():
    all_specs = specs()
    shard = make_shard(all_specs)
    ids = ids_of(all_specs)
    all_slices, one_slice = shard.pull(ids, 1), shard.pull(ids[:1], 1)
    remaining = gradients(all_specs, 0, 0)
    shard.push(Push(0, 0, 0, 0), {ids[0]: remaining.pop(ids[0])})
    assert one_slice.done()
    assert not all_slices.done()
    shard.push(Push(0, 0, 0, 0), remaining)
    assert sorted(all_slices.result(0)) == ids
    assert shard.pending() == "nothing is waited for"
    assert shard.pull([], 7).result(0) == {}


def test_a_pull_waits_for_the_initial_values():
    all_specs = specs()
    shard = Shard(all_specs, make_updater(), start=5)
    future = shard.pull(ids_of(all_specs), 5)
    assert not future.done()
    assert shard.pending().startswith("slice w1[0:1024]: its first value has not been put")
    shard.put(by_slice(initial_values(), all_specs))
    assert_same(future.result(0), all_specs, initial_values())


def test_a_repeated_put_changes_nothing():
    all_specs = specs()
    shard = make_shard(all_specs)
    shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
    shard.put(by_slice(initial_values(), all_specs))
    assert_same(shard.pull(ids_of(all_specs), 1).result(0), all_specs, sequential(1, 1)[0])


def test_pulled_values_are_read_only_views():
    spec = specs({"b1": 7})
    initial = np.zeros(7, np.float32)
    shard = Shard(spec, make_updater())
    shard.put({0: initial})
    before = shard.pull([0], 0).result(0)[0]
    shard.push(Push(0, 0, 0, 0), {0: gradient("b1", 0, 0)})
    after = shard.pull([0], 1).result(0)[0]
    assert np.shares_memory(before, initial)
    assert np.shares_memory(after, initial)
    with pytest.raises(ValueError, match="read-only"):
        after[0] = 1


def test_read_only_initial_values_are_copied():
    received = np.zeros(7, np.float32)
    received.flags.writeable = False
    shard = Shard(specs({"b1": 7}), make_updater())
    shard.put({0: received})
    shard.push(Push(0, 0, 0, 0), {0: gradient("b1", 0, 0)})
    assert not received.any()
    assert shard.pull([0], 1).result(0)[0].any()


def test_close_fails_waiting_and_later_calls():
    all_specs = specs(workers=2)
    shard = make_shard(all_specs)
    error = RunError("worker 3 was lost")
    waiting = [
        shard.pull(ids_of(all_specs), 1),
        shard.pull([0], 9),
        shard.collectives.add("all_reduce", "k", 0, 0, np.zeros(1), range(2)),
    ]
    with ThreadPoolExecutor(1) as pool:
        waiting.append(pool.submit(shard.snapshot, 7, WAIT))
        shard.close(error)
        shard.close(RunError("a later error"))
        waiting += [shard.pull([0], 0), shard.collectives.add("all_reduce", "k", 0, 1, np.zeros(1), range(2))]
        for future in waiting:
            assert future.exception(WAIT) is error
    for call in (
        lambda: shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0)),
        lambda: shard.put(by_slice(initial_values(), all_specs)),
        lambda: shard.snapshot(0, WAIT),
    ):
        with pytest.raises(RunError, match="worker 3 was lost"):
            call()


def test_pending_names_slices_and_missing_workers():
    sizes = {"w1": 450}
    shard = Shard(specs(sizes, workers=3), make_updater(), start=12)
    shard.put({0: np.zeros(450, np.float32)})
    assert shard.pending() == "nothing is waited for"
    for worker in (2, 0):
        shard.push(Push(0, 0, 12, worker), {0: np.zeros(450, np.float32)})
    assert shard.pending() == "slice w1[0:450] at step 12: workers 0, 2 have come, 1 is missing"
    shard.collectives.add("all_reduce", "mean", 0, 1, np.zeros(3), range(3))
    assert shard.pending().endswith("; collective 'mean': worker 1 has come, 0, 2 are missing")


def test_waiting_for_a_missing_worker_ends_at_the_timeout():
    all_specs = specs(workers=2)
    shard = make_shard(all_specs)
    shard.push(Push(0, 0, 0, 1), gradients(all_specs, 0, 1))
    with pytest.raises(TimeoutError):
        shard.pull(ids_of(all_specs), 1).result(0.01)
    refused(
        lambda: shard.snapshot(1, 0.01),
        r"of version 1 within 0.01 s: slice w1.*worker 1 has come, 0 is",
        error=RunError,
    )
    shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
    with pytest.raises(RunError):
        shard.snapshot(2, 0.01)
    assert shard.pending() == "nothing is waited for"


def test_pending_lists_a_few_slices_only():
    shard = Shard(specs({f"p{i}": 5 for i in range(50)}), make_updater())
    shard.pull(range(50), 0)
    assert shard.pending().endswith("; and 42 more")


def test_a_snapshot_has_exactly_its_version_during_training():
    workers, version = 2, 3
    all_specs = specs(workers=workers)
    shard = make_shard(all_specs)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(shard.snapshot, version, WAIT)
        while "slice" not in shard.pending():  # until it waits; a late snapshot would raise, not be wrong
            assert not future.done()
        for step in range(2 * version):
            for worker in range(workers):
                shard.push(Push(0, 0, step, worker), gradients(all_specs, step, worker))
        snapshot = future.result(WAIT)
    values, state = sequential(workers, version)
    assert_same(snapshot.values, all_specs, values)
    assert_same(
        {id: slots["history"] for id, slots in snapshot.state.items()},
        all_specs,
        {n: s["history"] for n, s in state.items()},
    )


def test_a_copy_without_memory_fails_the_snapshot_only(monkeypatch):
    def fail(served_slice, state):
        raise MemoryError("no memory")

    monkeypatch.setattr(ServedSlice, "copy", fail)
    all_specs = specs()
    shard = make_shard(all_specs)
    with ThreadPoolExecutor(1) as pool:
        snapshot = pool.submit(shard.snapshot, 1, WAIT)
        while "slice" not in shard.pending():  # until it waits
            assert not snapshot.done()
        pulled = shard.pull([spec.slice.id for spec in all_specs], 1)
        shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
        refused(lambda: snapshot.result(WAIT), "no memory", error=MemoryError)
    assert pulled.result(WAIT).keys() == {spec.slice.id for spec in all_specs}


@pytest.mark.parametrize(("state", "names"), [({}, "none"), ({0: {"mean": np.zeros(7, np.float32)}}, "'mean'")])
def test_the_state_of_another_updater_is_refused(state, names):
    shard = Shard(specs({"b1": 7}), make_updater(), start=2)
    with pytest.raises(UserError, match=f"param 'b1': the checkpoint has the updater state {names}, .* 'history'"):
        shard.put({0: np.zeros(7, np.float32)}, state)


def test_an_update_of_one_slice_does_not_block_others():
    all_specs = specs({"b1": 7, "w2": 300}, workers=2)
    updater = GatedSGD()
    shard = make_shard(all_specs, updater=updater)
    shard.push(Push(0, 0, 0, 0), gradients(all_specs, 0, 0))
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(shard.push, Push(0, 0, 0, 1), {0: gradient("b1", 0, 1)})
        assert updater.started.wait(WAIT)
        assert shard.pull([1], 0).done()
        assert not shard.pull([0], 1).done()
        assert "b1[0:7] at step 0: all workers have come, the update is running" in shard.pending()
        refused(lambda: shard.snapshot(0, WAIT), "already past version 0", error=RunError)
        updater.gate.set()
        last.result(WAIT)
    assert shard.pull([0], 1).done()


def test_a_callback_of_a_pull_may_use_the_shard():
    all_specs = specs({"b1": 7})
    shard = make_shard(all_specs)
    shard.pull([0], 1).add_done_callback(lambda _: shard.push(Push(0, 0, 1, 0), {0: gradient("b1", 1, 0)}))
    shard.push(Push(0, 0, 0, 0), {0: gradient("b1", 0, 0)})
    assert_same(shard.pull([0], 2).result(0), all_specs, sequential(1, 2)[0])
