"""Reads zarr stores with checks of file lengths, and again after transient errors of remote stores."""

from __future__ import annotations

import asyncio
import errno
import io
import math
import os
from typing import TYPE_CHECKING, NamedTuple

import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import WrapperStore

from dsinga.base.regular_files import METADATA_BYTES, open_regular

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest, Store
    from zarr.core.buffer import Buffer, BufferPrototype
import logging
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from numcodecs import blosc

from dsinga.base.redaction import redact

HEADER_BYTES = 16  # of a chunk that Blosc has compressed
# The most bytes that a chunk may have as stored: so many times its decoded ones, and so many for each chunk of a shard.
MOST_GROWTH, MOST_OVERHEAD, MOST_HEADER = 16, 1 << 10, 1 << 20


class _ChunkLimits(NamedTuple):
    """The most bytes that an undamaged stored chunk has, and whether chunks use Blosc."""

    most_bytes: int
    is_blosc: bool


class ReadingStore(WrapperStore["Store"]):
    """A read-only zarr store that notices damaged chunks, and retries after transient remote errors.

    It refuses chunks that are too short, where zarr would return the fill value or Blosc may crash, and files that are
    no regular files, such as pipes.

    Attributes:
        is_remote: whether it is at a URL, or references elsewhere.
    """

    def __init__(self, store: Store, location: str, is_remote: bool):
        super().__init__(store)
        self.location, self.is_remote = location, is_remote
        self.limits: dict[str, _ChunkLimits] = {}  # by the begin of the keys of chunks

    def _with_store(self, store: Store) -> ReadingStore:
        return ReadingStore(store, self.location, self.is_remote)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the bytes of a key, or None if there is none."""
        is_metadata = key.rpartition("/")[2].startswith(("zarr.json", ".z"))
        limits = None if is_metadata else self._limits_of(key)
        if self.is_remote:
            name = f"{self.location}/{key}"
            buffer = await retry_async(lambda: self._store.get(key, prototype, byte_range), name)
        else:
            path = os.path.join(self.location, key)
            most_bytes = METADATA_BYTES if is_metadata else limits.most_bytes if limits else None
            try:
                buffer = await asyncio.to_thread(_read_file, path, prototype, byte_range, most_bytes)
            except NotADirectoryError:
                if not is_metadata:  # where zarr looks for metadata, it may find any file
                    raise
                return None
        if buffer is not None and not is_metadata:
            _check_length(key, buffer, byte_range, limits)
        return buffer

    def _limits_of(self, key: str) -> _ChunkLimits | None:
        return next((limits for begin, limits in self.limits.items() if key.startswith(begin)), None)

    async def getsize(self, key: str) -> int:
        """Return how many bytes a key's value has."""
        return await self._store.getsize(key)

    async def getsize_prefix(self, prefix: str) -> int:
        """Return how many bytes all values under a prefix have."""
        return await self._store.getsize_prefix(prefix)


def check_lengths(array: zarr.Array) -> None:
    """Let reads compare the lengths of an array's stored chunks with their headers."""
    if not isinstance(array.store, ReadingStore):
        return
    limits = _ChunkLimits(most_chunk_bytes(array), _is_blosc(array))
    array.store.limits[f"{array.path}/" if array.path else ""] = limits


def most_chunk_bytes(array: zarr.Array) -> int:
    """Return the most bytes that a stored chunk, or shard, of an undamaged array has."""
    decoded = math.prod(array.shards or array.chunks)
    parts = decoded // max(math.prod(array.chunks), 1)
    return MOST_GROWTH * decoded * array.dtype.itemsize + MOST_OVERHEAD * parts + MOST_HEADER


def _is_blosc(array: zarr.Array) -> bool:
    codecs = getattr(array.metadata, "codecs", None) or (getattr(array.metadata, "compressor", None),)
    return "blosc" in type(codecs[-1]).__name__.lower()


def _read_file(
    path: str, prototype: BufferPrototype, byte_range: ByteRequest | None, most_bytes: int | None
) -> Buffer | None:
    """Read a local file, or a range of its bytes, like zarr's own store."""
    try:
        with open_regular(path, most_bytes) as file:
            size = file.seek(0, io.SEEK_END)
            start, stop = 0, size
            if isinstance(byte_range, RangeByteRequest):
                start, stop = byte_range.start, byte_range.end
            elif isinstance(byte_range, OffsetByteRequest):
                start = byte_range.offset
            elif isinstance(byte_range, SuffixByteRequest):
                start = max(0, size - byte_range.suffix)
            file.seek(min(start, size))
            return prototype.buffer.from_bytes(file.read(max(0, min(stop, size) - start)))
    except IsADirectoryError:
        return None
    except FileNotFoundError:
        while not os.path.lexists(path):
            path = os.path.dirname(path)
        if os.path.exists(path):
            return None
        raise OSError(errno.EINVAL, "it is a link to a file that is not there", path) from None


def _check_length(key: str, buffer: Buffer, byte_range: ByteRequest | None, limits: _ChunkLimits | None) -> None:
    length = len(buffer)
    if isinstance(byte_range, RangeByteRequest) and length < byte_range.end - byte_range.start:
        raise ValueError(
            f"{key} ends at byte {byte_range.start + length}, but its index says {byte_range.end} or later"
        )
    if not length:
        raise ValueError(f"{key} has 0 bytes")
    if byte_range is not None or limits is None or not limits.is_blosc:
        return
    if length < HEADER_BYTES:
        raise ValueError(f"{key} has {length} bytes only")
    expected = int.from_bytes(buffer[HEADER_BYTES - 4 : HEADER_BYTES].to_bytes(), "little")
    if expected > length:
        raise ValueError(f"{key} has {length} bytes, but its header says {expected}")


T = TypeVar("T")

DELAYS = (0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each further try, 7.7 in all
LONGEST = 10.0  # seconds after which nothing is tried again, since the errors were time-outs
_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_ERRNOS = {errno.EIO, errno.EBUSY, errno.EAGAIN, errno.EPIPE, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT}
# Classes of aiohttp, which is not installed everywhere, and the ones among their subclasses that do not pass.
_PASSING = {"ClientConnectionError", "ClientPayloadError"}
_LASTING = {"ClientConnectorDNSError", "ClientConnectorCertificateError", "ClientSSLError", "InvalidURL"}

logger = logging.getLogger(__name__)


def is_transient(error: BaseException) -> bool:
    """Whether a remote file system's error may go away, unlike "not found"."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status in _STATUSES
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _LASTING:
        return False
    if names & _PASSING or isinstance(error, (ConnectionError, TimeoutError)):
        return True
    return isinstance(error, OSError) and error.errno in _ERRNOS


async def retry_async(call: Callable[[], Awaitable[T]], name: str) -> T:
    """Await ``call()`` until it ends without a transient error; the log calls it ``name``."""
    began = time.monotonic()
    for delay in DELAYS:
        try:
            return await call()
        except Exception as error:
            _note(error, name, delay, began)
        await asyncio.sleep(delay)
    return await call()


def retry(call: Callable[[], T], name: str) -> T:
    """Return ``call()``, called again after transient errors; the log calls it ``name``."""
    began = time.monotonic()
    for delay in DELAYS:
        try:
            return call()
        except Exception as error:
            _note(error, name, delay, began)
        time.sleep(delay)
    return call()


def _note(error: Exception, name: str, delay: float, began: float) -> None:
    if not is_transient(error) or time.monotonic() - began > LONGEST:
        raise error
    logger.info(redact(f"{name}: {type(error).__name__}: {error}; trying again in {delay} s", name))


def _make_blosc_lock() -> None:
    """Prevent a warning of leaked semaphores when a worker process is killed."""
    if not hasattr(blosc, "get_mutex"):  # another release of numcodecs
        return
    module = blosc.multiprocessing
    blosc.multiprocessing = multiprocessing.get_context("fork")
    try:
        blosc.get_mutex()
    finally:
        blosc.multiprocessing = module


_make_blosc_lock()  # before anything that this process reads or writes
