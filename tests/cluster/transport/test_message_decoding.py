"""Whatever arrives in place of a message is refused by ValueError or OSError, and is never executed."""

import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.cluster.transport.channel import HEAD, MESSAGE, Channel
from dsinga.cluster.transport.message import flatten, pack, restore, restore_error, sizes, unpack
from dsinga.ops import SparseRows
from tests.support.refusals import refused
from tests.support.texts import texts

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts(max_size=9)
    | st.binary(max_size=9) | st.sampled_from(["<f4", "rows", "O", "V1000000000", "f4,O", "M8[s]", ">i8", "|S9"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
# Descriptions that are nearly right come further than random values.
SHAPES = st.lists(st.integers(-2, 5) | st.sampled_from([2**31, 2**62, 2**64 - 1, 0.5, None]), max_size=3)
ORDERS = st.lists(st.integers(-1, 3), max_size=3)
KINDS = st.sampled_from(["<f4", "|u1", ">i8", "<i4", "|O", "rows", "<V99999999", "f4,i4", "", None])
DENSE = st.tuples(KINDS, SHAPES, ORDERS).map(list)
SPARSE = st.tuples(st.just("rows"), SHAPES, st.lists(DENSE, max_size=3)).map(list)
LAYOUTS = st.lists(DENSE | SPARSE | PLAIN, max_size=3)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_plain_values_are_refused(packed: bytes) -> None:
    try:
        unpack(packed)
    except ValueError:
        pass


@given(LAYOUTS | PLAIN, st.lists(st.integers(0, 40), max_size=4))
def test_descriptions_that_are_none_are_refused(layouts: Any, lengths: list[int]) -> None:
    for decode in (lambda: list(sizes(layouts)), lambda: restore(layouts, iter([bytes(size) for size in lengths]))):
        try:
            decode()
        except ValueError:
            pass


@given(PLAIN)
def test_errors_that_are_none_are_refused(description: Any) -> None:
    try:
        assert isinstance(restore_error(description), Exception)
    except (ValueError, TypeError):
        pass


@given(PLAIN, LAYOUTS, st.lists(PLAIN, max_size=3), st.integers(0, 3), st.integers(0, 2**32 - 1), st.booleans())
def test_packets_that_are_no_messages_end_a_connection(
    values: Any, layouts: Any, places: Any, kind: int, number: int, in_memory: bool
) -> None:
    sender, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with sender:
        receiver = Channel(end)
        at = 2**64 - 1 if in_memory else 0
        sender.send(HEAD.pack(kind, number, at, at, at) + pack([values, layouts, places]))
        try:
            message = receiver.receive()
        except ConnectionError:
            message = None
        assert message is None or (kind == MESSAGE and not in_memory)
        receiver.close()


def test_a_deep_description_is_refused() -> None:
    for depth in (500, 5_000, 500_000):
        packed = b"\x91" * depth + b"\xc0"
        try:
            layouts = unpack(packed)
        except ValueError:
            continue
        with pytest.raises(ValueError, match="description|values"):
            restore(layouts, iter([]))


@pytest.mark.parametrize("rows", [[-1, 2], [3, 2], [2, 2], [2, 10]])
def test_rows_outside_of_their_array_are_refused(rows: list[int]) -> None:
    """The kernels would write there."""
    sparse = SparseRows(np.array(rows), np.ones((2, 3), np.float32), (10, 3))
    layouts, arrays = flatten([sparse])
    refused(lambda: restore(layouts, iter([array.tobytes() for array in arrays])), "ascending", error=ValueError)
