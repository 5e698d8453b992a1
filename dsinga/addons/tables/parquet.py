"""Reads a folder of parquet as a data frame, in parts of row groups."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dsinga.addons.tables.frames import Frame
from dsinga.addons.tables.parquet_files import (
    ParquetFile,
    changed_ns,
    open_end,
    open_file,
    open_files,
    read_end,
    unreadable,
)
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.data.locations import is_url

PART_BYTES = 32 << 20  # of a part in memory, at eight bytes for each value
MOST_CUTS = 64  # of a row group
BUFFER_BYTES = 1 << 20  # of a column that is read in cuts
OPEN_GROUPS = 2  # row groups that were read in part and may be read on
OPEN_FILES = 16  # with metadata kept in a process
OF_PROCESS = ("_lock", "_begun", "_ends", "_idle")  # attributes that no pickle has
MOST_PIECES = 64  # row groups of a part that are not copied into one piece

logger = logging.getLogger(__name__)


class _Rows(NamedTuple):
    """The rows ``start`` to ``stop`` of a row group; unless ``is_cut``, whole groups."""

    file: int
    groups: range
    start: int
    stop: int
    is_cut: bool


class ParquetFrame(Frame):
    """The rows of all parquet files in a folder, of one file, or of files that fit a pattern; also at a URL.

    A part is a row group; small ones of the same types are joined, and large ones are cut. Names of folders such as
    ``year=2024`` give columns. Each process reads only the columns it needs.

    ``location`` is an absolute path, URL, or a pattern of them with "*".
    """

    def __init__(self, location: str):
        self.path, self.location = location, redact(location)
        self._files, self.names, self.index = open_files(location)
        self._parts = _cut_or_join(self._files, max(1, PART_BYTES // (8 * len(self.names))), self.location)
        self.lengths = [sum(rows.stop - rows.start for rows in part) for part in self._parts]
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        # The next row of each row group that is read in cuts, and the rows after it.
        self._begun: OrderedDict[tuple[Any, ...], tuple[int, Iterator[Any]]] = OrderedDict()
        # Of files that were read last, by number, the metadata and the columns of texts.
        self._ends: OrderedDict[int, tuple[Any, list[str]]] = OrderedDict()
        self._idle: dict[int, Any] = {}  # of these, open ones that no thread reads

    def read(self, part: int, names: Sequence[str]) -> Any:
        """Read some columns of a part as an Arrow table.

        Raises UserError if a file has changed since the frame was opened.
        """
        import pyarrow

        tables = [self._read(rows, names).select(list(names)) for rows in self._parts[part]]
        table = tables[0] if len(tables) == 1 else pyarrow.concat_tables(tables, promote_options="permissive")
        is_in_pieces = any(len(rows.groups) > MOST_PIECES for rows in self._parts[part])
        return table.combine_chunks() if is_in_pieces else table

    def _read(self, rows: _Rows, names: Sequence[str]) -> Any:
        import pyarrow

        file = self._files[rows.file]
        stored = [name for name in names if name not in file.values]
        try:
            if rows.is_cut:
                table = self._read_cut(rows, stored)
            else:
                with self._lock:
                    opened = self._idle.pop(rows.file, None)
                opened = opened or self._open(rows.file)
                table = opened.read_row_groups(rows.groups, stored, use_threads=False)
                with self._lock:
                    if rows.file in self._ends and not is_url(file.path):
                        self._idle[rows.file] = opened
            if changed_ns(file.path) != file.stamp.changed:
                raise _changed(file.path)
        except (OSError, pyarrow.ArrowException) as error:
            if os.path.exists(file.path) and changed_ns(file.path) != file.stamp.changed:
                raise _changed(file.path) from None
            raise unreadable(file.path, error) from redacted_cause(error, file.path)
        for name in set(names).intersection(file.values):
            column = pyarrow.repeat(pyarrow.scalar(file.values[name]), rows.stop - rows.start)
            table = table.append_column(name, column) if table.num_columns else pyarrow.table({name: column})
        return table

    def _read_cut(self, rows: _Rows, names: Sequence[str]) -> Any:
        """Read some rows of a row group."""
        import pyarrow

        key = (rows.file, rows.groups, *names)
        with self._lock:
            place, batches = self._begun.pop(key, (rows.stop, iter(())))
        if place > rows.start:
            opened = self._open(rows.file, BUFFER_BYTES)
            place, batches = 0, opened.iter_batches(rows.stop - rows.start, rows.groups, names, use_threads=False)
        found = []
        while place < rows.stop:
            batch = next(batches)
            if place + batch.num_rows > rows.start:
                found.append(batch.slice(max(0, rows.start - place), rows.stop - max(place, rows.start)))
            place += batch.num_rows
        with self._lock:
            if place == rows.stop:
                self._begun[key] = place, batches
            while len(self._begun) > OPEN_GROUPS:
                self._begun.popitem(last=False)
        return pyarrow.Table.from_batches(found)

    def _open(self, number: int, buffer_size: int = 0) -> Any:
        """Open a file with pyarrow, with texts as codes and page checksums checked.

        Raises UserError if the file has changed.
        """
        import pyarrow.parquet
        from pyarrow import types

        file = self._files[number]
        with self._lock:
            end = self._ends.get(number)
        if end is None or is_url(file.path):
            stamp, tail = read_end(file.path)
            if stamp != file.stamp:
                raise _changed(file.path)
            if end is None:
                opened, schema = open_end(file.path, tail)
                columns = zip(schema.names, schema.types, strict=True)
                end = opened.metadata, [name for name, its_type in columns if types.is_string(its_type)]
        with self._lock:
            self._ends[number] = end
            while len(self._ends) > OPEN_FILES:
                self._idle.pop(self._ends.popitem(last=False)[0], None)
        source, (metadata, texts) = open_file(file.path) if is_url(file.path) else file.path, end
        return pyarrow.parquet.ParquetFile(
            source, metadata=metadata, read_dictionary=texts, buffer_size=buffer_size, page_checksum_verification=True
        )


def _changed(path: str) -> UserError:
    return UserError(f"{redact(path)} has been changed since it was opened; open the table again")


def _cut_or_join(files: Sequence[ParquetFile], most_rows: int, location: str) -> list[list[_Rows]]:
    """Divide files into parts of at most ``most_rows`` rows: row groups, joined or cut."""
    _check_groups(max((length for file in files for length in file.lengths), default=0), most_rows, location)
    parts: list[list[_Rows]] = []
    room = 0  # for rows of the last part
    for number, file in enumerate(files):
        for group, length in enumerate(file.lengths):
            count = -(-length // most_rows)
            if count > 1:
                step, room = -(-length // count), 0
                starts = range(0, length, step)
                groups = range(group, group + 1)
                parts += [[_Rows(number, groups, start, min(start + step, length), True)] for start in starts]
            elif length:
                if length > room or file.run != files[parts[-1][-1].file].run:
                    parts.append([])
                    room = most_rows
                is_next = bool(parts[-1]) and parts[-1][-1].file == number
                rows = parts[-1].pop() if is_next else _Rows(number, range(group, group), 0, 0, False)
                parts[-1].append(rows._replace(groups=range(rows.groups.start, group + 1), stop=rows.stop + length))
                room -= length
    return parts


def _check_groups(largest: int, most_rows: int, location: str) -> None:
    if largest > MOST_CUTS * most_rows:
        raise UserError(
            f"{location} has row groups of up to {largest:,} rows, too many to decode for a part of them; write it "
            f"with at most {most_rows:,} rows in each, as df.to_parquet(path, row_group_size={most_rows}) does"
        )
    if largest > most_rows:
        logger.warning(
            "%s has row groups of up to %s rows, of which up to %s are read at a time; the rows before these are "
            "decoded, too: files of row groups with at most that many are read faster",
            location, f"{largest:,}", f"{most_rows:,}",
        )  # fmt: skip
