"""Keeps decoded chunks of stores in memory, for all threads of a process."""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from dsinga.base.errors import RunError

LIMIT_BYTES = 128 << 20  # twice the chunks that one sampler mixes, at their largest in a record store
MIXED_BLOCKS = 10  # the 8 blocks that a sampler mixes, the next one, and one of the labels
TIMEOUT_SECONDS = 300.0
RUN_LOCKS = 64
_caches: WeakSet[ChunkCache] = WeakSet()


class ChunkCache:
    """Keeps the chunks read last, up to ``limit`` bytes, and decodes each once, even for concurrent readers.

    The first element of a key identifies the content of the chunk.
    """

    def __init__(self, limit: int = LIMIT_BYTES):
        self._limit = limit
        self._reserved: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._reserved_for_parts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # these add up
        self._bytes = 0
        self._entries: OrderedDict[tuple[Hashable, ...], np.ndarray | Future[np.ndarray]] = OrderedDict()
        self._sources: Counter[Hashable] = Counter()  # that have contents which end with them
        self.renew()
        _caches.add(self)

    def renew(self) -> None:
        """Go on without other threads, as in a forked process: they may have held locks and been loading chunks."""
        self._lock = threading.RLock()  # the garbage collector may end a source in a thread that holds it
        self._run_locks = [threading.Lock() for _ in range(RUN_LOCKS)]
        for key in [key for key, entry in self._entries.items() if isinstance(entry, Future)]:
            del self._entries[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._limit,)

    @property
    def limit(self) -> int:
        """The most bytes that the cache keeps; it grows for sources with large blocks."""
        return max([self._limit, *self._reserved.values(), sum(self._reserved_for_parts.values())])

    def bytes_of(self, content: Hashable) -> int:
        """Return how many bytes of ``content`` are cached."""
        with self._lock:
            entries = [entry for key, entry in self._entries.items() if key[0] == content]
            return sum(entry.nbytes for entry in entries if isinstance(entry, np.ndarray))

    def reserve(self, source: Any, block_bytes: int) -> None:
        """Let the cache hold all blocks that shuffling mixes, of ``block_bytes`` each, while ``source`` exists."""
        self.reserve_bytes(source, MIXED_BLOCKS * block_bytes)

    def reserve_for_part(self, whole: Any, part: Any, block_bytes: int) -> None:
        """Reserve less memory than for ``whole`` for ``part``, which reads only a region of each record."""
        with self._lock:
            self._reserved.pop(whole, None)
            self._reserved_for_parts[part] = MIXED_BLOCKS * block_bytes

    def reserve_bytes(self, source: Any, count: int) -> None:
        """Let the cache grow to at least ``count`` bytes while ``source`` exists."""
        if count > self._limit:
            with self._lock:
                self._reserved[source] = count

    def forget_after(self, source: Any, contents: Sequence[Hashable]) -> None:
        """Drop the chunks of ``contents`` once all sources that use them, such as ``source``, are deleted."""
        with self._lock:
            self._sources.update(contents)
        weakref.finalize(source, self._forget, contents).atexit = False

    def lock_of(self, key: Hashable) -> threading.Lock:
        """Return the lock of threads that read a run of chunks, which begins with ``key``."""
        return self._run_locks[hash(key) % RUN_LOCKS]

    def get(self, key: tuple[Hashable, ...], load: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the chunk ``key``, read-only; decode it by ``load`` if no thread has done so.

        Raises RunError after 300 s of waiting for another thread.
        """
        with self._lock:
            entry = self._entries.get(key)
            missing = entry is None
            if entry is None:
                entry = self._entries[key] = Future()
            self._entries.move_to_end(key)
        if isinstance(entry, np.ndarray):
            return entry
        if missing:
            self._fill(key, entry, load)
        try:
            return entry.result(TIMEOUT_SECONDS)
        except TimeoutError:
            if entry.done():  # raised by ``load`` itself
                raise
            raise RunError(f"waited {TIMEOUT_SECONDS:.0f} s for another thread to read chunk {key}") from None

    def find(self, key: tuple[Hashable, ...]) -> np.ndarray | None:
        """Return the chunk ``key`` if it is cached, else None."""
        with self._lock:
            entry = self._entries.get(key)
            if not isinstance(entry, np.ndarray):
                return None
            self._entries.move_to_end(key)
            return entry

    def put(self, key: tuple[Hashable, ...], chunk: np.ndarray) -> None:
        """Cache a chunk, made read-only, in place of an earlier one."""
        chunk.flags.writeable = False
        with self._lock:
            self.drop(key)
            self._entries[key] = chunk
            self._bytes += chunk.nbytes
            self._evict()

    def drop(self, key: tuple[Hashable, ...]) -> None:
        """Drop a chunk, unless it is being loaded."""
        with self._lock:
            if isinstance(entry := self._entries.get(key), np.ndarray):
                del self._entries[key]
                self._bytes -= entry.nbytes

    def drop_first(self, key: tuple[Hashable, ...]) -> None:
        """Mark the chunk ``key`` as the next to be dropped."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key, last=False)

    def clear(self) -> None:
        """Drop all chunks except those being loaded."""
        with self._lock:
            for key in list(self._entries):
                self.drop(key)

    def _forget(self, contents: Sequence[Hashable]) -> None:
        with self._lock:
            self._sources.subtract(contents)
            ended = {content for content in contents if not self._sources[content]}
            for content in ended:
                del self._sources[content]
            for key in [key for key in self._entries if key[0] in ended]:
                self.drop(key)

    def _fill(self, key: tuple[Hashable, ...], entry: Future[np.ndarray], load: Callable[[], np.ndarray]) -> None:
        try:
            chunk = load()
        except BaseException as error:
            with self._lock:
                self._entries.pop(key, None)  # gone in a process that ``load`` has forked
            entry.set_exception(error)
            return
        self.put(key, chunk)
        entry.set_result(chunk)

    def _evict(self) -> None:
        limit = self.limit
        for key in list(self._entries) if self._bytes > limit else ():
            if self._bytes <= limit:
                return
            self.drop(key)


def _renew_in_child() -> None:
    for cache in list(_caches):
        cache.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_in_child)
