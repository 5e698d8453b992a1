"""The zarr store through which records are read: it tries again where a remote one fails, and checks lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zarr
from zarr.storage import WrapperStore

from dsinga.data.retries import retry_async

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest, Store
    from zarr.core.buffer import Buffer, BufferPrototype

HEADER_BYTES = 16  # of a chunk that Blosc has compressed


class ReadingStore(WrapperStore["Store"]):
    """A read-only zarr store that reads again after transient errors of a remote store.

    Blosc trusts the length in the header of a chunk and reads beyond the end of one that was cut, which may crash the
    process. So that length is checked here, for the arrays that :func:`check_lengths` was called for.

    Args:
        store: the store that is read.
        location: its path or URL.
        is_remote: whether errors may pass.
    """

    def __init__(self, store: Store, location: str, is_remote: bool):
        super().__init__(store)
        self._location, self._is_remote = location, is_remote
        self.blosc_paths: tuple[str, ...] = ()  # begins of the keys of chunks

    def _with_store(self, store: Store) -> ReadingStore:
        return ReadingStore(store, self._location, self._is_remote)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the bytes of a key, or None if there is none; see :meth:`zarr.abc.store.Store.get`."""
        if self._is_remote:
            name = f"{self._location}/{key}"
            buffer = await retry_async(lambda: self._store.get(key, prototype, byte_range), name)
        else:
            buffer = await self._store.get(key, prototype, byte_range)
        is_chunk = byte_range is None and not key.rpartition("/")[2].startswith(("zarr.json", ".z"))
        if buffer is not None and is_chunk and key.startswith(self.blosc_paths):
            _check_length(buffer)
        return buffer

    async def getsize(self, key: str) -> int:
        """Return the bytes of the value of a key."""
        return await self._store.getsize(key)

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the bytes of all values under a prefix."""
        return await self._store.getsize_prefix(prefix)


def check_lengths(array: zarr.Array) -> None:
    """Check the lengths of the chunks of ``array`` before they are decoded, if Blosc has compressed them."""
    codecs = getattr(array.metadata, "codecs", None) or (getattr(array.metadata, "compressor", None),)
    if isinstance(array.store, ReadingStore) and "blosc" in type(codecs[-1]).__name__.lower():
        array.store.blosc_paths += (f"{array.path}/" if array.path else "",)


def _check_length(buffer: Buffer) -> None:
    length = len(buffer)
    if length < HEADER_BYTES:
        raise ValueError(f"it has {length} bytes only")
    expected = int.from_bytes(buffer[HEADER_BYTES - 4 : HEADER_BYTES].to_bytes(), "little")
    if expected > length:
        raise ValueError(f"it has {length} bytes, but its header says {expected}")
