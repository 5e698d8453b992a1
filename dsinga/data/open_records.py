"""Opening whatever has records: a path or URL, or a source of records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dsinga.data.auto_import import open_store
from dsinga.errors import UserError


def open_records(source: Any, roots: Sequence[str] = ()) -> Any:
    """Return the source of records for ``source``: a path or URL of a store, or a source of records as it is."""
    if isinstance(source, (str, os.PathLike)):
        return open_store(source, roots=roots)
    if hasattr(source, "read") and hasattr(source, "block"):
        return source
    raise UserError(f"records cannot be read from a {type(source).__name__}")
