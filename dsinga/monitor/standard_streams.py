"""Lets a command write even if its standard streams are closed, full, or lack characters."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO


class _Null(io.TextIOBase):
    """A stream that drops everything."""

    def write(self, text: str) -> int:
        return len(text)


class _Output(io.FileIO):
    """Standard output that remembers its first error, and drops everything afterwards."""

    fault: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return len(data) if self.fault else super().write(data)
        except OSError as error:
            self.fault = error
            raise


class _Log(io.FileIO):
    """Standard error that drops what it cannot write."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return len(data)


def error_stream() -> TextIO:
    """Return the standard error; if it is closed, a stream that drops everything."""
    return sys.stderr or _Null()  # type: ignore[return-value]


def open_standard_streams() -> None:
    """Make the standard streams of this process usable for a command.

    A closed one becomes the null device, or the next opened file would get its number. Characters that an encoding
    lacks become escapes.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _reopened(sys.stdout, _Output(1, "w", closefd=False))
    if sys.stderr is sys.__stderr__:
        sys.stderr = _reopened(sys.stderr, _Log(2, "w", closefd=False))


def _reopened(stream: Any, raw: io.FileIO) -> TextIO:
    encoding, is_unbuffered = getattr(stream, "encoding", "utf-8"), getattr(stream, "write_through", False)
    buffer: Any = raw if is_unbuffered else io.BufferedWriter(raw)
    by_line = getattr(stream, "line_buffering", True)
    return io.TextIOWrapper(buffer, encoding, "backslashreplace", line_buffering=by_line, write_through=is_unbuffered)


def output_fault() -> str | None:
    """Return why the standard output lost data, None if it did not.

    It is "" if the reader has gone.
    """
    with contextlib.suppress(OSError):  # which is kept
        sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    fault = getattr(getattr(buffer, "raw", buffer), "fault", None)
    return fault and ("" if fault.errno == errno.EPIPE else f"the output cannot be written: {fault.strerror}")
