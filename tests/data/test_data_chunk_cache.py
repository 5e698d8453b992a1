"""The cache of decoded chunks is bounded, shared by threads, and loads each chunk once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dsinga.data import chunk_cache as cache_module
from dsinga.data.chunk_cache import ChunkCache
from dsinga.errors import RunError


def kilobyte(value: int) -> np.ndarray:
    return np.full(1024, value, np.uint8)


def test_it_keeps_the_most_recently_used_chunks() -> None:
    cache = ChunkCache(limit=3 << 10)
    loads: list[int] = []

    def get(key: int) -> np.ndarray:
        return cache.get(key, lambda: loads.append(key) or kilobyte(key))

    for key in (0, 1, 2, 0, 3):  # 3 evicts 1, since 0 was used again
        assert (get(key) == key).all()
    assert loads == [0, 1, 2, 3]
    get(0), get(2), get(1)
    assert loads == [0, 1, 2, 3, 1]


def test_chunks_are_dropped_with_the_last_source_that_has_their_contents() -> None:
    class Source:
        pass

    cache = ChunkCache()
    loads: list[tuple[str, int]] = []
    sources = [Source(), Source(), Source()]
    for source, contents in zip(sources, ["mine", "mine", "other"], strict=True):
        cache.forget_after(source, [contents])
    del source

    def get(*key: object) -> None:
        cache.get(key, lambda: loads.append(key) or kilobyte(1))  # type: ignore[func-returns-value]

    def read_all() -> list[tuple[object, ...]]:
        loads.clear()
        for key in (("mine", 0), ("mine", 1), ("other", 0), ("stays", 0)):
            get(*key)
        return [*loads]

    read_all()
    sources.pop(0)
    assert read_all() == []
    sources.pop(0)
    assert read_all() == [("mine", 0), ("mine", 1)]
    sources.pop(0)
    assert read_all() == [("other", 0)]
    assert cache._bytes == 4 * 1024


def test_a_chunk_larger_than_the_limit_is_returned_but_not_kept() -> None:
    cache = ChunkCache(limit=1000)
    loads: list[int] = []
    for _ in range(2):
        assert (cache.get("x", lambda: loads.append(1) or kilobyte(1)) == 1).all()
    assert loads == [1, 1]


def test_chunks_are_read_only() -> None:
    chunk = ChunkCache().get("x", lambda: kilobyte(1))
    with pytest.raises(ValueError, match="read-only"):
        chunk[0] = 2


def test_an_error_is_raised_in_all_waiting_threads_and_not_kept() -> None:
    cache = ChunkCache()
    started, unblocked = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def fail() -> np.ndarray:
        started.set()
        assert unblocked.wait(10)
        raise OSError("disk")

    def get() -> None:
        try:
            cache.get("x", fail)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=get) for _ in range(3)]
    threads[0].start()
    assert started.wait(10)
    for thread in threads[1:]:
        thread.start()
    unblocked.set()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 3
    assert (cache.get("x", lambda: kilobyte(5)) == 5).all()


def test_waiting_for_another_thread_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "TIMEOUT_SECONDS", 0.05)
    cache = ChunkCache()
    started, unblocked = threading.Event(), threading.Event()

    def slow() -> np.ndarray:
        started.set()
        assert unblocked.wait(10)
        return kilobyte(1)

    thread = threading.Thread(target=lambda: cache.get("x", slow), daemon=True)
    thread.start()
    assert started.wait(10)
    with pytest.raises(RunError, match="waited 0 s for another thread to read chunk x"):
        cache.get("x", slow)
    unblocked.set()
    thread.join(10)


def test_a_cleared_cache_loads_its_chunks_again() -> None:
    cache, loads = ChunkCache(), list[int]()
    for _ in range(2):
        cache.get(("mine", 0), lambda: loads.append(1) or kilobyte(1))  # type: ignore[func-returns-value]
        cache.clear()
    assert len(loads) == 2
