"""Reads job files in protobuf text format, as SINGA's, from a path or a string."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from dsinga.base.components import note_distributions
from dsinga.base.durable_files import finish_save
from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_regular
from dsinga.job.builder import read
from dsinga.job.message import JobError, Where
from dsinga.job.overrides import override
from dsinga.job.schema import Job
from dsinga.job.textformat import UnclosedError, parse

LARGEST_BYTES = 4 << 20  # of a job file; that is enough for 20,000 layers


def load(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Job:
    """Return the job of a file, with ``overrides`` ("path=value") applied.

    Raises JobError, with file, line and layer, if the file cannot be read, has a field or value that is not in the
    schema, or lacks a required field. :func:`dsinga.job.check` checks the job as a whole.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise JobError(f"a job is read from the path of a file, not from {type(path).__name__}")
    file = os.fspath(path)
    try:
        finish_save(Path(file).parent)
        content = read_regular(path, LARGEST_BYTES)
        return loads(content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n"), file, overrides)
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise JobError(f"{file}: not a job file: byte {error.start} is not UTF-8 text") from error
        if isinstance(error, UserError):
            raise
        raise JobError(f"cannot read the job file {file!r}: {getattr(error, 'strerror', None) or error}") from error


def loads(text: str, file: str = "<string>", overrides: Iterable[str] = ()) -> Job:
    """Return the job in ``text``; errors name ``file`` as its path. Raises JobError as :func:`load` does."""
    note_distributions(text)
    try:
        block = parse(text, file)
    except UnclosedError as error:
        # The first field that does not belong into the open block shows where a '}' is missing.
        read(parse(f"{text}\n{error.closing}", file), Job, Where(file, 1))
        raise
    builder = read(block, Job, Where(file, 1))
    for path_and_value in overrides:
        override(builder, path_and_value)
    return cast(Job, builder.build())
