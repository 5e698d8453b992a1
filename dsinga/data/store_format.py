"""The format of a record store: a zarr v3 group of records and their labels.

The array ``data`` (N, *shape), uint8, int32 or float32, is chunked along axis 0 only, in chunks of about one MiB. The
optional array ``labels``, int32, is (N,), or (N, T) for sequences with a label for each step, padded with -1. Its
chunks have more rows, since opening a file of a kilobyte costs as much as one of a megabyte. Attributes of the group:

- ``dsinga``: the version of this format, 1;
- ``complete``: true; it is written last, so a store without it is an interrupted import;
- ``digest``: hash of all records and labels, their shape and dtype, by which equal data are recognised;
- ``classes``: names of the labels 0, 1, ..., if known;
- ``vocabulary``: the words or characters that the codes 0, 1, ... stand for, if data are codes.
"""

from __future__ import annotations

VERSION = 1
LABEL_ROWS = 65536
CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 8 << 20
MIN_CHUNK_ROWS = 32
DTYPES = ("uint8", "int32", "float32")


def chunk_rows(record_bytes: int) -> int:
    """Return the number of records in a chunk, for records of ``record_bytes``.

    A chunk has about one MiB, which reads in a millisecond, but at least 32 records, so that large images are not one
    file each; and at most 8 MiB, since a reader keeps several chunks in memory.
    """
    record_bytes = max(record_bytes, 1)
    min_rows = min(MIN_CHUNK_ROWS, max(MAX_CHUNK_BYTES // record_bytes, 1))
    return min(max(CHUNK_BYTES // record_bytes, min_rows), LABEL_ROWS)
