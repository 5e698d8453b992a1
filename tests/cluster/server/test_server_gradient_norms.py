"""A shard updates no slice before the norm of all gradients of a step is known."""

from typing import Any

import numpy as np

from dsinga.base.errors import RunError
from dsinga.cluster.server import Push, Shard, Slice, SliceSpec
from dsinga.ops import SparseRows
from tests.support.refusals import refused
from tests.support.shard_network import SIZE, WAIT, make_shard, ones, sgd, specs


def clipping(slices: int = 2, groups: tuple[int, ...] = (0,), **changes: Any) -> Shard:
    return make_shard(specs(slices, **changes), groups, sgd(clip_global_norm=1.0))


def test_slices_wait_for_the_factor() -> None:
    shard = clipping(contributors=(0, 1))
    first, second = Push(0, 0, 0, 0), Push(0, 0, 0, 1)
    squares, values = shard.norms.squares(first), shard.pull([0, 1], 1)
    shard.push(first, {0: ones(), 1: ones(2)})
    shard.push(second, {0: ones()})
    assert not squares.done()
    assert "the norm of the gradients of step 0: the gradients of 1 of 2 slices are missing" in shard.pending()
    shard.push(second, {1: ones(-1)})
    np.testing.assert_array_equal(squares.result(WAIT), [4 * SIZE, SIZE])
    assert not values.done()
    shard.clip(first, 0.5)
    np.testing.assert_array_equal(values.result(WAIT)[0], ones(-1))
    np.testing.assert_array_equal(values.result(WAIT)[1], ones(-0.5))
    shard.clip(first, 0.5)  # a repeated call is dropped
    np.testing.assert_array_equal(shard.snapshot(1, WAIT).values[0], ones(-1))


def test_groups_are_clipped_apart() -> None:
    """Each group of an asynchronous run has the norm of its own gradients, at its own step."""
    shard = clipping(groups=(0, 1))
    for group in (0, 1):
        shard.push(Push(0, group, 0, 0), {0: ones(1 + group), 1: ones(0)})
    for group in (1, 0):
        squares = shard.norms.squares(Push(0, group, 0, 0)).result(WAIT)
        np.testing.assert_array_equal(squares, [(1 + group) ** 2 * SIZE, 0])
        shard.clip(Push(0, group, 0, 0), 0.25)
    np.testing.assert_array_equal(shard.snapshot(None, WAIT).values[0], ones(-0.25 - 0.5))


def test_sparse_rows_and_sums_of_gradients_count() -> None:
    """A slice that is neither trained nor a gradient is replaced at once, and does not count."""
    table = SliceSpec(Slice(0, "table", 0, SIZE, 0, 3))
    gradient = SliceSpec(Slice(1, "replicated", 0, SIZE, 0), trainable=False, is_gradient=True)
    mean = SliceSpec(Slice(2, "mean", 0, SIZE, 0), trainable=False)
    shard = make_shard([table, gradient, mean], (0,), sgd(clip_global_norm=1.0))
    rows = SparseRows(np.array([1]), np.full((1, 3), 2, np.float32), (4, 3))
    push = Push(0, 0, 0, 0)
    shard.push(push, {0: rows, 1: ones(3), 2: ones(7)})
    np.testing.assert_array_equal(shard.pull([2], 1).result(WAIT)[2], ones(7))
    np.testing.assert_array_equal(shard.norms.squares(push).result(WAIT), [12, 9 * SIZE])
    shard.clip(push, 0.5)
    values = shard.pull([0, 1], 1).result(WAIT)
    np.testing.assert_array_equal(values[0].reshape(4, 3)[1], [-1, -1, -1])
    np.testing.assert_array_equal(values[1], ones(1.5))


def test_a_skipped_step_needs_no_norm() -> None:
    shard = clipping()
    shard.push(Push(0, 0, 0, 0, skip=True), {0: ones(0), 1: ones(0)})
    np.testing.assert_array_equal(shard.pull([0, 1], 1).result(WAIT)[0], ones(0))


def test_a_group_that_begins_anew_is_clipped_anew() -> None:
    """Gradients whose norm was not complete are dropped with their request."""
    shard = clipping(groups=(0, 1))
    request = shard.norms.squares(Push(0, 1, 0, 0))
    shard.push(Push(0, 1, 0, 0), {0: ones(5)})
    assert shard.restart(1, 1) == 0
    refused(lambda: request.result(WAIT), "has begun anew as generation 1", error=RunError)
    refused(
        lambda: shard.clip(Push(0, 1, 0, 0), 1.0),
        "is of generation 0, but the group is of generation 1",
        error=RunError,
    )
    push = Push(1, 1, 0, 0)
    shard.push(push, {0: ones(), 1: ones()})
    np.testing.assert_array_equal(shard.norms.squares(push).result(WAIT), [SIZE, SIZE])
    shard.clip(push, 1.0)
    np.testing.assert_array_equal(shard.snapshot(None, WAIT).values[0], ones(-1))


def test_a_closed_shard_ends_the_wait() -> None:
    shard = clipping()
    request = shard.norms.squares(Push(0, 0, 0, 0))
    shard.close(RunError("the run has ended"))
    refused(lambda: request.result(WAIT), "the run has ended", error=RunError)
