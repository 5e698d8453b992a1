"""Writing batches of arrays to a file of comma-separated values; the file is either complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np

from dsinga.errors import UserError


def write_csv(path: str | os.PathLike[str], batches: Iterable[np.ndarray], separator: str = ",") -> None:
    """Write batches (rows, ...) to a text file, one line for each row, its values joined by ``separator``.

    An existing file is replaced when the new one is complete. Raises UserError where the file cannot be written.
    """
    path = os.fspath(path)
    draft = f"{path}.partial-{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(draft, "w", encoding="utf-8") as file:
            file.writelines(_lines(batches, separator))
        os.replace(draft, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error
    finally:
        if os.path.exists(draft):
            os.remove(draft)


def _lines(batches: Iterable[np.ndarray], separator: str) -> Iterator[str]:
    for batch in batches:
        for row in batch.reshape(len(batch), -1).tolist():
            yield separator.join(map(repr, row)) + "\n"
