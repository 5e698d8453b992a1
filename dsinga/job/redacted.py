"""A copy of a job without secrets, to be shown or kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga.job.message import Message, set_fields
from dsinga.job.schema import Job
from dsinga.redaction import redact


def redact_job(job: Job) -> Job:
    """Return ``job`` with secrets in its texts masked: those of the URLs of stores, and the like.

    Training with such a job needs its URLs again. ``dsinga.job.to_text`` writes what it is given.
    """
    return _redacted(job)


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Message):
        return value.replace(**{name: _redacted(inner) for name, inner in set_fields(value).items()})
    if isinstance(value, Mapping):
        return {name: _redacted(inner) for name, inner in value.items()}
    return [_redacted(item) for item in value] if isinstance(value, list) else value
