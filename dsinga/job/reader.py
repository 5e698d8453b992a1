"""Job files in protobuf text format, as SINGA's: from a path or a text to a Job."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from dsinga.job.draft import read
from dsinga.job.message import JobError, Where
from dsinga.job.overrides import override
from dsinga.job.schema import Job
from dsinga.job.textformat import UnclosedError, parse


def load(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Job:
    """Return the job of a file, with ``overrides`` ("path=value") applied.

    Raises JobError if the file cannot be read, for whatever is not in the schema, and for missing required fields, in
    one message with file, line and layer. What a job means as a whole is :func:`dsinga.job.check`'s concern.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise JobError(f"cannot read the job file {os.fspath(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JobError(f"{os.fspath(path)}: not a job file: byte {error.start} is not UTF-8 text") from error
    return loads(text, os.fspath(path), overrides)


def loads(text: str, file: str = "<string>", overrides: Iterable[str] = ()) -> Job:
    """Return the job that ``text`` holds; ``file`` is the path to name in errors. Raises JobError as :func:`load`."""
    try:
        block = parse(text, file)
    except UnclosedError as error:
        # Where the '}' is missing shows at the first field that does not belong into the block still open.
        read(parse(f"{text}\n{error.closing}", file), Job, Where(file, 1))
        raise
    draft = read(block, Job, Where(file, 1))
    for one in overrides:
        override(draft, one)
    return cast(Job, draft.build())
