"""Writing the program of a worker: the params' side of it, which is the same however the net was cut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from dsinga.layers.base import Shape
from dsinga.planner.cost import FLOAT_BYTES
from dsinga.planner.hosts import Hosts
from dsinga.planner.machine import Rates
from dsinga.planner.program import Await, Compute, Packet, Piece, Program, Push
from dsinga.server import Slice, fill_buckets


class Builder:
    """Writes one program.

    Args:
        params: the shapes of the param parts that the worker uses, in the order in which the forward pass needs them.
        slices: those of each part that servers keep.
        home: the process of the worker.
        servers: the process of each server.
        rates: of this machine.
    """

    def __init__(
        self,
        params: Mapping[str, Shape],
        slices: Mapping[str, Sequence[Slice]],
        home: int,
        servers: Sequence[int],
        rates: Rates,
    ):
        self._params, self._rates, self.home = params, rates, home
        own = {name: slices[name] for name in params}
        buckets = fill_buckets(own, len(servers)) if own else []
        self.program = Program(packets=[_packet(bucket.server, bucket.slices, rates) for bucket in buckets])
        self._buckets_of: dict[str, list[int]] = {name: [] for name in own}
        for number, bucket in enumerate(buckets):
            for piece in bucket.slices:
                self._buckets_of[piece.param].append(number)
        self._missing = [len(bucket.slices) for bucket in buckets]
        self._known: set[int] = set()

    def add(self, operation: Any) -> None:
        """Append an operation."""
        self.program.add(operation)

    def look_up(self, names: Iterable[str]) -> None:
        """Wait for the values of params, as the exchange does at their first use; pieces of one param are joined."""
        for name in names:
            fresh = [number for number in dict.fromkeys(self._buckets_of[name]) if number not in self._known]
            self._known.update(fresh)
            for number in fresh:
                self.add(Await(number, before=1))
            if fresh and len(self._buckets_of[name]) > 1:
                self.add(Compute(self._rates.keep * FLOAT_BYTES * math.prod(self._params[name])))

    def push(self, names: Iterable[str]) -> None:
        """Give gradients away; a bucket that is complete is sent."""
        for number in (number for name in names for number in self._buckets_of[name]):
            self._missing[number] -= 1
            if not self._missing[number]:
                self.add(Push(number))

    def sum_up(self, key: str, size: int, workers: int, pieces: MutableMapping[Any, Piece]) -> None:
        """Ask the first server for a sum over the workers' parts of a batch, ``size`` bytes each, and wait for it."""
        pieces[key] = Piece(workers, 0.0)
        self.program.packets.append(Packet(0, (key,), size))
        number = len(self.program.packets) - 1
        self.add(Push(number))
        self.add(Await(number))


def update_pieces(slices: Iterable[Slice], users: Mapping[str, int], hosts: Hosts, rates: Rates) -> dict[Any, Piece]:
    """Return what the servers do: add the gradients of the users of each slice's param, and update the slice.

    What has several users is updated by the last of them, while the others go on, or where the whole group is threads
    of the server's process, by all of them. What has one is updated when others of its process update parts of the same
    layer.
    """

    def work(piece: Slice) -> Piece:
        count = users[piece.param]
        if count == 1:
            return Piece(1, piece.size * rates.crowded)
        if hosts.shares_updates(piece.server):
            return Piece(count, 0.0, share=piece.size * (rates.crowded / count + rates.add * (count - 1) / count))
        return Piece(count, piece.size * (rates.update + rates.add * (count - 1)))

    return {piece.id: work(piece) for piece in slices}


def by_param(slices: Iterable[Slice], names: Iterable[str]) -> dict[str, list[Slice]]:
    """Return the slices of each param."""
    found: dict[str, list[Slice]] = {name: [] for name in names}
    for piece in slices:
        found[piece.param].append(piece)
    return found


def _packet(server: int, slices: Sequence[Slice], rates: Rates) -> Packet:
    size = FLOAT_BYTES * sum(piece.size for piece in slices)
    return Packet(server, tuple(piece.id for piece in slices), size, rates.copy * size if len(slices) > 1 else 0.0)
