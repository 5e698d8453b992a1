"""A worker group that begins anew: no step counts twice, late messages are refused, other groups do not notice."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.errors import RunError
from dsinga.cluster.server import Push
from tests.support.shard_network import WAIT, GatedSGD, make_shard, ones, specs


def push(shard, group, step, worker, *ids, generation=0, times=1.0):
    shard.push(Push(generation, group, step, worker), {id: ones(-times) for id in ids})


def values(shard):
    return [value[0] for _, value in sorted(shard.snapshot(None, WAIT).values.items())]


def test_it_begins_at_the_highest_step_without_incomplete_gradients():
    shard = make_shard(specs(3, (0, 1)))
    for step in range(2):
        for worker in (0, 1):
            push(shard, 1, step, worker, 0, *[1, 2][: 2 - step], times=0.5)
    push(shard, 1, 2, 0, 0, times=100)  # worker 1 was lost before it pushed
    push(shard, 1, 1, 1, 2, times=100)  # and so before step 1 was complete
    assert shard.restart(1, 7) == 2
    for step in (2, 3):
        pulled = shard.pull(range(3), step, 1).result(0)
        assert [pulled[id][0] for id in range(3)] == [step, step, step - 1]
        for worker in (1, 0):
            push(shard, 1, step, worker, 0, 1, 2, generation=7, times=0.5)
    assert values(shard) == [4, 4, 3]


@pytest.mark.parametrize("generation", [0, 2])
def test_messages_of_another_generation_are_refused(generation):
    shard = make_shard(specs(2, (0, 1)))
    shard.restart(1, 1)
    refused = f"of group 1 .*is of generation {generation}, but the group is of generation 1"
    with pytest.raises(RunError, match="a push of worker 0 " + refused):
        push(shard, 1, 0, 0, 0, generation=generation)
    with pytest.raises(RunError, match="a collective of worker 1 " + refused):
        shard.collectives.add("all_reduce", "k", 1, 1, ones(), (0, 1), generation)
    for worker in (0, 1):
        push(shard, 0, 0, worker, 0, 1)  # the other group is still of generation 0
    assert values(shard) == [2, 2]


def test_its_pulls_and_collectives_fail_and_those_of_others_stay():
    shard = make_shard(specs(2, (0, 1)))
    lost = [shard.pull([0], 1, 1), shard.collectives.add("all_reduce", "k", 1, 0, ones(), (0, 1))]
    other = [shard.pull([0], 1, 0), shard.collectives.add("all_reduce", "k", 0, 0, ones(), (0, 1))]
    shard.restart(1, 1)
    for future in lost:
        assert "worker group 1 has begun anew as generation 1" in str(future.exception(0))
    assert not any(future.done() for future in other)
    for worker in (0, 1):
        push(shard, 0, 0, worker, 0)
    shard.collectives.add("all_reduce", "k", 0, 1, ones(), (0, 1))
    for future in other:
        future.result(0)
    key = ("all_reduce", "k", 1)  # computed again under the same key, without the array of before
    new = [shard.collectives.add(*key, worker, ones(3), (0, 1), 1) for worker in (0, 1)]
    np.testing.assert_array_equal(new[0].result(0), ones(6))


def test_servers_of_a_group_agree_on_the_step():
    shards = [make_shard(specs(2, (0, 1))), make_shard(specs(2, (0, 1))), make_shard(specs(0, (0, 1)))]
    for step in range(3):
        for worker in (0, 1):
            push(shards[1], 1, step, worker, 1)
    answers = [shard.restart(1, 1) for shard in shards]
    assert answers == [0, 3, 0]
    assert [shard.restart(1, 1, max(answers)) for shard in shards] == [3, 3, 3]
    assert all(shard.pull([0, 1][: 2 * (number < 2)], 3, 1).done() for number, shard in enumerate(shards))


def test_an_update_that_is_running_ends_and_counts():
    updater = GatedSGD()
    shard = make_shard(specs(1, (0,)), updater=updater)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(push, shard, 1, 0, 0, 0)
        assert updater.started.wait(WAIT)
        assert shard.restart(1, 1) == 1
        assert shard.restart(1, 1, 5) == 5
        first = shard.pull([0], 5, 1)
        assert not first.done()
        updater.gate.set()
        running.result(WAIT)
        assert first.result(WAIT)[0][0] == 1
    push(shard, 1, 5, 0, 0, generation=1)
    assert shard.pull([0], 6, 1).result(0)[0][0] == 2


def test_others_within_the_staleness_go_on_and_wait_for_the_new_group():
    shard = make_shard(specs(2, (0,)), staleness=1)
    for step in range(2):
        push(shard, 0, step, 0, 0, 1)
    push(shard, 1, 0, 0, 0)
    ahead = shard.pull([0, 1], 2, 0)
    assert not ahead.done()  # slice 1 of group 1 is at step 0
    assert shard.restart(1, 1) == 1
    assert ahead.done()
    push(shard, 0, 2, 0, 0, 1)
    assert not shard.pull([0, 1], 3, 0).done()
    push(shard, 1, 1, 0, 0, 1, generation=1)
    assert shard.pull([0, 1], 3, 0).done()


def test_a_group_that_has_left_is_waited_for_again():
    shard = make_shard(specs(2, (0,)), staleness=0)
    shard.leave(1)
    shard.restart(1, 1)
    push(shard, 0, 0, 0, 0, 1)
    assert not shard.pull([0], 1, 0).done()


@given(data=st.data())
def test_no_step_of_a_slice_counts_twice_or_in_part(data):
    shard, workers = make_shard(specs(3, (0, 1))), (0, 1)
    generation, first = 0, 0
    pushed, steps, updates = {}, {}, [0, 0, 0]
    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.integers(0, 9)) == 0:
            generation, first = generation + 1, shard.restart(1, generation + 1)
            assert all(first >= step for _, step in steps)
            assert not steps or any(first == step + 1 for _, step in steps)
            pushed = {}
            continue
        id, worker = data.draw(st.integers(0, 2)), data.draw(st.sampled_from(workers))
        step = max([first, *(1 + last for (at, last) in steps if at == id)])
        if pushed.setdefault((id, step), set()) >= {worker}:
            continue
        pushed[id, step].add(worker)
        push(shard, 1, step, worker, id, generation=generation)
        if len(pushed[id, step]) == len(workers):
            assert steps.setdefault((id, step)) is None
            updates[id] += len(workers)
    assert values(shard) == updates


def test_a_group_begins_anew_again_and_again_while_others_train(restless_threads):
    steps, shard = 40, make_shard(specs(2, (0, 1)), groups=(0, 1, 2), staleness=5)

    def train(group, worker, generation, start, stop):
        draw = random.Random(10 * group + worker)
        for step in range(start, stop):
            for value in shard.pull([0, 1], step, group).result(WAIT).values():
                assert (value == value[0]).all()
            for id in draw.sample([0, 1], 2):
                push(shard, group, step, worker, id, generation=generation)

    def train_and_lose(start, generation):
        """Train group 1 until its worker 1 is lost: with a push for one slice only."""
        stop = min(steps, start + 3 + generation)
        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(train, 1, worker, generation, start, stop) for worker in (0, 1)]:
                future.result(2 * WAIT)
        if stop == steps:
            return stop
        shard.pull([0, 1], stop, 1).result(WAIT)
        push(shard, 1, stop, 0, 0, 1, generation=generation)
        push(shard, 1, stop, 1, 0, generation=generation)
        assert shard.restart(1, generation + 1) == stop + 1
        with pytest.raises(RunError, match=f"is of generation {generation}"):
            push(shard, 1, stop, 1, 1, generation=generation)
        return stop + 1

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(train, group, worker, 0, 0, steps) for group in (0, 2) for worker in (0, 1)]
        start = generation = 0
        while start < steps:
            start, generation = train_and_lose(start, generation), generation + 1
        shard.leave(1)
        for future in others:
            future.result(3 * WAIT)
    assert generation > 3
    assert values(shard) == [6 * steps, 6 * steps - 2 * (generation - 1)]
    assert shard.pending() == "nothing is waited for"
