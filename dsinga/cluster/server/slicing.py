"""Cuts params into slices, assigns the slices to servers, and groups them into buckets for one message each.

SINGA's method fills boxes of about equal size in the order of the params. It overfills them by at most a tenth, and
cuts params that would not fit. PaddlePaddle's cuts every param into blocks of one size. A worker must join a param that
is cut over servers by a copy in every step. So, unlike SINGA, no param is cut if whole params, the largest first, fill
the boxes as evenly.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dsinga.job import SlicingMethod

# Bytes of a piece of a param between hosts. The network waits for the first piece to be computed and for the last one
# to be updated, so they should be small; but each piece also takes processor time, as much as copying 100 kB.
PIECE_BYTES = 1 << 21


class Slice(NamedTuple):
    """Elements ``start`` to ``stop`` of the flattened param ``param``, served by ``server``; ``id`` numbers all slices.

    ``width`` is the length of its rows if its gradient may be sparse rows, else 0.
    """

    id: int
    param: str
    start: int
    stop: int
    server: int
    width: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.param}[{self.start}:{self.stop}]"


def slice_for_servers(
    sizes: Mapping[str, int],
    servers: int,
    method: SlicingMethod = SlicingMethod.kSinga,
    preferred: Mapping[str, int] | None = None,
    widths: Mapping[str, int] | None = None,
    whole: bool = False,
    block_size: int | None = None,
    block_rows: int | None = None,
) -> list[Slice]:
    """Cut params into slices for the servers of one server group.

    ``preferred`` params are not cut, and get the server near their only user. ``widths`` are row lengths of params with
    gradients that may be sparse rows; these are cut only between rows. ``whole`` cuts no param. The default of
    ``block_size``, the elements of a kBlock block, is PaddlePaddle's formula, and the default of ``block_rows`` as many
    as fit.

    The slices are numbered from 0 in the order of ``sizes``, and within a param by ``start``. A server may get no
    slice.
    """
    assert servers > 0, servers
    assert all(size > 0 for size in sizes.values()), sizes
    preferred = preferred or {}
    assert all(param in sizes and 0 <= server < servers for param, server in preferred.items()), preferred
    others = {param: size for param, size in sizes.items() if param not in preferred}
    widths = widths or {}
    units = others if whole else widths
    if method is SlicingMethod.kBlock:
        cuts = _deal_blocks(others, servers, units, block_size, None if whole else block_rows)
    else:
        cuts = _fill_boxes(others, servers, units)
    slices: list[Slice] = []
    for param, size in sizes.items():
        start = 0
        for length, server in [(size, preferred[param])] if param in preferred else cuts[param]:
            slices.append(Slice(len(slices), param, start, start + length, server, widths.get(param, 0)))
            start += length
    return slices


def cut_into_pieces(slices: Sequence[Slice], size: int, params: Container[str]) -> list[Slice]:
    """Cut the slices of some params into pieces of about ``size`` elements, so that updates begin earlier."""
    pieces: list[Slice] = []
    for slice_ in slices:
        count = max(1, round(slice_.size / size)) if slice_.param in params else 1
        ends = [slice_.start + slice_.size * number // count for number in range(count + 1)]
        for start, stop in pairwise(ends):
            pieces.append(slice_._replace(id=len(pieces), start=start, stop=stop))
    return pieces


def slice_params(sizes: Mapping[str, int], num: int, units: Mapping[str, int] | None = None) -> dict[str, list[int]]:
    """Cut params for ``num`` boxes of about equal size, by SINGA's ``Slice``; return the lengths of their slices.

    A box has room for ``total // num + total % num`` elements, and a tenth more if needed. A param is cut only if it
    does not fit even then, and only if at least a tenth of the box is free. Unlike in SINGA, a tenth is the limit for
    all small params together. Params are cut only between ``units``; an empty box holds at least one.
    """
    capacity, slack = _box(sum(sizes.values()), num)
    free = capacity
    lengths: dict[str, list[int]] = {}
    for param, size in sizes.items():
        unit = (units or {}).get(param, 1)
        cuts = lengths[param] = []
        remaining = size
        while remaining > 0:
            if free + slack >= remaining:
                cuts.append(remaining)
                free -= remaining
                remaining = 0
            else:
                if free >= max(slack, 1):  # SINGA cuts an empty slice if boxes have fewer than ten elements
                    room = free if free < capacity else max(free, unit)
                    if room >= unit:
                        cuts.append(room // unit * unit)
                        remaining -= cuts[-1]
                free = capacity
    return lengths


def partition_slices(lengths: Sequence[int], num: int) -> list[int]:
    """Put slices in order into ``num`` boxes of about equal size, by SINGA's ``PartitionSlices``; return their boxes.

    Unlike in SINGA, an empty box accepts any slice, and the last box all remaining ones.
    """
    capacity, slack = _box(sum(lengths), num)
    free, box = capacity, 0
    boxes = []
    for length in lengths:
        if free + slack < length and free < capacity and box < num - 1:
            free, box = capacity, box + 1
        boxes.append(box)
        free -= length
    return boxes


def paddle_block_size(total: int, servers: int) -> int:
    """Return how many elements a block has by PaddlePaddle's formula: a power of two, at least 1024."""
    bits = (total // servers).bit_length()
    return 1 << max(bits - 7, 10)


def _box(total: int, num: int) -> tuple[int, int]:
    """Return how many elements a server should hold, and by how many it may exceed that."""
    capacity = total // num + total % num
    return capacity, capacity // 10


def _fill_boxes(sizes: Mapping[str, int], servers: int, units: Mapping[str, int]) -> dict[str, list[tuple[int, int]]]:
    """Distribute params over servers, whole if as even, else as SINGA cuts them; return slices (length, server)."""
    whole = _whole_boxes(sizes, servers)
    if whole:
        return {param: [(size, whole[param])] for param, size in sizes.items()}
    # SINGA cuts into lcm(server groups, servers per group) slices, so that each group can distribute them evenly.
    lengths = slice_params(sizes, servers, units)
    boxes = iter(partition_slices([length for cuts in lengths.values() for length in cuts], servers))
    return {param: [(length, next(boxes)) for length in cuts] for param, cuts in lengths.items()}


def _whole_boxes(sizes: Mapping[str, int], servers: int) -> dict[str, int] | None:
    """Put whole params, the largest first, into the emptiest boxes; return each one's, None if one gets too full."""
    contents = [0] * servers
    boxes: dict[str, int] = {}
    for param in sorted(sizes, key=lambda param: -sizes[param]):
        boxes[param] = contents.index(min(contents))
        contents[boxes[param]] += sizes[param]
    return boxes if max(contents) <= sum(_box(sum(contents), servers)) else None


def _deal_blocks(
    sizes: Mapping[str, int], servers: int, units: Mapping[str, int], block_size: int | None, block_rows: int | None
) -> dict[str, list[tuple[int, int]]]:
    block = block_size or paddle_block_size(sum(sizes.values()), servers)
    blocks: dict[str, list[tuple[int, int]]] = {}
    for param, size in sizes.items():
        first = zlib.crc32(param.encode())  # unlike hash() the same in every process and run
        unit = units.get(param, 1)
        rows = block_rows if param in units else None
        length = (rows or max(block // unit, 1)) * unit
        starts = enumerate(range(0, size, length), first)
        blocks[param] = [(min(length, size - start), number % servers) for number, start in starts]
    return blocks


# The number of buckets for each server: several, so that most are sent while the lower layers still compute. Buckets
# have at least MIN_BUCKET_BYTES, since sending a message costs as much as sending these bytes.
BUCKETS = 8
MIN_BUCKET_BYTES = 1 << 17


class Bucket(NamedTuple):
    """Slices of one server that are sent in one message."""

    server: int
    slices: list[Slice]


def fill_buckets(slices: Mapping[str, Sequence[Slice]], servers: int, limit: int | None = None) -> list[Bucket]:
    """Group slices into buckets, in the order in which the backward pass fills them, top params first.

    ``slices`` are the slices of each param, in the order of the forward pass. A bucket is complete at ``limit`` bytes;
    by default there are ``BUCKETS`` for each server, of at least ``MIN_BUCKET_BYTES``.
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
    """Order a param's slices: each server's first one, then each server's second, and so on."""
    counts: Counter[int] = Counter()
    turns = []
    for slice_ in slices:
        turns.append(counts[slice_.server])
        counts[slice_.server] += 1
    return [slice_ for _, slice_ in sorted(zip(turns, slices, strict=True), key=lambda pair: pair[0])]
