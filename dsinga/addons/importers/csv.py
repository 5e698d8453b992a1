"""The importer of text files with a line of numbers a record: CSV files and SINGA's text files (kCSVInput)."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator

import numpy as np

from dsinga.addons.importers.batches import Batch, StoreContents, opened
from dsinga.base.errors import UserError
from dsinga.base.registry import register

BLOCK_BYTES = 1 << 20
MOST_CLASSES = 10_000  # that are counted

logger = logging.getLogger(__name__)


@register("importer", "csv", "textfile")
def textfile(
    source: str, separator: str = ",", has_label: bool = True, label_columns: int | None = None
) -> dict[str, StoreContents]:
    """Read a file of numbers, plain, .gz or .xz: records float32 (columns,); empty lines are skipped.

    Args:
        source: the file.
        separator: character between the numbers of a line.
        has_label: whether the first number of each line is its label, an integer.
        label_columns: K, if the first K numbers of each line are float labels, (N,) for 1 and else (N, K).
    """
    if label_columns is not None and (label_columns < 1 or not has_label):
        raise UserError(f"label_columns is {label_columns}; give at least 1 column, or leave it out with --no-label")
    return {"": StoreContents(_read(source, separator, has_label, label_columns), os.path.getsize(source))}


def _read(path: str, separator: str, has_label: bool, label_columns: int | None) -> Generator[Batch]:
    with opened(path) as (file, tell):
        number, columns, classes = 1, 0, _Classes()
        while lines := file.readlines(BLOCK_BYTES):
            if any(line.strip() for line in lines):
                values = _parse(path, number, lines, separator, columns)
                columns = values.shape[1]
                if label_columns is None:
                    batch = _split(path, number, lines, values, has_label)._replace(done=tell())
                    classes.add(batch.labels)
                    yield batch
                else:
                    yield _split_floats(path, number, values, label_columns)._replace(done=tell())
            number += len(lines)
        classes.log()


class _Classes:
    """The labels of a file, to tell a user which column was read as the label."""

    def __init__(self) -> None:
        self._labels = np.empty(0, np.int64)
        self._is_full = False

    def add(self, labels: np.ndarray | None) -> None:
        if labels is not None:
            labels = np.union1d(self._labels, labels)
            self._is_full |= len(labels) > MOST_CLASSES
            self._labels = np.concatenate([labels[:1], labels[1:][-MOST_CLASSES + 1 :]])  # the lowest and the highest

    def log(self) -> None:
        if len(self._labels):
            count = f"more than {MOST_CLASSES}" if self._is_full else f"{len(self._labels)}"
            logger.info(
                "the first column was read as the label: %s classes from %d to %d; if another column is the label, "
                "move it to the front; if there is none, use --no-label or has_label: false",
                count, self._labels[0], self._labels[-1],
            )  # fmt: skip


def _parse(path: str, number: int, lines: list[bytes], separator: str, columns: int) -> np.ndarray:
    text = [line.decode("utf-8", "replace") for line in lines]
    try:
        values = np.loadtxt(text, delimiter=separator, dtype=np.float64, comments=None, ndmin=2)
        if values.shape[1] == (columns or values.shape[1]):
            return values
    except ValueError:
        pass
    raise _parse_error(path, number, text, separator, columns)


def _parse_error(path: str, number: int, lines: list[str], separator: str, columns: int) -> UserError:
    for at, line in enumerate(lines, number):
        cells = line.strip().split(separator)
        if cells == [""]:
            continue
        columns = columns or len(cells)
        if len(cells) != columns:
            return UserError(f"{path}:{at}: {len(cells)} values, but the lines before have {columns}")
        for column, cell in enumerate(cells, 1):
            try:
                float(cell)
            except ValueError:
                hint = (header_hint(cells) if at == 1 else "") or _text_hint(path, cells, column)
                return UserError(
                    f"{path}:{at}: value {column}, {cell!r}, is not a number (separator {separator!r}){hint}"
                )
    return UserError(f"{path}: lines {number} to {number + len(lines) - 1} cannot be read as numbers")


def header_hint(cells: list[str]) -> str:
    """Return a hint if the cells of a first line look like column names, else ""."""
    if not all(cell.strip(" \"'")[:1].isalpha() for cell in cells):
        return ""
    return (
        "; the line looks like a header with the names of columns: leave it out, or read the file by pandas.read_csv "
        "and give the data frame"
    )


def _text_hint(path: str, cells: list[str], column: int) -> str:
    """Return a hint if the cell in ``column``, counted from 1, is a text such as the name of a class, else ""."""
    if not cells[column - 1].strip(" \"'")[:1].isalpha():
        return ""
    label = column - 1 if column in (1, len(cells)) else "COLUMN"
    return (
        "; columns must be numbers, the first one the label; for texts write "
        f"dsinga.table(pandas.read_csv({os.path.basename(path)!r}, header=None), label={label})"
    )


def _split(path: str, number: int, lines: list[bytes], values: np.ndarray, has_label: bool) -> Batch:
    if not has_label:
        return Batch(values.astype(np.float32), None)
    if values.shape[1] < 2:
        raise UserError(
            f"{path}:{number}: only one value; a line needs a label and data; without labels use --no-label"
        )
    labels = values[:, 0]
    fractions = np.flatnonzero(labels != np.rint(labels))
    if len(fractions):
        row = fractions[0]
        at = [line for line, text in enumerate(lines, number) if text.strip()][row]
        raise UserError(
            f"{path}:{at}: label {labels[row]:g} is not an integer; the label is read from the first column: if "
            "another column is the label, move it to the front; import float labels with --label-columns 1, or "
            "without labels use --no-label or has_label: false"
        )
    return Batch(values[:, 1:].astype(np.float32), labels.astype(np.int64))


def _split_floats(path: str, number: int, values: np.ndarray, columns: int) -> Batch:
    if values.shape[1] <= columns:
        raise UserError(
            f"{path}:{number}: {values.shape[1]} values, but {columns} columns of labels and data are needed"
        )
    labels = values[:, 0] if columns == 1 else values[:, :columns]
    return Batch(values[:, columns:].astype(np.float32), labels)
