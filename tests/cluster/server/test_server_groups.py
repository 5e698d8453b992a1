"""Several worker groups at one shard: every update is applied once, values are consistent, staleness is bounded."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.server import GroupStaleness, Push, Shard
from dsinga.job import UpdaterConf
from dsinga.training import create_updater
from tests.support.refusals import refused
from tests.support.shard_network import SIZE, WAIT, make_shard, ones, sgd, specs


def value_of(shard, id=0):
    return shard.snapshot(None, WAIT).values[id]


def run_threads(work, *arguments):
    with ThreadPoolExecutor(len(arguments)) as pool:
        for future in [pool.submit(work, *each) for each in arguments]:
            future.result(3 * WAIT)


def test_staleness_counts_the_updates_of_others_between_pull_and_push():
    shard = make_shard(specs(1), groups=(0, 1))
    for group in (0, 1):
        shard.pull([0], 0, group).result(WAIT)
    for group, step in ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1)):  # group 0 has pulled anew after each of its own
        shard.push(Push(0, group, step, 0), {0: ones()})
        shard.pull([0], step + 1, group).result(WAIT)
    assert shard.staleness_meter.read() == [GroupStaleness(0, 3, 0 + 0 + 1, 1), GroupStaleness(1, 2, 2 + 1, 2)]
    assert shard.staleness_meter.read() == []
    shard.push(Push(0, 0, 3, 0, skip=True), {0: None})  # a skipped step updates nothing
    assert shard.staleness_meter.read() == []


def test_a_single_group_has_no_staleness():
    shard = make_shard(specs(1), groups=(0,))
    shard.pull([0], 0, 0).result(WAIT)
    shard.push(Push(0, 0, 0, 0), {0: ones()})
    assert shard.staleness_meter.read() == []


@pytest.mark.parametrize("staleness", [None, 0, 2])
@pytest.mark.parametrize("contributors", [(0,), (0, 1), (0, 2, 3)])
def test_every_update_of_every_group_is_applied_once(contributors, staleness, restless_threads):
    groups, steps, pushes = (0, 1, 2), 12, len(contributors)
    shard = make_shard(specs(contributors=contributors), groups, staleness=staleness)
    pulled = {}  # values by group, step and slice

    def gradient(group):  # each group changes every third number
        array = np.zeros(SIZE, np.float32)
        array[group::3] = -1
        return array

    def work(group, worker):
        draw = random.Random(10 * group + worker)
        for step in range(steps):
            for id, value in shard.pull(range(3), step, group).result(WAIT).items():
                assert pulled.setdefault((group, step, id), value) is value  # the same for the whole group
                updates = value[:3].tolist()
                np.testing.assert_array_equal(value, np.resize(updates, SIZE))  # not in the middle of an update
                assert updates[group] == pushes * step
                assert staleness is None or min(updates) >= pushes * (step - staleness)
            ids = draw.sample(range(3), 3)
            for part in (ids[:1], ids[1:]):
                shard.push(Push(0, group, step, worker), {id: gradient(group) for id in part})
                shard.push(Push(0, group, step, worker), {id: ones(-100) for id in part})  # a repeated push is dropped
        shard.pull(range(3), steps, group).result(WAIT)
        shard.leave(group)

    run_threads(work, *[(group, worker) for group in groups for worker in contributors])
    for id in range(3):
        np.testing.assert_array_equal(value_of(shard, id), ones(pushes * steps))
    assert shard.pending() == "nothing is waited for"
    # Of N updates of a slice, one after the other, the n-th came after n others, some of them in the pulled value.
    count = len(groups) * steps
    seen = sum(sum(value[:3].tolist()) / pushes for value in pulled.values())
    counts = shard.staleness_meter.read()
    assert [(group, updates) for group, updates, _, _ in counts] == [(group, 3 * steps) for group in groups]
    assert sum(total for *_, total, _ in counts) == 3 * count * (count - 1) / 2 - seen


def test_each_group_has_its_own_step_for_the_learning_rate():
    updater = create_updater(
        UpdaterConf(
            type="kSGD",
            learning_rate={
                "type": "kFixedStep",
                "base_lr": 1.0,
                "fixedstep_conf": {"step": [0, 1, 2], "step_lr": [1.0, 10.0, 100.0]},
            },
        )
    )
    shard = make_shard(specs(1), updater=updater)
    for group, step in [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]:
        shard.push(Push(0, group, step, 0), {0: ones(-1)})
    np.testing.assert_array_equal(value_of(shard), ones(1 + 10 + 1 + 100 + 10))


def test_contributions_of_a_group_are_one_update_in_the_order_of_the_workers():
    shard = make_shard(specs(1, contributors=(0, 1, 2)), updater=sgd(momentum=0.5))
    parts = [ones(1e8), ones(-1e8), ones(-1)]
    for worker in (2, 0):
        shard.push(Push(0, 1, 0, worker), {0: parts[worker].copy()})
        shard.push(Push(0, 0, 0, worker), {0: ones(7)})
    assert not value_of(shard).any()
    shard.push(Push(0, 1, 0, 1), {0: parts[1].copy()})
    np.testing.assert_array_equal(value_of(shard), ones(1))
    np.testing.assert_array_equal(shard.snapshot(None, WAIT).state[0]["history"], ones(1))


def test_a_pulled_value_does_not_change_when_other_groups_push():
    shard = make_shard(specs(1, contributors=(0, 1)))
    first = shard.pull([0], 0, 0).result(0)[0]
    for worker in (0, 1):
        shard.push(Push(0, 1, 0, worker), {0: ones(-1)})
    assert not first.any()
    assert shard.pull([0], 0, 0).result(0)[0] is first  # all workers of a group get the same array
    np.testing.assert_array_equal(shard.pull([0], 1, 1).result(0)[0], ones(2))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_a_group_that_skips_a_step_gets_the_updates_of_others():
    shard = make_shard(specs(1))
    np.testing.assert_array_equal(shard.pull([0], 0, 1).result(WAIT)[0], 0)
    shard.push(Push(0, 0, 0, 0), {0: ones(-1)})
    shard.push(Push(0, 1, 0, 0, skip=True), {0: ones()})
    np.testing.assert_array_equal(shard.pull([0], 1, 1).result(WAIT)[0], 1)


def test_a_slice_that_is_not_trainable_has_the_last_pushed_value():
    shard = make_shard(specs(1, trainable=False))
    shard.push(Push(0, 0, 0, 0), {0: ones(3)})
    shard.push(Push(0, 1, 0, 0), {0: ones(5)})
    np.testing.assert_array_equal(shard.pull([0], 1, 0).result(0)[0], ones(5))


def test_a_group_ahead_of_the_bound_waits_for_the_slowest():
    shard = make_shard(specs(1), (0, 1, 2), staleness=1)
    for step in range(2):
        shard.push(Push(0, 0, step, 0), {0: ones()})
    assert shard.pull([0], 1, 0).done()
    ahead = shard.pull([0], 2, 0)
    shard.push(Push(0, 1, 0, 0), {0: ones()})
    assert not ahead.done()
    assert shard.pending() == (
        f"slice p0[0:{SIZE}]: group 0 waits before step 2 for group 2, which is at step 0, "
        "more than the staleness of 1 behind"
    )
    shard.push(Push(0, 2, 0, 0), {0: ones(-1)})
    np.testing.assert_array_equal(ahead.result(0)[0], ones(-2))  # including the update that it waited for


def test_a_group_that_has_left_is_not_waited_for():
    shard = make_shard(specs(2), staleness=0)
    shard.push(Push(0, 0, 0, 0), {0: ones(), 1: ones()})
    ahead = shard.pull([0, 1], 1, 0)
    assert not ahead.done()
    shard.leave(1)
    assert ahead.done()
    shard.leave(1)


def test_a_group_may_begin_later():
    shard = make_shard(specs(1), staleness=1, start=4)
    shard.leave(1)
    for step in range(4, 8):
        shard.push(Push(0, 0, step, 0), {0: ones()})
    shard.join(1, 8)
    assert shard.pull([0], 8, 0).done()
    np.testing.assert_array_equal(shard.pull([0], 8, 1).result(0)[0], ones(-4))
    for step in (8, 9):
        shard.push(Push(0, 0, step, 0), {0: ones()})
    assert not shard.pull([0], 10, 0).done()
    shard.push(Push(0, 1, 8, 0), {0: ones()})
    assert shard.pull([0], 10, 0).done()


def test_pending_names_the_group_and_the_missing_workers():
    shard = make_shard(specs(1, contributors=(0, 1)))
    shard.push(Push(0, 1, 0, 1), {0: ones()})
    shard.collectives.add("all_reduce", "mean", 1, 0, ones(), (0, 1))
    assert shard.pending() == (
        f"slice p0[0:{SIZE}] of group 1 at step 0: worker 1 has come, 0 is missing; "
        "collective of group 1 'mean': worker 0 has come, 1 is missing"
    )


def test_collectives_are_separate_for_each_group():
    shard = make_shard(specs(1))
    sums = [shard.collectives.add("all_reduce", "k", group, 0, ones(group), (0, 1)) for group in (0, 1)]
    for group in (0, 1):
        shard.collectives.add("all_reduce", "k", group, 1, ones(10), (0, 1))
        np.testing.assert_array_equal(sums[group].result(0), ones(10 + group))
    late = shard.collectives.add("all_gather", "rows", 1, 2, np.ones((2, 3)), (1, 2))
    shard.collectives.add("all_gather", "rows", 0, 1, np.zeros((5, 3)), (1, 2))
    assert not late.done()
    shard.collectives.add("all_gather", "rows", 1, 1, np.zeros((1, 3)), (1, 2))
    np.testing.assert_array_equal(late.result(0), [[0, 0, 0], [1, 1, 1], [1, 1, 1]])


def test_a_snapshot_without_a_version_is_between_two_updates(restless_threads):
    steps = 40
    shard = make_shard(specs(2), updater=sgd(momentum=1.0))
    done = threading.Event()

    def work(group):
        for step in range(steps):
            shard.push(Push(0, group, step, 0), {0: ones(-1), 1: ones(-1)})

    def take_snapshots():
        while not done.is_set():
            values, state = shard.snapshot(None, WAIT)
            for id in (0, 1):
                updates = state[id]["history"][0]  # h = 1, 2, ... and w = 1 + 2 + ...
                np.testing.assert_array_equal(state[id]["history"], ones(updates))
                np.testing.assert_array_equal(values[id], ones(updates * (updates + 1) / 2))

    with ThreadPoolExecutor(1) as pool:
        snapshots = pool.submit(take_snapshots)
        run_threads(work, (0,), (1,))
        done.set()
        snapshots.result(WAIT)
    assert shard.snapshot(None, WAIT).state[1]["history"][0] == 2 * steps


def test_a_snapshot_waits_for_the_first_values():
    shard = Shard(specs(1), sgd(), (0, 1))
    refused(lambda: shard.snapshot(None, 0.01), r"slice p0\[0:12\]", "has not been", error=RunError)
    assert shard.pending() == "nothing is waited for"


@pytest.mark.parametrize("groups", [(0,), (0, 1)])
def test_a_server_without_slices_answers_every_call(groups):
    shard = Shard([], sgd(), groups, staleness=0)
    shard.put({})
    assert shard.pull([], 5).result(0) == {}
    assert shard.snapshot(None, WAIT) == ({}, {})
    shard.leave(0)
    np.testing.assert_array_equal(shard.collectives.add("all_reduce", "k", 0, 1, ones(), (1,)).result(0), ones())
