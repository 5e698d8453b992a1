"""The importer of LMDB databases written by Caffe or SINGA; it reads the file page by page, without LMDB's library.

LMDB itself maps the file, so a damaged file may end the process by SIGBUS. The format is LMDB 0.9 on 64-bit
little-endian machines (mdb.c of OpenLDAP).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from dsinga.addons.importers.batches import Record, StoreContents, naming_errors, stack
from dsinga.addons.importers.kvfile import decode_datum, decode_record
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.base.regular_files import open_regular


@register("importer", "lmdb")
def lmdb(source: str, encoded: bool = False) -> dict[str, StoreContents]:
    """Read a database of CaffeDatum or RecordProto messages, in the order of its keys.

    Args:
        source: the database's folder, or its file.
        encoded: whether the pixels of each record are an image file, such as JPEG.
    """
    with _opened(source) as pages:
        total = pages.entries
    return {"": StoreContents(stack(_read(source, encoded)), total)}


def _read(path: str, encoded: bool) -> Iterator[Record]:
    with _opened(path) as pages:
        for key, value in _pairs(path, pages):
            where = f"{path}: record {key.decode(errors='replace')!r}"
            data, label = decode_datum(value, where, encoded) or decode_record(value, where, encoded)
            yield Record(data, label, where)


def _pairs(path: str, pages: LmdbPages) -> Iterator[tuple[bytes, bytes]]:
    try:
        yield from pages.pairs()
    except LmdbError as error:
        raise UserError(f"{path} is damaged: {error}; copy the database again") from None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[LmdbPages]:
    file_path = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
    with naming_errors(file_path), open_regular(file_path) as file:
        try:
            pages = LmdbPages(file)
        except LmdbError as error:
            raise UserError(f"{path} cannot be opened as an LMDB database: {error}") from None
        yield pages


# A page's number, two bytes that are not needed, its flags, and the end of the offsets of its nodes behind this header.
_PAGE = struct.Struct("<QHHHH")
# A meta page's magic number and version, skipped fields, the page size; then of the main database the flags, the depth,
# skipped fields, the number of entries, the root page; then the last page in use and the number of the transaction.
_META = struct.Struct("<II16xI44xIHH24xQQQQ")
# The low and the high half of a value's length, or of a child's page number, the node's flags, and the key's length.
_NODE = struct.Struct("<HHHH")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8  # flags of pages
_BIG, _SUBTREE = 1, 6  # flags of nodes: a value in overflow pages; a named database or several values of a key
_NO_PAGE = (1 << 64) - 1
_DEEPEST = 32  # levels of a tree, as LMDB limits them


class LmdbError(ValueError):
    """Raised if a file is no LMDB database, or its pages are damaged."""


class _Meta(NamedTuple):
    magic: int
    version: int
    page_bytes: int
    unused: int
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    transaction: int


class LmdbPages:
    """Reads the main database of an open LMDB file, with ``entries`` pairs; raises LmdbError for other files."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        first = self._read_meta(0)
        second = self._read_meta(first.page_bytes)
        self._meta = max(first, second, key=lambda meta: meta.transaction)
        self._page_bytes = first.page_bytes
        self.entries = self._meta.entries

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values in the order of keys."""
        if self._meta.root == _NO_PAGE:
            return
        count = 0
        for pair in self._walk(self._meta.root, self._meta.depth, set()):
            count += 1
            if count > self.entries:
                break
            yield pair
        if count != self.entries:
            raise LmdbError(f"it has {'more' if count > self.entries else count} pairs, not {self.entries}")

    def _read_meta(self, start: int) -> _Meta:
        content = self._read(start, _PAGE.size + _META.size, "a meta page")
        flags, meta = _PAGE.unpack_from(content)[2], _Meta(*_META.unpack_from(content, _PAGE.size))
        if not flags & _META_PAGE or meta.magic != _MAGIC:
            raise LmdbError("it has no meta pages of LMDB")
        if meta.version != _VERSION:
            raise LmdbError(f"it has version {meta.version} of LMDB's format, not {_VERSION}")
        if meta.page_bytes not in (1 << bits for bits in range(8, 17)) or not 0 <= meta.depth <= _DEEPEST:
            raise LmdbError(f"it has pages of {meta.page_bytes} bytes in {meta.depth} levels")
        return meta

    def _walk(self, number: int, depth: int, visited: set[int]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the key-value pairs below page ``number``, which has ``depth`` levels; a branch page may occur once."""
        page, offsets = self._read_page(number, _LEAF if depth == 1 else _BRANCH)
        if depth > 1:
            if number in visited:
                raise LmdbError(f"page {number} is in the tree twice")
            visited.add(number)
        for offset in offsets:
            if offset + _NODE.size > len(page):
                raise LmdbError(f"page {number} has a node that ends after it")
            low, high, flags, key_bytes = _NODE.unpack_from(page, offset)
            if depth > 1:
                yield from self._walk(low | high << 16 | flags << 32, depth - 1, visited)
                continue
            start = offset + _NODE.size + key_bytes
            key, length = page[offset + _NODE.size : start], low | high << 16
            if flags & _SUBTREE:
                raise LmdbError(f"the key {key!r:.40} has a database or several values, not one value")
            if start + (8 if flags & _BIG else length) > len(page):
                raise LmdbError(f"page {number} has a value that ends after it")
            if flags & _BIG:
                yield key, self._read_big(int.from_bytes(page[start : start + 8], "little"), length)
            else:
                yield key, page[start : start + length]

    def _read_page(self, number: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
        page = self._read(number * self._page_bytes, self._page_bytes, f"page {number}")
        page_number, _, flags, end, _ = _PAGE.unpack_from(page)
        if page_number != number or not flags & kind or not _PAGE.size <= end <= len(page):
            raise LmdbError(f"page {number} is not the {'leaf' if kind == _LEAF else 'branch'} page of a tree")
        return page, struct.unpack_from(f"<{(end - _PAGE.size) // 2}H", page, _PAGE.size)

    def _read_big(self, number: int, length: int) -> bytes:
        content = self._read(number * self._page_bytes, _PAGE.size + length, f"page {number}")
        page_number, _, flags, _, _ = _PAGE.unpack_from(content)
        if page_number != number or not flags & _OVERFLOW:
            raise LmdbError(f"page {number} has no large value")
        return content[_PAGE.size :]

    def _read(self, start: int, length: int, what: str) -> bytes:
        content = b""
        if start + length <= self._size:
            self._file.seek(start)
            content = self._file.read(length)
        if len(content) < length:
            raise LmdbError(f"{what} ends at byte {start + length:,}, and the file at byte {self._size:,}")
        return content
