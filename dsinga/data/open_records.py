"""Opening records from whatever a person has: a path, a URL, a source of records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dsinga.data.auto_import import open_store
from dsinga.data.record_source import RecordSource
from dsinga.errors import UserError


def open_records(
    source: Any, roots: Sequence[str] = (), data: str | None = None, label: str | None = None
) -> RecordSource:
    """Return the source of records for ``source``: a path or URL of a store, or a source of records as it is.

    A relative path is looked up in the working directory, then under ``roots``. ``data`` and ``label`` name the arrays
    of a zarr group, as :func:`dsinga.data.open_store` takes them. Raises UserError if ``source`` is of another type, or
    cannot be read.
    """
    if isinstance(source, RecordSource):
        return source
    if isinstance(source, (str, os.PathLike)):
        return open_store(source, roots=roots, data=data, label=label)
    raise UserError(f"records cannot be read from a {type(source).__name__}; give the path or URL of a store")
