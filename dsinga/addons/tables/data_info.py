"""Describes the columns of parquet files for ``dsinga data info``."""

from __future__ import annotations

import os
from typing import Any

from dsinga.addons.tables.parquet_files import SUFFIXES, find_files
from dsinga.addons.tables.records import table
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data.filesystem import has_zarr_metadata
from dsinga.data.locations import absolute
from dsinga.job.writer import lines


@register("data", "table")
def summary_of(source: str | os.PathLike[str], label: str | None) -> dict[str, Any] | None:
    """Summarise parquet for ``dsinga data info``, reading all of it once; None for other paths."""
    location = absolute(source)
    if not location.endswith(SUFFIXES):
        try:
            if has_zarr_metadata(location) or not find_files(location)[0][0].endswith(SUFFIXES):
                return None
        except UserError:  # there are no such files, or none at all
            return None
    records = table(source, label=label)
    return {**records.facts(), "message": "\n".join(lines([("table", records.definition)]))}
