"""The pool of result arrays reuses memory, but never memory to which an array still refers."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base import buffers

LARGE = (3, 16, 64, 64)  # a shape of an array that is pooled
SIZE = 4 * 3 * 16 * 64 * 64


@pytest.fixture(autouse=True)
def fresh_pool(monkeypatch):
    monkeypatch.setattr(buffers, "pool", buffers.ResultPool())


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_is_reused_when_the_last_view_is_gone():
    first = buffers.empty(LARGE)
    place, view = address(first), first[1:, :, ::2].T
    del first
    other = buffers.empty(LARGE)
    assert address(other) != place
    del view
    assert address(buffers.empty(LARGE)) == place


@pytest.mark.parametrize("export", [memoryview, np.from_dlpack, lambda array: array.ravel().data])
def test_exported_memory_is_not_reused(export):
    array = buffers.empty(LARGE)
    place, exported = address(array), export(array)
    del array
    assert address(buffers.empty(LARGE)) != place
    del exported
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


def test_small_and_empty_arrays_are_not_pooled():
    assert buffers.empty((2, 3)).shape == (2, 3)
    assert buffers.empty((0, 4, 5, 6), channels_last=True).shape == (0, 4, 5, 6)
    assert buffers.pool.size == 0


@given(st.lists(st.tuples(st.sampled_from([8192, 9000, 16384]), st.integers(0, 7)), min_size=1, max_size=60))
def test_live_arrays_never_overlap(steps):
    """Eight slots; each step drops what is in one and asks for another array."""
    slots: list[np.ndarray | None] = [None] * 8
    for stamp, (count, slot) in enumerate(steps):
        slots[slot] = None
        array = buffers.empty((count,))
        array[...] = stamp
        slots[slot] = array
        live = [array for array in slots if array is not None]
        assert all((array == array[0]).all() for array in live)
        stamps = [int(array[0]) for array in live]
        assert len(stamps) == len(set(stamps))


@pytest.mark.parametrize("freed", [range(8), (3, 1, 2, 0, 7, 5, 6, 4), reversed(range(8))])
def test_arrays_of_any_size_take_the_memory_of_those_before_them(freed):
    arrays = [buffers.empty(LARGE) for _ in range(8)]
    size = buffers.pool.size
    for index in freed:
        arrays[index] = None
    del arrays
    whole = buffers.empty((8, *LARGE))
    del whole
    others = [buffers.empty((rows, 1000)) for rows in (300, 290, 310, 300, 317)]
    assert len({address(array) for array in others}) == 5
    assert buffers.pool.size == size


def test_idle_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "IDLE_LIMIT", 2 * SIZE)
    monkeypatch.setattr(buffers, "CHUNK", SIZE)
    arrays = [buffers.empty(LARGE) for _ in range(4)]
    assert buffers.pool.size > 4 * SIZE
    first, place = arrays[0], address(arrays[0])
    del arrays
    buffers.empty((4, *LARGE))
    assert buffers.pool.size < 5.1 * SIZE
    del first
    assert address(buffers.empty(LARGE)) == place


def test_memory_of_too_large_arrays_is_not_pooled(monkeypatch):
    monkeypatch.setattr(buffers, "LARGEST", SIZE - 1)
    array = buffers.empty(LARGE)
    assert address(array) % buffers.ALIGNMENT == 0
    assert buffers.pool.size == 0


def test_threads_reuse_memory_of_each_other():
    place = address(buffers.empty(LARGE))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: address(buffers.empty(LARGE))).result(60) == place


def test_arrays_of_many_threads_never_overlap():
    start = threading.Barrier(4)

    def work(stamp: int) -> bool:
        start.wait(60)
        for _ in range(300):
            arrays = [buffers.empty((8192,)) for _ in range(3)]
            for array in arrays:
                array[...] = stamp
            if any((array != stamp).any() for array in arrays):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4), timeout=60))
    assert buffers.pool.size < 4 * (3 + 3) * 33_000  # three of each thread, and those of its last round


def test_bases_of_a_thread_are_used_first_while_they_are_free(monkeypatch):
    """By that thread alone, for arrays of any size."""
    monkeypatch.setattr(buffers, "LARGEST", SIZE - 1)
    size = buffers.base_bytes(SIZE)
    memory = memoryview(bytearray(2 * size))
    bases = {size: [np.frombuffer(memory, np.uint8, size, start) for start in (0, size)]}
    places = {address(base) + -address(base) % buffers.ALIGNMENT for base in bases[size]}
    with buffers.use_bases(bases):
        first, second, third = (buffers.empty(LARGE) for _ in range(3))
        assert {address(first), address(second)} == places
        assert address(third) not in places
        view, place = first[1:].reshape(-1)[5:], address(first)
        del first
        assert address(buffers.empty(LARGE)) not in places
        del view
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: address(buffers.empty(LARGE))).result(60) not in places
        assert address(buffers.empty(LARGE)) == place
    assert address(buffers.empty(LARGE)) not in places


def test_an_address_is_that_of_the_first_number():
    base = np.arange(60.0).reshape(3, 4, 5)
    locked = base.copy()
    locked.flags.writeable = False
    for x in (base, base[1:, 2:, ::-1], base.T, base[:0], locked, buffers.empty((2, 3, 4, 5), channels_last=True)):
        assert buffers.address(x) == x.ctypes.data


class Cyclic:
    def __init__(self) -> None:
        self.me = self
        weakref.finalize(self, buffers.clear)


def test_the_garbage_collector_may_clear_the_pool_at_any_time():
    thresholds = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(3000):
            Cyclic()
            array = buffers.empty((20_000,))
    finally:
        gc.set_threshold(*thresholds)
    size = buffers.pool.size
    buffers.clear()
    assert address(buffers.empty((20_000,))) != address(array)
    assert buffers.pool.size == size, "memory beside an array that lives is used again"


FORK = """
import os
from dsinga.base import buffers

kept = buffers.lasting((1 << 16,), "f4")
kept[:] = 1
if (child := os.fork()) == 0:
    kept[:] = 2
    os._exit(0)
os.waitpid(child, 0)
assert (kept == 1).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_does_not_change_what_its_parent_keeps():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)
