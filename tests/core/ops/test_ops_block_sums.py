"""Sums of blocks: the same tree, whoever adds which part of it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsinga.ops.block_sums import TreeSum, add_in_tree, nodes

COUNTS = st.integers(1, 40)


def join(left: str, right: str) -> str:
    return f"({left} + {right})"


def test_the_tree_of_six_blocks():
    assert add_in_tree({k: str(k) for k in range(6)}, join) == "(((0 + 1) + (2 + 3)) + (4 + 5))"


@given(COUNTS, st.data())
def test_any_division_into_nodes_gives_the_same_sum(count, data):
    owners = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    parts = {k: str(k) for k in range(count)}
    found = [node for owner in {*owners} for node in nodes([k for k in parts if owners[k] == owner], count)]
    sums = {node.start: add_in_tree({k: parts[k] for k in node}, join) for node in found}
    assert sorted(k for node in found for k in node) == [*parts]
    assert add_in_tree(sums, join) == add_in_tree(parts, join)


@given(COUNTS)
def test_a_run_of_blocks_has_few_nodes(count):
    assert nodes(range(count), count) == [range(count)]
    assert len(nodes(range(1, count), count)) <= count.bit_length()


@given(st.sets(st.integers(0, 40), min_size=1), st.randoms(use_true_random=False))
def test_gradients_may_come_in_any_order(blocks, random):
    gradients = {k: np.random.default_rng(k).normal(size=7).astype(np.float32) for k in sorted(blocks)}
    expected, order = add_in_tree(gradients, np.add), sorted(blocks)
    random.shuffle(order)
    total = TreeSum(sorted(blocks))
    for block in order:
        total.add(block, gradients[block].copy())
    assert total.total().tobytes() == expected.tobytes()
