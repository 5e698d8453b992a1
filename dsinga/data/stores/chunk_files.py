"""Reads regions of zarr arrays from chunk files without zarr's overhead, and notices rewritten files."""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numcodecs
import numpy as np
import zarr
from zarr.storage import FsspecStore, LocalStore

from dsinga.base import buffers
from dsinga.base.buffers import address
from dsinga.base.cores import available_cores
from dsinga.base.errors import UserError
from dsinga.base.regular_files import open_regular, read_json
from dsinga.data.locations import absolute
from dsinga.data.stores.checked_files import ReadingStore, check_lengths, most_chunk_bytes
from dsinga.data.stores.shard_index import ShardFault, ShardReader, chunks_of_shard, has_checked_index

# The decoders of codecs of zarr's third format, by name; none of them needs the settings with which it encoded.
_DECODERS = {"blosc": numcodecs.Blosc, "zstd": numcodecs.Zstd, "gzip": numcodecs.GZip}
T = TypeVar("T")
MOST_THREADS = 2  # that read a region; files and codecs let others run
SMALL_BYTES = 1 << 20  # of a region, up to which one thread reads it


class AxisPart(NamedTuple):
    """Where a chunk and a region overlap along one axis."""

    number: int
    inside: slice
    place: slice
    points: slice


_ChunkPart = tuple[AxisPart, ...]  # of one chunk, along each axis


def axis_parts(region: slice, begins: Sequence[int]) -> list[AxisPart]:
    """Return where a region, a slice with start and stop, overlaps chunks that start at ``begins``."""
    parts: list[AxisPart] = []
    if region.start == region.stop:
        return parts
    first, stop = bisect_right(begins, region.start) - 1, bisect_left(begins, region.stop)
    if stop - first == 1:
        inside = slice(region.start - begins[first], region.stop - begins[first])
        return [AxisPart(first, inside, slice(0, region.stop - region.start), region)]
    for number in range(first, stop):
        begin, is_last = begins[number], number + 1 == len(begins)
        low, high = max(begin, region.start), region.stop if is_last else min(begins[number + 1], region.stop)
        inside, place = slice(low - begin, high - begin), slice(low - region.start, high - region.start)
        parts.append(AxisPart(number, inside, place, slice(low, high)))
    return parts


def in_threads(calls: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Run functions in up to ``threads`` threads; return their results in order of completion.

    After an error, or an interrupt, no further function begins.
    """
    waiting, helpers = deque(calls), min(threads, len(calls)) - 1
    results: list[T] = []

    def work() -> None:
        try:
            while True:
                try:
                    call = waiting.popleft()
                except IndexError:
                    return
                results.append(call())
        finally:
            waiting.clear()

    if helpers < 1:
        work()
        return results
    with ThreadPoolExecutor(helpers) as pool:
        shares = [pool.submit(work) for _ in range(helpers)]
        work()
    for share in shares:
        share.result()
    return results


class RegionReader:
    """Reads regions of a zarr array quickly, and checks the lengths of its chunks.

    Two threads read local files directly. Zarr reads other stores, and chunks that are missing or cannot be decoded.

    Args:
        check: called with the numbers that zarr has read, and their region.
    """

    def __init__(self, array: zarr.Array, check: Callable[[np.ndarray, Sequence[slice]], None] | None = None):
        check_lengths(array)
        self._most_bytes = most_chunk_bytes(array)
        self._array, self.reads_files, self._check = array, has_plain_chunks(array), check
        if not self.reads_files:
            return
        self._folder = os.path.join(local_folder(array) or "", array.path, "")
        self._leaves_faults = isinstance(array.store, ReadingStore)  # which refuses what zarr would take for no chunk
        self._key = array.metadata.encode_chunk_key
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, array.chunks
        self._nbytes = math.prod(self.chunks) * self.dtype.itemsize
        self._codec = _decoder(array)
        self._in_shard = chunks_of_shard(array)
        self._shards = None if array.shards is None else ShardReader(array, self._most_bytes)
        self._is_blosc = isinstance(self._codec, numcodecs.Blosc)

    def read(self, region: tuple[slice, ...]) -> np.ndarray:
        """Read a region, given as slices along the first axes with start, stop and step 1."""
        if not self.reads_files:
            return self._by_zarr(region)
        region = (*region, *(slice(0, size) for size in self.shape[len(region) :]))
        out = buffers.lasting(tuple(part.stop - part.start for part in region), self.dtype)
        if not out.size:
            return out
        begins = (range(0, size, chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))
        parts = list(itertools.product(*map(axis_parts, region, begins)))
        threads = min(MOST_THREADS, available_cores()) if out.nbytes > SMALL_BYTES else 1
        in_threads([partial(self._read_part, part, out) for part in parts], threads)
        return out

    def _read_part(self, part: _ChunkPart, out: np.ndarray) -> None:
        target = out[tuple(axis.place for axis in part)]
        if not self._decode(part, target):
            target[...] = self._by_zarr(tuple(axis.points for axis in part))

    def _by_zarr(self, region: tuple[slice, ...]) -> np.ndarray:
        numbers = np.asarray(self._array[region])
        if self._check is not None:
            self._check(numbers, region)
        return numbers

    def _decode(self, part: _ChunkPart, target: np.ndarray) -> bool:
        """Decode the part of a chunk that a region needs; False for a missing or damaged chunk."""
        try:
            data = self._stored([axis.number for axis in part])
        except (FileNotFoundError, ShardFault):
            return False
        except IsADirectoryError:
            if self._leaves_faults:
                return False
            raise
        try:
            encoded = self._is_blosc and _blosc_bytes(data)
            is_whole = target.nbytes == self._nbytes and target.flags.c_contiguous
            if self._codec is None:
                chunk = data.view(self.dtype)
            elif isinstance(self._codec, numcodecs.Zstd) and _zstd is not None:
                chunk = target if is_whole else buffers.empty(self.chunks, dtype=self.dtype)
                if _zstd.ZSTD_decompress(address(chunk), self._nbytes, address(data), len(data)) != self._nbytes:
                    return False
                if is_whole:
                    return True
            elif encoded != (self._nbytes, len(data)):
                chunk = np.frombuffer(self._codec.decode(data), self.dtype)
            elif is_whole:
                self._codec.decode(data, out=target)
                return True
            else:
                chunk = buffers.empty(self.chunks, dtype=self.dtype)
                self._codec.decode(data, out=chunk)
            target[...] = chunk.reshape(self.chunks)[tuple(axis.inside for axis in part)]
        except CutOff:
            if self._leaves_faults:
                return False
            raise
        except Exception:  # of codecs: any class, and zarr will say it
            return False
        return True

    def _stored(self, index: Sequence[int]) -> np.ndarray:
        """Return the stored bytes of a chunk, by its number along each axis."""
        stored, chunk = zip(*map(divmod, index, self._in_shard), strict=True)
        path = f"{self._folder}{self._key(stored)}"
        return _read_file(path, self._most_bytes) if self._shards is None else self._shards.read(path, chunk)


def _zstd_library() -> ctypes.CDLL | None:
    """Find the C functions of Zstd in numcodecs, to decode without the interpreter lock."""
    try:
        library = ctypes.CDLL(numcodecs.zstd.__file__)
        decompress = library.ZSTD_decompress
    except (AttributeError, OSError):  # of a build that hides it
        return None
    decompress.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    decompress.restype = ctypes.c_size_t
    return library


_zstd = _zstd_library()


class CutOff(ValueError):
    """The error that a file is cut off: it has fewer bytes than its header says."""


def _blosc_bytes(data: np.ndarray) -> tuple[int, int]:
    """Read the decoded and the encoded size of a Blosc chunk from its header."""
    before, _, after = np.frombuffer(data[:16].tobytes(), "<u4")[1:].tolist()
    if after > len(data):
        raise CutOff(f"a chunk has {len(data)} bytes, and by its header {after}")
    return before, after


def _read_file(path: str, most_bytes: int) -> np.ndarray:
    """Return the bytes of a file (n,), uint8, in memory that is reused."""
    with open_regular(path, most_bytes, buffering=0) as file:
        data = buffers.empty((os.fstat(file.fileno()).st_size,), dtype=np.uint8)
        count = cast(Any, file).readinto(memoryview(data))
    if count != len(data):
        raise OSError(f"{path} has changed while it was read")
    return data


def location_of(value: Any) -> str:
    """Return the path or URL of a zarr store, or of an array's store."""
    store = getattr(value, "store", value)
    if isinstance(store, ReadingStore):
        return store.location
    if isinstance(store, FsspecStore):
        return absolute(getattr(store.fs, "sync_fs", store.fs).unstrip_protocol(store.path))
    return str(store.root) if isinstance(store, LocalStore) else str(store)


def local_folder(array: zarr.Array) -> str | None:
    """Return the folder of an array's store; None for URLs and stores in memory."""
    store = array.store
    if isinstance(store, ReadingStore):
        return None if store.is_remote else store.location
    return str(store.root) if type(store) is LocalStore else None


def has_plain_chunks(array: zarr.Array) -> bool:
    """Whether an array can be read without zarr: local files, native byte order, at most one codec.

    Shards need a codec, and a checksum of their index, which tells that it is damaged.
    """
    if local_folder(array) is None or not array.ndim or array.filters:
        return False
    if array.shards is not None and (not array.compressors or not has_checked_index(array)):
        return False
    if array.dtype.kind not in "buif" or not array.dtype.isnative or len(array.compressors) > 1:
        return False
    if array.metadata.zarr_format == 2:
        return bool(array.metadata.order == "C")
    codecs = cast(Any, array.compressors)
    serializer: dict[str, Any] = cast(Any, array.serializer).to_dict()
    orders = (None, "little") if np.little_endian else (None, "big")
    plain = serializer["name"] == "bytes" and serializer.get("configuration", {}).get("endian") in orders
    return plain and all(codec.to_dict()["name"] in _DECODERS for codec in codecs)


def _decoder(array: zarr.Array) -> Any:
    if not array.compressors:
        return None
    codec: Any = array.compressors[0]
    return codec if array.metadata.zarr_format == 2 else _DECODERS[codec.to_dict()["name"]]()


logger = logging.getLogger(__name__)


class FileVersion:
    """Notices that a file was rewritten after it was opened, by its time, size and JSON content.

    Args:
        path: the file; for a zarr array its metadata file, which is written first.
    """

    def __init__(self, path: str):
        self.path = path
        self._status, self._content = _status(path), _content(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileVersion, (self.path,)

    def check(self) -> None:
        """Raise UserError if the file was rewritten after it was opened.

        For a zarr array that has grown it only logs.
        """
        status = _status(self.path)
        if status == self._status:
            return
        content = _content(self.path)
        if not _is_appended(self._content, content):
            raise UserError(
                f"{self.path} was written again, or removed, after it was opened: numbers of before and after would be "
                "mixed; open it again when it is complete"
            )
        self._status, self._content = status, content
        logger.warning("%s was appended to after it was opened; what is there since is not read", self.path)


def _status(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _content(path: str) -> Any:
    if not path.endswith((".zarray", "zarr.json")):
        return None
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def _is_appended(before: Any, after: Any) -> bool:
    """Whether an array has only grown between two versions of its metadata."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return False
    old, new = before.get("shape"), after.get("shape")
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new) or old == new:
        return False
    same = {**before, "shape": None} == {**after, "shape": None}
    return same and all(last >= first for first, last in zip(old, new, strict=True))


def version_of(array: zarr.Array) -> FileVersion | None:
    """Remember the version of a local array's metadata file, to notice changes; None at a URL."""
    folder = local_folder(array)
    if folder is None:
        return None
    name = ".zarray" if array.metadata.zarr_format == 2 else "zarr.json"
    return FileVersion(os.path.join(folder, array.path, name))
