"""The importer of LMDB databases written by Caffe or SINGA."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dsinga.data.importers.protos import decode_datum, decode_record
from dsinga.data.importers.records import Record, StoreContents, stack
from dsinga.errors import UserError


def lmdb(source: str, encoded: bool = False) -> dict[str, StoreContents]:
    """Read a database whose values are CaffeDatum or RecordProto messages, in the order of its keys.

    Args:
        source: the database's folder, or its file.
        encoded: whether the pixels of each record are an image file, such as JPEG.
    """
    with _environment(source) as environment:
        total = environment.stat()["entries"]
    return {"": StoreContents(stack(_read(source, encoded)), total)}


def _read(path: str, encoded: bool) -> Iterator[Record]:
    with _environment(path) as environment, environment.begin() as transaction:
        for key, value in _pairs(path, transaction):
            where = f"{path}: record {key.decode(errors='replace')!r}"
            data, label = decode_datum(value, where, encoded) or decode_record(value, where, encoded)
            yield Record(data, label, where)


def _pairs(path: str, transaction: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a database; raise UserError where its pages are damaged."""
    import lmdb as package

    try:
        yield from transaction.cursor()
    except package.Error as error:
        raise UserError(f"{path} is damaged: {error}; copy the database again") from None


def _environment(path: str) -> Any:
    try:
        import lmdb as package
    except ImportError:
        raise UserError("reading LMDB databases needs the package lmdb: pip install lmdb") from None
    try:
        # Without a lock file, since the database may be on a read-only file system, and no process writes to it.
        return package.open(path, readonly=True, lock=False, subdir=os.path.isdir(path), readahead=True)
    except package.Error as error:
        raise UserError(f"{path} cannot be opened as an LMDB database: {error}") from None
