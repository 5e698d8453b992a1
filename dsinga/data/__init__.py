"""Records: stores in zarr, importers, the sampler, reading ahead. Arrays in and out, no job and no cluster."""

from typing import TYPE_CHECKING, Any

from dsinga.data.auto_import import open_store
from dsinga.data.mean_file import read_mean
from dsinga.data.paths import resolve
from dsinga.data.prefetch import Prefetch
from dsinga.data.sampler import Sampler
from dsinga.data.store import RecordStore
from dsinga.data.store_info import describe
from dsinga.data.windows import Windows, open_text
from dsinga.data.writer import write_store

if TYPE_CHECKING:
    from dsinga.data.importers import KINDS, import_records
    from dsinga.data.importers.records import Batch, Record, StoreContents, stack

__all__ = [
    "KINDS",
    "Batch",
    "Prefetch",
    "Record",
    "RecordStore",
    "Sampler",
    "StoreContents",
    "Windows",
    "describe",
    "import_records",
    "open_store",
    "open_text",
    "read_mean",
    "resolve",
    "stack",
    "write_store",
]

_OF_IMPORTERS = ("KINDS", "import_records")
_OF_RECORDS = ("Batch", "StoreContents", "Record", "stack")


def __getattr__(name: str) -> Any:
    """Import what importers are made of when it is first asked for: whoever reads a store does without."""
    import importlib

    if name in _OF_IMPORTERS:
        return getattr(importlib.import_module("dsinga.data.importers"), name)
    if name in _OF_RECORDS:
        return getattr(importlib.import_module("dsinga.data.importers.records"), name)
    raise AttributeError(f"module 'dsinga.data' has no attribute {name!r}")
