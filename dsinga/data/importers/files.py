"""Opening the files of data sets, compressed or not, with errors that name the file."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from dsinga.errors import UserError
from dsinga.regular_files import open_regular

SUFFIXES = ("", ".gz", ".xz")


class OpenFile(NamedTuple):
    """A file to read bytes from, and ``tell``, which returns the number of bytes read from disk."""

    file: IO[bytes]
    tell: Callable[[], int]


@contextlib.contextmanager
def opened(path: str) -> Iterator[OpenFile]:
    """Open ``path`` for reading bytes, decompressed if its suffix is .gz or .xz.

    Errors of reading within the context are raised as UserError, naming the file.
    """
    with naming_errors(path), open_regular(path) as raw:
        suffix = os.path.splitext(path)[1]
        if suffix == ".gz":
            with gzip.open(raw) as file:
                yield OpenFile(file, raw.tell)  # type: ignore[arg-type]
        elif suffix == ".xz":
            with lzma.open(raw) as file:
                yield OpenFile(file, raw.tell)
        else:
            yield OpenFile(raw, raw.tell)


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a text file, whose bytes that are not UTF-8 become surrogates.

    Raises UserError, naming the file, where it cannot be read.
    """
    with naming_errors(path), io.TextIOWrapper(open_regular(path), "utf-8", "surrogateescape") as file:
        yield from file


@contextlib.contextmanager
def naming_errors(path: str) -> Iterator[None]:
    """Turn errors of reading or decompressing within the context into a UserError that names ``path``."""
    try:
        yield
    except EOFError:
        raise UserError(f"{path} is truncated: its compressed data end early") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path} cannot be decompressed: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def find(folder: str, *names: str) -> str:
    """Return the path of the first of ``names`` that exists in ``folder``, plain or with .gz or .xz.

    Raises:
        UserError: none exists.
    """
    for name in names:
        for suffix in SUFFIXES:
            path = os.path.join(folder, name + suffix)
            if os.path.isfile(path):
                return path
    raise UserError(f"{folder} has no file {names[0]} (or {names[0]}.gz, {names[0]}.xz)")
