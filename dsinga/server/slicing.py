"""How params are cut into slices, and which server keeps which slice.

Two methods. SINGA's fills boxes of about equal size, at most a tenth too full, in the order of the params, and cuts
those that would not fit. PaddlePaddle's cuts every param into blocks of one size and deals them out by a hash. Who uses
a param of which two servers have a slice joins them in every step, in a copy. So, unlike SINGA, none is cut where boxes
of whole params, the largest put in first, are no fuller.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.job import SlicingMethod


class Slice(NamedTuple):
    """Elements ``start`` to ``stop`` of the flattened param ``param``, kept by ``server``; ``id`` counts all slices.

    ``width`` is the length of the rows it consists of, where its gradient may come as some of them; else 0.
    """

    id: int
    param: str
    start: int
    stop: int
    server: int
    width: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.param}[{self.start}:{self.stop}]"


def slice_for_servers(
    sizes: Mapping[str, int],
    servers: int,
    method: SlicingMethod = SlicingMethod.kSinga,
    homes: Mapping[str, int] | None = None,
    widths: Mapping[str, int] | None = None,
    whole: bool = False,
) -> list[Slice]:
    """Cut the params, given by name and number of elements, for the ``servers`` of one server group.

    ``homes`` names the server for params that must stay whole with a certain one, beside their only user; the others
    are cut as if these were not there. ``widths`` are the lengths of the rows between which, and nowhere else, params
    are cut whose gradients may come as some of their rows; ``whole`` forbids to cut any. The slices of all params are
    numbered from 0 in the order of ``sizes``, those of one param by ``start``; together they cover every param exactly
    once. A server may be left without a slice and then has nothing to do.
    """
    assert servers > 0, servers
    assert all(size > 0 for size in sizes.values()), sizes
    homes = homes or {}
    assert all(param in sizes and 0 <= server < servers for param, server in homes.items()), homes
    free = {param: size for param, size in sizes.items() if param not in homes}
    widths = widths or {}
    pieces = (_deal_blocks if method is SlicingMethod.kBlock else _fill_boxes)(free, servers, free if whole else widths)
    slices: list[Slice] = []
    for param, size in sizes.items():
        start = 0
        for length, server in [(size, homes[param])] if param in homes else pieces[param]:
            slices.append(Slice(len(slices), param, start, start + length, server, widths.get(param, 0)))
            start += length
    return slices


def slice_params(sizes: Mapping[str, int], num: int, units: Mapping[str, int] | None = None) -> dict[str, list[int]]:
    """Cut params into slices that can be put into ``num`` boxes of about equal size: SINGA's ``Slice``.

    Returns the lengths of the slices of each param. A box holds ``total // num + total % num`` elements and a tenth
    more at need. A param is cut only where it fits neither way, and only if at least a tenth of the box is free.
    SINGA takes a box that is overfilled for one that is just full, so that any number of small params go into it;
    here a tenth is the limit for all of them together. Where a box has no room for one of a param's ``units``, the next
    is begun; an empty one takes it, if it must be cut at all.
    """
    capacity, slack = _box(sum(sizes.values()), num)
    free = capacity
    lengths: dict[str, list[int]] = {}
    for param, size in sizes.items():
        unit = (units or {}).get(param, 1)
        cuts = lengths[param] = []
        rest = size
        while rest > 0:
            if free + slack >= rest:
                cuts.append(rest)
                free -= rest
                rest = 0
            else:
                if free >= max(slack, 1):  # SINGA cuts an empty slice where boxes hold fewer than ten elements
                    most = free if free < capacity else max(free, unit)
                    if most >= unit:
                        cuts.append(most // unit * unit)
                        rest -= cuts[-1]
                free = capacity
    return lengths


def partition_slices(lengths: Sequence[int], num: int) -> list[int]:
    """Put slices, in their order, into ``num`` boxes of about equal size: SINGA's ``PartitionSlices``.

    Returns the box of each slice. SINGA never ends if a slice is larger than a box, and fails if it runs out of boxes;
    here an empty box takes any slice, and the last box all that is left. Overfilling is as in :func:`slice_params`.
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


def block_size(total: int, servers: int) -> int:
    """Return the number of elements in a block, a power of two not below 1024: PaddlePaddle's formula.

    It gives each server 64 to 128 blocks of a large model.
    """
    bits = (total // servers).bit_length()
    return 1 << max(bits - 7, 10)


def _box(total: int, num: int) -> tuple[int, int]:
    """Return what a box holds, and by how much it may be overfilled."""
    capacity = total // num + total % num
    return capacity, capacity // 10


def _fill_boxes(sizes: Mapping[str, int], servers: int, units: Mapping[str, int]) -> dict[str, list[tuple[int, int]]]:
    """Return the length and the server of each piece of each param: whole ones, or else SINGA's way."""
    whole = _whole_boxes(sizes, servers)
    if whole:
        return {param: [(size, whole[param])] for param, size in sizes.items()}
    # SINGA cuts into lcm(server groups, servers per group) slices, so that each group can share them out evenly.
    lengths = slice_params(sizes, servers, units)
    boxes = iter(partition_slices([length for cuts in lengths.values() for length in cuts], servers))
    return {param: [(length, next(boxes)) for length in cuts] for param, cuts in lengths.items()}


def _whole_boxes(sizes: Mapping[str, int], servers: int) -> dict[str, int] | None:
    """Return the box of each param, the largest first into what is emptiest; None where one gets too full."""
    filled = [0] * servers
    boxes: dict[str, int] = {}
    for param in sorted(sizes, key=lambda param: -sizes[param]):
        boxes[param] = filled.index(min(filled))
        filled[boxes[param]] += sizes[param]
    return boxes if max(filled) <= sum(_box(sum(filled), servers)) else None


def _deal_blocks(sizes: Mapping[str, int], servers: int, units: Mapping[str, int]) -> dict[str, list[tuple[int, int]]]:
    """Return the length and the server of each piece of each param, PaddlePaddle's way."""
    block = block_size(sum(sizes.values()), servers)
    pieces: dict[str, list[tuple[int, int]]] = {}
    for param, size in sizes.items():
        first = zlib.crc32(param.encode())  # the same in every process and every run, unlike hash()
        unit = units.get(param, 1)
        length = max(block // unit, 1) * unit
        starts = enumerate(range(0, size, length), first)
        pieces[param] = [(min(length, size - start), number % servers) for number, start in starts]
    return pieces
