"""The importer of text files with a line of numbers a record: CSV files and SINGA's text files (kCSVInput)."""

from __future__ import annotations

import os
from collections.abc import Generator

import numpy as np

from dsinga.addons.importers.batches import Batch, StoreContents, opened
from dsinga.base.errors import UserError
from dsinga.base.registry import register

BLOCK_BYTES = 1 << 20


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
        number, columns = 1, 0
        while lines := file.readlines(BLOCK_BYTES):
            if any(line.strip() for line in lines):
                values = _parse(path, number, lines, separator, columns)
                columns = values.shape[1]
                if label_columns is None:
                    yield _split(path, number, lines, values, has_label)._replace(done=tell())
                else:
                    yield _split_floats(path, number, values, label_columns)._replace(done=tell())
            number += len(lines)


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
                hint = header_hint(cells) if at == 1 else ""
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
            f"{path}:{at}: label {labels[row]:g} is not an integer; import float labels with --label-columns 1, or "
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
