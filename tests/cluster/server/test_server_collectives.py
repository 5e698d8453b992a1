"""Collectives over workers: bits of the results, repeated calls, and removal of finished ones."""

import gc
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.server.collectives import Collectives
from dsinga.cluster.server.gradient_accumulator import Generations

PARTS = [np.array([1e8, 1.0], np.float32), np.array([-1e8, 2.0], np.float32), np.array([1.0, 3.0], np.float32)]
TOTAL = (PARTS[0] + PARTS[1]) + PARTS[2]
ROWS = [np.full((count, 2), count) for count in (1, 3, 2)]
ALL_ROWS = np.concatenate(ROWS)


def add(collectives, key, worker, array, contributors=2):
    return collectives.add("all_reduce", key, 0, worker, array, range(contributors))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(
    ("method", "parts", "expected"), [("all_reduce", PARTS, TOTAL), ("all_gather", ROWS, ALL_ROWS)]
)
def test_sums_and_rows_are_in_the_order_of_the_workers(order, method, parts, expected):
    collectives = Collectives((0,), Generations(0))
    futures = [collectives.add(method, "a", 0, worker, parts[worker], range(3)) for worker in order]
    for future in futures:
        np.testing.assert_array_equal(future.result(0), expected)
        assert not future.result(0).flags.writeable
    assert TOTAL[0] != PARTS[0][0] + (PARTS[1][0] + PARTS[2][0])  # so that the order matters


def test_threads_get_every_sum(restless_threads):
    collectives = Collectives((0,), Generations(0))

    def work(worker):
        return [add(collectives, f"step {step}", worker, PARTS[worker] * step, 3).result(60) for step in range(200)]

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(work, range(3)))
    expected = [(PARTS[0] * step + PARTS[1] * step) + PARTS[2] * step for step in range(200)]
    for result in results:
        np.testing.assert_array_equal(result, expected)
    assert collectives.pending() == []


def test_a_repeated_call_counts_once_and_gets_the_same_answer():
    collectives = Collectives((0,), Generations(0))
    add(collectives, "a", 0, PARTS[0])
    add(collectives, "a", 0, PARTS[2])
    assert collectives.pending() == ["collective 'a': worker 0 has come, 1 is missing"]
    result = add(collectives, "a", 1, PARTS[1]).result(0)
    add(collectives, "b", 1, PARTS[1])  # the answer to worker 0 may have been lost
    assert add(collectives, "a", 0, PARTS[2]).result(0) is result
    np.testing.assert_array_equal(result, PARTS[0] + PARTS[1])


def test_arrays_of_different_shapes_fail_all_workers():
    collectives = Collectives((0,), Generations(0))
    early = add(collectives, "a", 0, np.zeros(2))
    late = add(collectives, "a", 1, np.zeros(3))
    for future in (early, late):
        assert isinstance(future.exception(0), ValueError)


def test_close_keeps_finished_results():
    collectives = Collectives((0,), Generations(0))
    done = add(collectives, "a", 0, PARTS[0], 1)
    collectives.close(RunError("lost"))
    np.testing.assert_array_equal(done.result(0), PARTS[0])
    assert isinstance(add(collectives, "b", 0, PARTS[0]).exception(0), RunError)


def test_each_key_has_its_own_contributors():
    collectives = Collectives((0,), Generations(0))
    first = collectives.add("all_reduce", "a", 0, 2, PARTS[2], (0, 2))
    np.testing.assert_array_equal(collectives.add("all_reduce", "b", 0, 1, PARTS[1], (1,)).result(0), PARTS[1])
    assert collectives.pending() == ["collective 'a': worker 2 has come, 0 is missing"]
    collectives.add("all_reduce", "a", 0, 0, PARTS[0], (0, 2))
    np.testing.assert_array_equal(first.result(0), PARTS[0] + PARTS[2])
    reference = weakref.ref(first)
    collectives.add("all_reduce", "c", 0, 2, PARTS[2], (0, 1, 2))
    collectives.add("all_reduce", "c", 0, 0, PARTS[0], (0, 1, 2))
    del first
    gc.collect()
    assert reference() is None
    assert collectives.pending() == ["collective 'c': workers 0, 2 have come, 1 is missing"]
