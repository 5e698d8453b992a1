"""What partitioning would make of a net, without making it: for searching, and for hundreds of workers.

A rewritten net has a bridge for each pair of workers that talk, so its size grows with the square of their number. Here
an edge over which all workers send to all is one operation; the rest is as :mod:`dsinga.planner.translate` has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dsinga.layers.base import Connection, Layer
from dsinga.layers.context import Columns, Rows
from dsinga.layers.contract import make_part
from dsinga.net import NeuralNet, cut_rows
from dsinga.net.cut import LayerCut
from dsinga.planner.builder import Builder, by_param, update_pieces
from dsinga.planner.cost import FLOAT_BYTES
from dsinga.planner.hosts import Hosts, Part
from dsinga.planner.machine import Machine
from dsinga.planner.measure import LayerTime, Work
from dsinga.planner.moves import Move, find_moves, locations
from dsinga.planner.program import Compute, Exchange, Group, Receive, Send

ROWS, FEATURES = 0, 1


def sketch(net: NeuralNet, cuts: Mapping[str, LayerCut], hosts: Hosts, machine: Machine) -> Group:
    """Return what each worker does in an iteration of kBP, the net being cut so for the workers of ``hosts``."""
    workers = len(hosts.workers)
    known = _Known(net, workers)
    shares = [Share(known, cuts, worker) for worker in range(workers)]
    parts = _parts(net, shares)
    slices = hosts.slices(parts)
    kept = by_param(slices, parts)
    users = {name: len(part.users) for name, part in parts.items()}
    group = Group([], hosts.workers, hosts.servers, update_pieces(slices, users, hosts, machine.rates))
    moves = find_moves(net, cuts, workers) if workers > 1 else []
    for share in shares:
        shapes = {name: parts[name].shape for names in share.params.values() for name in names}
        builder = Builder(shapes, kept, hosts.workers[share.worker], hosts.servers, machine.rates)
        builder.program.memory = share.memory + 2 * FLOAT_BYTES * sum(map(math.prod, shapes.values()))
        _Iteration(net, share, moves, builder, group, machine).write()
        group.programs.append(builder.program)
    return group


class Share:
    """What one worker computes: its work at each position of the net, and the param parts that it uses there."""

    def __init__(self, known: _Known, cuts: Mapping[str, LayerCut], worker: int):
        self.worker = worker
        self.works: dict[int, Work] = {}
        self.params: dict[int, tuple[str, ...]] = {}
        net, workers = known.net, known.workers
        for position, (node, stage) in enumerate(zip(net.nodes, net.stages, strict=True)):
            cut = cuts[node.layer.name]
            if worker not in locations(cut, workers):
                continue
            layer, rows, names = node.layer, node.layer.shape[0], node.params
            if workers > 1 and cut.dim == FEATURES:
                layer = known.part_of(position, worker)
                names = tuple(
                    f"{name}@{worker}" if spec.cut_axis is not None else name
                    for name, spec in zip(names, layer.params, strict=True)
                )
            elif workers > 1 and cut.dim == ROWS:
                rows = known.width(rows, worker)
            shapes = [(rows if shape[0] == layer.shape[0] else shape[0], *shape[1:]) for shape in layer.source_shapes]
            self.works[position] = Work(layer, rows, tuple(shapes), stage.needs, stage.backward)
            self.params[position] = names

    @property
    def memory(self) -> int:
        """Bytes of the features, which backward needs."""
        return FLOAT_BYTES * sum(work.rows * math.prod(work.layer.shape[1:]) for work in self.works.values())


class _Known:
    """The parts of layers and ranges that occur, each made once: those of equal width do for all workers."""

    def __init__(self, net: NeuralNet, workers: int):
        self.net, self.workers = net, workers
        self._ranges: dict[int, list[Rows]] = {}
        self._parts: dict[tuple[int, int], Layer] = {}

    def width(self, total: int, worker: int) -> int:
        """Return how many of ``total`` rows or columns a worker has."""
        own = self._range(total, worker)
        return own.stop - own.start

    def part_of(self, position: int, worker: int) -> Layer:
        """Return the layer at ``position`` as a worker has it if it is cut on features."""
        layer = self.net.nodes[position].layer
        width = self.width(layer.shape[1], worker)
        if (position, width) not in self._parts:
            shapes = [
                shape
                if layer.connection is Connection.kOneToAll or k == layer.label_source
                else (shape[0], width, *shape[2:])
                for k, shape in enumerate(layer.source_shapes)
            ]
            self._parts[position, width] = make_part(layer, shapes, Columns(*self._range(layer.shape[1], worker)))
        return self._parts[position, width]

    def _range(self, total: int, worker: int) -> Rows:
        if total not in self._ranges:
            self._ranges[total] = cut_rows(total, self.workers)
        return self._ranges[total][worker]


def _parts(net: NeuralNet, shares: Sequence[Share]) -> dict[str, Part]:
    """Return the parts of the params by name, in the order of the net's params."""
    found: dict[str, Part] = {}
    for share in shares:
        for position, names in share.params.items():
            for name, spec in zip(names, share.works[position].layer.params, strict=True):
                users = found[name].users if name in found else ()
                found[name] = Part(spec.shape, users if share.worker in users else (*users, share.worker))
    order = {name: number for number, name in enumerate(net.params)}
    return dict(sorted(found.items(), key=lambda item: order[_whole(item[0], order)]))


def _whole(name: str, params: Mapping[str, int]) -> str:
    return name if name in params else name.rpartition("@")[0]


class _Iteration:
    """Writes one iteration of one worker."""

    def __init__(
        self, net: NeuralNet, share: Share, moves: Sequence[Move], builder: Builder, group: Group, machine: Machine
    ):
        self.share, self.builder, self.group, self.rates = share, builder, group, machine.rates
        self.times = {position: machine.time(work) for position, work in share.works.items()}
        self.into: dict[int, list[Move]] = {position: [] for position in range(len(net.nodes))}
        self.out: dict[int, list[Move]] = {position: [] for position in range(len(net.nodes))}
        for move in moves:
            self.into[move.destination].append(move)
            self.out[move.source].append(move)

    def write(self) -> None:
        """Write the forward pass and the backward pass."""
        first: dict[str, int] = {}
        for position, names in self.share.params.items():
            for move in self.into[position]:
                self._receive(move)
            self.builder.look_up(names)
            self._compute(position, self.times[position].forward, "feature", self.times[position].sums_forward)
            for move in self.out[position]:
                self._send(move.key, move.holders, move.targets, move)
            for name in names:
                first.setdefault(name, position)
        for position, names in reversed(self.share.params.items()):
            for move in self.out[position]:
                self._receive_gradient(move)
            if self.share.works[position].backward:
                time: LayerTime = self.times[position]
                self._compute(position, time.backward, "gradient", time.sums_backward)
            for move in self.into[position]:
                if move.gradient:
                    self._send(f"{move.key}/gradient", move.targets, move.holders, move)
            self.builder.push(name for name in dict.fromkeys(names) if first[name] == position)

    def _compute(self, position: int, seconds: float, what: str, sums: int) -> None:
        """Compute, and sum up over the batch where a layer needs that and has only some of its rows."""
        self.builder.add(Compute(seconds))
        work = self.share.works[position]
        for turn in range(sums if work.rows < work.layer.shape[0] else 0):
            key, size = f"{work.layer.name}.{what}.{turn}", 16 * work.layer.shape[1]
            self.builder.sum_up(key, size, len(self.group.homes), self.group.pieces)

    def _send(self, key: str, senders: Sequence[int], receivers: Sequence[int], move: Move) -> None:
        if self.share.worker not in senders:
            return
        if move.all_to_all:
            self.builder.add(Exchange(key, FLOAT_BYTES * move.piece))
            return
        for other in receivers:
            if other != self.share.worker:
                self.builder.add(Send(other, f"{key}@{self.share.worker}", FLOAT_BYTES * move.piece))

    def _wait(self, key: str, senders: Sequence[int], move: Move) -> None:
        if move.all_to_all:
            self.builder.add(Receive(key))
            return
        for other in senders:
            if other != self.share.worker:
                self.builder.add(Receive(f"{key}@{other}"))

    def _receive(self, move: Move) -> None:
        self._wait(move.key, move.holders, move)
        if len(move.holders) > 1:  # joined
            self.builder.add(Compute(self.rates.copy * FLOAT_BYTES * move.piece * len(move.holders)))

    def _receive_gradient(self, move: Move) -> None:
        if not move.gradient or self.share.worker not in move.holders:
            return
        self._wait(f"{move.key}/gradient", move.targets, move)
        others = len(move.targets) - 1
        if others:
            each = self.rates.add * others if move.adds else self.rates.copy * FLOAT_BYTES * (others + 1)
            self.builder.add(Compute(each * move.piece))
