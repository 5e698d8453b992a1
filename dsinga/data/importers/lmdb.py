"""The importer of LMDB databases written by Caffe or SINGA."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from dsinga.data.importers.files import naming_errors
from dsinga.data.importers.lmdb_pages import LmdbError, LmdbPages
from dsinga.data.importers.protos import decode_datum, decode_record
from dsinga.data.importers.records import Record, StoreContents, stack
from dsinga.errors import UserError
from dsinga.regular_files import open_regular


def lmdb(source: str, encoded: bool = False) -> dict[str, StoreContents]:
    """Read a database whose values are CaffeDatum or RecordProto messages, in the order of its keys.

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
    """Yield the keys and values of a database; raise UserError where its pages are damaged."""
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
