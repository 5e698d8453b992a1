"""The pool of result arrays: warm memory again and again, and never memory that somebody still sees."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.ops import buffers

LARGE = (3, 16, 64, 64)  # bytes: well above what is pooled
SIZE = 4 * 3 * 16 * 64 * 64


@pytest.fixture(autouse=True)
def fresh_pool(monkeypatch):
    monkeypatch.setattr(buffers, "_pool", buffers._Pool())


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_comes_back_when_the_last_view_is_gone():
    first = buffers.empty(LARGE)
    place, view = address(first), first[1:, :, ::2].T
    del first
    other = buffers.empty(LARGE)
    assert address(other) != place
    del view
    assert address(buffers.empty(LARGE)) == place


@pytest.mark.parametrize("export", [memoryview, np.from_dlpack, lambda array: array.ravel().data])
def test_memory_stays_taken_while_exported(export):
    array = buffers.empty(LARGE)
    place, held = address(array), export(array)
    del array
    assert address(buffers.empty(LARGE)) != place
    del held
    assert address(buffers.empty(LARGE)) == place


def test_layouts_dtypes_and_alignment():
    image = buffers.empty(LARGE, channels_last=True)
    assert image.shape == LARGE
    assert image.transpose(0, 2, 3, 1).flags.c_contiguous
    plain = buffers.empty(LARGE)
    assert plain.flags.c_contiguous
    assert plain.flags.writeable
    assert plain.dtype == np.float32
    assert buffers.like(image).strides == image.strides
    assert buffers.like(plain).strides == plain.strides
    flat = buffers.empty((SIZE,), dtype=np.uint8)
    assert flat.dtype == np.uint8
    for array in (image, plain, flat):
        assert address(array) % buffers.ALIGNMENT == 0


def test_small_and_empty_arrays_are_left_to_numpy():
    assert buffers.empty((2, 3)).shape == (2, 3)
    assert buffers.empty((0, 4, 5, 6), channels_last=True).shape == (0, 4, 5, 6)
    assert buffers._pool.buckets == {}


@given(st.lists(st.tuples(st.sampled_from([8192, 9000, 16384]), st.integers(0, 7)), min_size=1, max_size=60))
def test_arrays_that_live_never_overlap(steps):
    """Eight slots; each step drops what is in one and asks for another array."""
    slots: list[np.ndarray | None] = [None] * 8
    for stamp, (count, slot) in enumerate(steps):
        slots[slot] = None
        array = buffers.empty((count,))
        array[...] = stamp
        slots[slot] = array
        for other in slots:
            assert other is None or (other == other[0]).all()
        stamps = [int(other[0]) for other in slots if other is not None]
        assert len(stamps) == len(set(stamps))


def test_one_size_keeps_a_bounded_number_of_arrays():
    held = [buffers.empty(LARGE) for _ in range(buffers.BUCKET + 5)]
    assert [len(bucket) for bucket in buffers._pool.buckets.values()] == [buffers.BUCKET]
    assert len({address(array) for array in held}) == len(held)


def test_idle_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "IDLE_LIMIT", 2 * SIZE)
    held = [buffers.empty(LARGE) for _ in range(4)]
    kept = held[0]
    del held
    assert buffers._pool.idle_bytes() > 2 * SIZE
    buffers.empty((1, *LARGE[1:]))
    assert buffers._pool.idle_bytes() < SIZE
    place = address(kept)
    del kept
    assert address(buffers.empty(LARGE)) == place


def test_each_thread_has_its_own_memory():
    first = buffers.empty(LARGE)
    place = address(first)
    del first
    other: list[int] = []
    thread = threading.Thread(target=lambda: other.append(address(buffers.empty(LARGE))))
    thread.start()
    thread.join(60)
    assert other != [place]
    assert address(buffers.empty(LARGE)) == place
