"""Grouping slices into buckets: a bucket's gradients go to its server, and its values come back, in one message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.server.slicing import Slice

# The number of buckets for each server: several, so that most are sent while the lower layers still compute. Buckets
# have at least MIN_BUCKET_BYTES, since sending a message costs as much as sending these bytes.
BUCKETS = 8
MIN_BUCKET_BYTES = 1 << 17


class Bucket(NamedTuple):
    """Slices of one server that are sent in one message."""

    server: int
    slices: list[Slice]


def fill_buckets(slices: Mapping[str, Sequence[Slice]], servers: int, limit: int | None = None) -> list[Bucket]:
    """Return the buckets in the order in which the backward pass fills them, top params first.

    ``slices`` are the slices of each param, with the params in the order of the forward pass. A bucket is complete as
    soon as it has ``limit`` bytes; by default there are ``BUCKETS`` for each server, of at least ``MIN_BUCKET_BYTES``.
    The pieces of a param go to its servers in turn, so that all of them receive at the same time.
    """
    if limit is None:
        limit = 4 * sum(slice_.size for param in slices.values() for slice_ in param) // (BUCKETS * servers)
        limit = max(MIN_BUCKET_BYTES, limit)
    buckets: list[Bucket] = []
    open_buckets: dict[int, tuple[list[Slice], int]] = {}
    for name in reversed(list(slices)):
        for slice_ in _in_turn(slices[name]):
            contents, size = open_buckets.get(slice_.server, ([], limit))
            if size >= limit:
                contents, size = [], 0
                buckets.append(Bucket(slice_.server, contents))
            contents.append(slice_)
            open_buckets[slice_.server] = (contents, size + 4 * slice_.size)
    return buckets


def _in_turn(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices of a param: the first one of each server, then the second one of each, and so on."""
    counts: Counter[int] = Counter()
    turns = []
    for slice_ in slices:
        turns.append(counts[slice_.server])
        counts[slice_.server] += 1
    return [slice_ for _, slice_ in sorted(zip(turns, slices, strict=True), key=lambda pair: pair[0])]
