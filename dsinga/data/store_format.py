"""How records lie in a store.

A store is a zarr v3 group. ``data`` (N, *shape), uint8, int32 or float32, is cut along axis 0 only, in chunks of about
one MiB. ``labels`` int32, absent where there are none, is (N,), or (N, T) where records are sequences, with a label for
each step and -1 after the end. It has chunks of its own, longer ones, since a file of a kilobyte costs as much to open
as one of a megabyte. The group's attributes are

- ``dsinga``: the version of this layout, 1;
- ``complete``: true, written after everything else; anything before that is an interrupted import;
- ``digest``: hash of all records and labels, their shape and dtype, so that equal data are known to be equal;
- ``classes``: names of the labels 0, 1, ..., where they are known;
- ``vocabulary``: of data that are codes, such as words, what the codes 0, 1, ... stand for.
"""

from __future__ import annotations

VERSION = 1
LABEL_ROWS = 65536
CHUNK_BYTES = 1 << 20
MOST_CHUNK_BYTES = 8 << 20
FEWEST_ROWS = 32
DTYPES = ("uint8", "int32", "float32")


def chunk_rows(record_bytes: int) -> int:
    """Return how many records of ``record_bytes`` go into one chunk.

    About a MiB of them, since that reads in a millisecond; but 32 at least, so that large images are not one file
    each, unless those exceed 8 MiB, since a reader holds several chunks in memory.
    """
    record_bytes = max(record_bytes, 1)
    fewest = min(FEWEST_ROWS, max(MOST_CHUNK_BYTES // record_bytes, 1))
    return min(max(CHUNK_BYTES // record_bytes, fewest), LABEL_ROWS)
