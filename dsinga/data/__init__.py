"""Records: stores in zarr, importers, the sampler, reading ahead. Arrays in and out, no job and no cluster."""

from dsinga.data.describe import describe
from dsinga.data.importers import KINDS, import_records
from dsinga.data.importers.records import Batch, Part, Record, stack
from dsinga.data.legacy import open_store
from dsinga.data.mean import read_mean
from dsinga.data.paths import resolve
from dsinga.data.prefetch import Prefetch
from dsinga.data.sampler import Sampler
from dsinga.data.store import RecordStore
from dsinga.data.windows import Windows, open_text
from dsinga.data.writer import write_store

__all__ = [
    "KINDS",
    "Batch",
    "Part",
    "Prefetch",
    "Record",
    "RecordStore",
    "Sampler",
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
