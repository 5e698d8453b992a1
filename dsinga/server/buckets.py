"""Which slices travel together: gradients go to a server in buckets, top params first, and values come back alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.server.slicing import Slice

# Gradients for a server travel in about so many buckets, so that most are under way while the lower layers still
# compute, but in none smaller than so many bytes, for a message costs as much as these.
BUCKETS = 8
LEAST_BUCKET_BYTES = 1 << 17


class Bucket(NamedTuple):
    """Slices of one server that travel in one message."""

    server: int
    slices: list[Slice]


def fill_buckets(slices: Mapping[str, Sequence[Slice]], servers: int, limit: int | None = None) -> list[Bucket]:
    """Return the buckets: top params first, as the backward pass pushes them.

    ``slices`` are those of each param, in the order in which the forward pass needs the params. A bucket is closed as
    soon as it holds ``limit`` bytes; by default ``BUCKETS`` a server, none below ``LEAST_BUCKET_BYTES``.
    """
    if limit is None:
        limit = 4 * sum(piece.size for pieces in slices.values() for piece in pieces) // (BUCKETS * servers)
        limit = max(LEAST_BUCKET_BYTES, limit)
    buckets: list[Bucket] = []
    open_bucket: dict[int, tuple[list[Slice], int]] = {}
    for name in reversed(list(slices)):
        for piece in slices[name]:
            held, size = open_bucket.get(piece.server, ([], limit))
            if size >= limit:
                held, size = [], 0
                buckets.append(Bucket(piece.server, held))
            held.append(piece)
            open_bucket[piece.server] = (held, size + 4 * piece.size)
    return buckets
