"""Finds the parquet files in a folder, and reads their footers: columns and row groups."""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from dsinga.addons.tables.frames import index_columns
from dsinga.addons.tables.values import WORDS, kind_of, zone_of, zone_words
from dsinga.base.arguments import repeated
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.base.registry import listed
from dsinga.base.regular_files import open_regular
from dsinga.data.array_kinds import check_columns, distinct_names
from dsinga.data.locations import file_system, is_url
from dsinga.data.stores.checked_files import retry

SUFFIXES = (".parquet", ".parq", ".pq")
MISSING = "__HIVE_DEFAULT_PARTITION__"  # the value in the name of a folder of rows that have none
TAIL_BYTES, MOST_TAIL_BYTES = 64 << 10, 1 << 30
READERS = 8  # threads that read the ends of files

Values = dict[str, Any]  # of the names of folders
Kinds = dict[str, str | None]  # of the values of columns, by name


class Stamp(NamedTuple):
    """Identifies the content of a file by size, footer and time.

    Attributes:
        size: bytes of the file.
        footer: CRC-32 of its end, which says where each column begins.
        changed: when a local file was changed last, in nanoseconds; 0 for a URL.
    """

    size: int
    footer: int
    changed: int


class ParquetFile(NamedTuple):
    """A parquet file as it was when its folder was opened.

    Attributes:
        stamp: identifies its content.
        lengths: the rows of each row group.
        run: a number shared by neighbouring files with equal types, or no values; they may be joined.
        values: values from folder names, such as 2024 from ``year=2024``, by column name.
    """

    path: str
    stamp: Stamp
    lengths: tuple[int, ...]
    run: int
    values: Values


def open_files(location: str) -> tuple[list[ParquetFile], list[str], list[str]]:
    """Find the parquet files at a path, URL or pattern; return them, their column names, and index columns.

    Other files must have the columns and kinds of values of the first one; an index is optional.
    """
    found = _with_numbers(find_files(location))
    with ThreadPoolExecutor(READERS) as threads:
        ends = list(threads.map(_opened_end, [path for path, _ in found]))
    files: list[ParquetFile] = []
    kinds: Kinds = {}
    types, run = dict[str, str](), 0
    index: dict[str, None] = {}
    for (path, values), (stamp, opened, schema) in zip(found, ends, strict=True):
        own = _kinds(path, schema, values)
        index |= dict.fromkeys(name for name in schema.names if name not in own)
        if files:
            _check_alike(files[0].path, kinds, path, own)
        kinds |= {name: kind for name, kind in own.items() if not kinds.get(name)}
        groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
        own_types = {name: str(each) for name, each in zip(schema.names, schema.types, strict=True)}
        if any("null" != text != types.get(name, text) for name, text in own_types.items()):
            types, run = {}, run + 1
        types |= {name: text for name, text in own_types.items() if text != "null"}
        files.append(ParquetFile(path, stamp, tuple(group.num_rows for group in groups), run, values))
    if not kinds:
        raise UserError(f"{redact(location)} has no columns")
    return files, list(kinds), list(index)


def find_files(location: str) -> list[tuple[str, Values]]:
    """List the path or URL of each parquet file, and its folders' values as texts.

    Subfolders count, except names of files or folders that begin with "_" or ".".
    """
    filesystem, path = file_system(location)
    base = path.partition("*")[0].rpartition("/")[0] if "*" in path else path
    try:
        if "*" in path:
            found = retry(lambda: filesystem.glob(path), location)
        else:
            found = [path] if retry(lambda: filesystem.isfile(path), location) else filesystem.find(path)
    except Exception as error:  # refusals of a server; each package has classes of its own
        raise unreadable(location, error) from redacted_cause(error, location)
    files = []
    for name in sorted(found):
        parts = name.removeprefix(base).strip("/").split("/")
        if name == path or (name.endswith(SUFFIXES) and not any(part.startswith(("_", ".")) for part in parts)):
            folders = [part for part in parts[:-1] if "=" in part]
            pairs = [part.split("=", 1) for part in folders]
            if repeated(key for key, _ in pairs) is not None:
                raise UserError(
                    f"{redact(name)} lies in the folders {listed(folders)}, which name a column twice; rename one"
                )
            values = {key: None if value == MISSING else unquote(value) for key, value in pairs}
            files.append((filesystem.unstrip_protocol(name) if is_url(location) else name, values))
    if not files:
        raise UserError(
            f"{redact(location)} has no files of parquet, whose names end in {', '.join(SUFFIXES)}; give their folder"
        )
    return files


def read_end(path: str) -> tuple[Stamp, bytes]:
    """Read the stamp of a file, and its end with the footer."""
    try:
        with closing(open_file(path)) as file:
            changed = changed_ns(path)
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            tail = file.read(TAIL_BYTES)
            needed = int.from_bytes(tail[-8:-4], "little") + 8
            if tail[-4:] != b"PAR1" or needed > min(size, MOST_TAIL_BYTES):
                remedy = "write it again, take it away, or give the data frame that pandas reads of it"
                if path.partition("?")[0].lower().endswith((".csv", ".csv.gz", ".tsv", ".txt")):
                    remedy = "read a CSV by pandas.read_csv, and give the data frame"
                raise UserError(f"{redact(path)} is no complete file of parquet; {remedy}")
            if needed > len(tail):
                file.seek(size - needed)
                tail = file.read(needed)
        return Stamp(size, zlib.crc32(tail[-needed:]), changed), tail
    except OSError as error:
        raise unreadable(path, error) from redacted_cause(error, path)


def open_end(path: str, tail: bytes) -> tuple[Any, Any]:
    """Open the end of a file with pyarrow; also return its schema."""
    import pyarrow
    import pyarrow.parquet

    try:
        opened = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(tail))
        return opened, opened.schema_arrow
    except (OSError, ValueError, TypeError, pyarrow.ArrowException) as error:
        raise unreadable(path, error) from redacted_cause(error, path)


def _opened_end(path: str) -> tuple[Stamp, Any, Any]:
    stamp, tail = read_end(path)
    return stamp, *open_end(path, tail)


def changed_ns(path: str) -> int:
    """Return when a local file was changed last, in nanoseconds; 0 for a URL."""
    return 0 if is_url(path) else os.stat(path).st_mtime_ns


def open_file(path: str) -> BinaryIO:
    """Open a local regular file, or a URL, to read bytes."""
    if not is_url(path):
        return open_regular(path)
    filesystem, name = file_system(path)
    file: BinaryIO = retry(lambda: filesystem.open(name, "rb"), path)
    return file


def unreadable(path: str, error: Exception) -> UserError:
    """Create the error for a path or URL that cannot be read."""
    fault = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return UserError(redact(f"{path} cannot be read: {fault}; see whether every worker can reach it", path))


def _with_numbers(files: list[tuple[str, Values]]) -> list[tuple[str, Values]]:
    """Convert folder values to numbers, if all values of a name are whole numbers."""
    texts = {pair for _, values in files for pair in values.items() if pair[1] is not None}
    others = {name for name, text in texts if not (text.removeprefix("-").isdecimal() and len(text) < 19)}
    return [
        (path, {name: text if text is None or name in others else int(text) for name, text in values.items()})
        for path, values in files
    ]


def _kinds(path: str, schema: Any, values: Values) -> Kinds:
    names = distinct_names(schema.names, redact(path))
    for key, value in values.items():
        if key in names:
            folder = f"{key}={MISSING if value is None else value}"
            raise UserError(
                f"{redact(path)} has the column {key!r}, which the name of its folder {folder!r} gives, too; rename "
                "the folder, or write the files without the column"
            )
    index = index_columns(schema, redact(path))
    kinds = {name: _kind(type_) for name, type_ in zip(names, schema.types, strict=True) if name not in index}
    of_values = {type(None): "", int: "number", str: "category"}
    return kinds | {name: of_values[type(value)] for name, value in values.items()}


def _kind(arrow_type: Any) -> str | None:
    """Return the kind of values; for dates with their time zone, which all files must share."""
    kind, zone = kind_of(arrow_type), zone_of(arrow_type)
    return f"date {zone}" if kind == "date" and zone is not None else kind


def _words(kind: str | None) -> str:
    word, _, zone = str(kind).partition(" ")
    return zone_words(zone) if word == "date" else WORDS.get(word, "values of another type")


def _check_alike(first: str, known: Kinds, path: str, own: Kinds) -> None:
    first, path = redact(first), redact(path)
    for here, names, there, others in ((path, own, first, known), (first, known, path, own)):
        check_columns(others, [*names], here, f", which {there} has")
    for name, kind in own.items():
        if kind != "" and known[name] not in ("", kind):
            has, had = _words(kind), _words(known[name])
            raise UserError(f"{path} has {has} in column {name!r}, but {first} has {had}; write all with one type")
