"""Sums over partitions: their bits, repeated calls, and that finished ones are forgotten."""

import gc
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsinga.errors import RunError
from dsinga.server.collectives import Collectives, add_up, join_rows

PARTS = [np.array([1e8, 1.0], np.float32), np.array([-1e8, 2.0], np.float32), np.array([1.0, 3.0], np.float32)]
TOTAL = (PARTS[0] + PARTS[1]) + PARTS[2]


def add(totals, key, partition, array, contributors=2):
    return totals.add(key, partition, array, range(contributors), add_up)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_sum_is_in_the_order_of_the_partitions(order):
    totals = Collectives()
    futures = [add(totals, "a", partition, PARTS[partition], 3) for partition in order]
    for future in futures:
        np.testing.assert_array_equal(future.result(0), TOTAL)
        assert not future.result(0).flags.writeable
    assert TOTAL[0] != PARTS[0][0] + (PARTS[1][0] + PARTS[2][0])  # or the order would not show


def test_threads_get_every_sum(restless_threads):
    totals = Collectives()

    def work(partition):
        return [add(totals, f"step {step}", partition, PARTS[partition] * step, 3).result(10) for step in range(200)]

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(work, range(3)))
    wanted = [(PARTS[0] * step + PARTS[1] * step) + PARTS[2] * step for step in range(200)]
    for result in results:
        np.testing.assert_array_equal(result, wanted)
    assert totals.pending() == []


def test_a_call_that_is_sent_again_counts_once_and_gets_the_same_answer():
    totals = Collectives()
    add(totals, "a", 0, PARTS[0])
    add(totals, "a", 0, PARTS[2])
    assert totals.pending() == ["'a': partition 0 has come, 1 is missing"]
    sum_ = add(totals, "a", 1, PARTS[1]).result(0)
    add(totals, "b", 1, PARTS[1])  # partition 1 has gone on, but the answer to partition 0 may have been lost
    assert add(totals, "a", 0, PARTS[2]).result(0) is sum_
    np.testing.assert_array_equal(sum_, PARTS[0] + PARTS[1])


def test_a_total_is_forgotten_when_all_have_gone_on():
    totals = Collectives()
    first = weakref.ref(add(totals, "a", 0, PARTS[0]))
    add(totals, "a", 1, PARTS[1])
    add(totals, "b", 0, PARTS[0])
    gc.collect()
    assert first() is not None
    add(totals, "b", 1, PARTS[1])
    gc.collect()
    assert first() is None


def test_parts_that_do_not_fit_fail_everybody():
    totals = Collectives()
    early = add(totals, "a", 0, np.zeros(2))
    late = add(totals, "a", 1, np.zeros(3))
    for future in (early, late):
        assert isinstance(future.exception(0), ValueError)


def test_close_leaves_finished_sums_alone():
    totals = Collectives()
    done = add(totals, "a", 0, PARTS[0], 1)
    totals.close(RunError("lost"))
    np.testing.assert_array_equal(done.result(0), PARTS[0])
    assert isinstance(add(totals, "b", 0, PARTS[0]).exception(0), RunError)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_rows_are_joined_in_the_order_of_the_partitions(order):
    totals = Collectives()
    rows = [np.full((count, 2), count) for count in (1, 3, 2)]
    futures = [totals.add("a", partition, rows[partition], range(3), join_rows) for partition in order]
    for future in futures:
        np.testing.assert_array_equal(future.result(0), np.concatenate(rows))
        assert not future.result(0).flags.writeable


def test_each_key_has_contributors_of_its_own():
    totals = Collectives()
    first = totals.add("a", 2, PARTS[2], (0, 2), add_up)
    np.testing.assert_array_equal(totals.add("b", 1, PARTS[1], (1,), add_up).result(0), PARTS[1])
    assert totals.pending() == ["'a': partition 2 has come, 0 is missing"]
    totals.add("a", 0, PARTS[0], (0, 2), add_up)
    np.testing.assert_array_equal(first.result(0), PARTS[0] + PARTS[2])
    kept = weakref.ref(first)
    totals.add("c", 2, PARTS[2], (0, 1, 2), add_up)
    totals.add("c", 0, PARTS[0], (0, 1, 2), add_up)
    del first
    gc.collect()
    assert kept() is None
    assert totals.pending() == ["'c': partitions 0, 2 have come, 1 is missing"]
