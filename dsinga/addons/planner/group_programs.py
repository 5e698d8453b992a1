"""Lists what each worker computes and sends in one iteration, so that the planner can price it.

Programs made without partitioning are quick enough for a search and for hundreds of workers. Transfers match the
connection layers of :mod:`dsinga.cutting.redistribution`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.addons.planner.layer_timing import LayerTime, LayerWork
from dsinga.addons.planner.machine import MachineModel
from dsinga.addons.planner.processes import ParamUse, ProcessMap
from dsinga.addons.planner.program import AllToAll, Compute, GroupProgram, ProgramBuilder, Receive, Send, start_group
from dsinga.cutting.bridge_messages import features_rounded, gradients_rounded, is_bf16_image, rounds_source
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.layer_parts import make_part, make_region_part
from dsinga.cutting.partitioned import FEATURES, ROWS, WHOLE_LAYER, LayerCut, PartitionedNet, cut_regions
from dsinga.cutting.region_redistribution import needed_shape, space_sharding
from dsinga.job import LayerType
from dsinga.layers.bridge import BridgeEnd
from dsinga.layers.interface.context import Columns, Rows, cut_evenly
from dsinga.layers.interface.declarations import Connection
from dsinga.layers.interface.layer import Layer
from dsinga.layers.interface.region import FILL, Region
from dsinga.net import NeuralNet, Stage
from dsinga.net.layer_cost import FLOAT_BYTES, rows_of
from dsinga.ops.types import Shape


class FeatureTransfer(NamedTuple):
    """A feature sent from workers ``holders`` to workers ``targets``: ``numbers`` values for each pair.

    It leads from the node ``source`` to ``destination``, the first that needs the feature in this cut. With
    ``sums_gradients`` every target gets the whole feature, and gradients are added, not joined. ``gradient`` says
    whether gradients are sent back; ``bf16_feature`` and ``bf16_gradient``, whether in bfloat16.
    """

    key: str
    source: int
    destination: int
    holders: tuple[int, ...]
    targets: tuple[int, ...]
    numbers: int
    sums_gradients: bool
    gradient: bool
    bf16_feature: bool
    bf16_gradient: bool

    @property
    def all_to_all(self) -> bool:
        """Whether every worker sends to every worker."""
        return len(self.holders) > 1 and len(self.targets) > 1


def locations(cut: LayerCut, workers: int) -> tuple[int, ...]:
    """Return the numbers of the workers that compute a layer with this cut."""
    return (cut.location,) if cut.dim == WHOLE_LAYER else tuple(range(workers))


def find_transfers(net: NeuralNet, cuts: Mapping[str, LayerCut], workers: int) -> list[FeatureTransfer]:
    """Find the features that workers send, one transfer for all layers that need a feature in the same cut."""
    transfers: dict[tuple, FeatureTransfer] = {}
    rounded, gradients = features_rounded(net.nodes), gradients_rounded(net.nodes, net.stages)
    for position, (node, stage) in enumerate(zip(net.nodes, net.stages, strict=True)):
        cut = cuts[node.layer.name]
        gathers = cut.dim == 1 and node.layer.cut.connection is Connection.kOneToAll
        needed_dim, targets = WHOLE_LAYER if gathers else cut.dim, locations(cut, workers)
        for index, (edge, gradient) in enumerate(zip(stage.edges, stage.needs, strict=True)):
            source = net.nodes[edge.node].layer
            dim, holders = cuts[source.name].dim, locations(cuts[source.name], workers)
            if edge.labels:
                continue
            part = 0 if source.conf.type is LayerType.kSplit else edge.part
            key: tuple = (edge.node, part, needed_dim, targets)
            shape = source.part_shapes[part] if source.part_shapes else source.shape
            halo = 0
            if dim == needed_dim and (dim != WHOLE_LAYER or set(targets) <= set(holders)):
                if not (halo := halo_numbers(node.layer, index, cut, shape, workers)):
                    continue
                key = (*key, halo)
            bf16_gradient = gradients[edge.node]
            rounds = rounds_source(node.layer, index, rounded[position]) or is_bf16_image(shape, bf16_gradient)
            if key in transfers:
                before = transfers[key]
                transfers[key] = before._replace(
                    gradient=before.gradient or gradient, bf16_feature=before.bf16_feature and rounds
                )
                continue
            whole = needed_dim == WHOLE_LAYER
            numbers = halo or math.prod(shape) // len(holders) // (1 if whole else len(targets))
            name = f"{source.name}.{part}:{needed_dim}@{targets[0]}" + (f" halo {halo}" if halo else "")
            sums_gradients = bool(halo) or (whole and len(targets) > 1)
            transfers[key] = FeatureTransfer(
                name, edge.node, position, holders, targets, numbers, sums_gradients, gradient, rounds, bf16_gradient
            )
    return list(transfers.values())


def halo_numbers(layer: Layer, source: int, cut: LayerCut, shape: Shape, workers: int) -> int:
    """Count the border (halo) numbers that a layer's neediest part gets from each other worker, on average."""
    if not cut.grid or not layer.takes_points(source):
        return 0
    target, last = space_sharding(layer, cut, shape), cut.dim + len(cut.grid)
    missing = [0]
    for needs, region in zip(target.needs, cut_regions(shape, cut.dim, cut.grid), strict=False):
        points = [sum(run.length for run in runs if run.start != FILL) for runs in needs]
        missing.append(math.prod([*shape[: cut.dim], *points, *shape[last:]]) - math.prod(region.part(shape)))
    return -(-max(missing) // (workers - 1))


def approximate_program(
    parts: NetParts, cuts: Mapping[str, LayerCut], processes: ProcessMap, machine: MachineModel
) -> GroupProgram:
    """List the work and messages of each worker in an iteration of kBP, without partitioning the net."""
    net, workers = parts.net, parts.workers
    shares = [WorkerShare(parts, cuts, worker) for worker in range(workers)]
    params = _params(net, shares)
    group, by_param = start_group(params, processes, machine.rates)
    transfers = find_transfers(net, cuts, workers) if workers > 1 else []
    for share in shares:
        shapes = {name: params[name].shape for names in share.params.values() for name in names}
        builder = ProgramBuilder(shapes, by_param, processes.workers[share.worker], processes, machine.rates)
        builder.program.memory = share.memory + 2 * FLOAT_BYTES * sum(map(math.prod, shapes.values()))
        _IterationWriter(net, share, transfers, builder, group, machine).write()
        group.programs.append(builder.program)
    return group


class WorkerShare:
    """One worker's part of a net: its work and the names of its params, by position."""

    def __init__(self, parts: NetParts, cuts: Mapping[str, LayerCut], worker: int):
        self.worker = worker
        self.works: dict[int, LayerWork] = {}
        self.params: dict[int, tuple[str, ...]] = {}
        net, workers = parts.net, parts.workers
        for position, (node, stage) in enumerate(zip(net.nodes, net.stages, strict=True)):
            cut = cuts[node.layer.name]
            if worker not in locations(cut, workers):
                continue
            layer, rows, names = node.layer, node.layer.shape[0], node.params
            if workers > 1 and cut.grid:
                layer = parts.region_part(position, worker, cut)
            elif workers > 1 and cut.dim == FEATURES:
                layer = parts.layer_part(position, worker)
                names = tuple(
                    f"{name}@{worker}" if spec.cut_axis is not None else name
                    for name, spec in zip(names, layer.params, strict=True)
                )
            elif workers > 1 and cut.dim == ROWS:
                rows = parts.width(rows, worker)
            shapes = [(rows if shape[0] == layer.shape[0] else shape[0], *shape[1:]) for shape in layer.source_shapes]
            self.works[position] = LayerWork(layer, rows, tuple(shapes), stage.needs, stage.backward)
            self.params[position] = names

    @property
    def memory(self) -> int:
        """The bytes of features, which the backward pass needs."""
        return FLOAT_BYTES * sum(work.rows * math.prod(work.layer.shape[1:]) for work in self.works.values())


class NetParts:
    """A cache of layer parts, which workers with equal widths share."""

    def __init__(self, net: NeuralNet, workers: int):
        self.net, self.workers = net, workers
        self._ranges: dict[int, list[Rows]] = {}
        self._parts: dict[tuple[int, int | Region], Layer] = {}

    def width(self, total: int, worker: int) -> int:
        """Return how many of ``total`` rows or columns a worker has."""
        range_ = self._range(total, worker)
        return range_.stop - range_.start

    def layer_part(self, position: int, worker: int) -> Layer:
        """Return a worker's part of a layer cut by features."""
        layer = self.net.nodes[position].layer
        axis = layer.cut.axis
        range_ = self._range(layer.shape[axis], worker)
        width = range_.stop - range_.start
        if (position, width) not in self._parts:
            shapes = [
                shape
                if layer.cut.connection is Connection.kOneToAll or k == layer.labels.source
                else (*shape[:axis], width, *shape[axis + 1 :])
                for k, shape in enumerate(layer.source_shapes)
            ]
            self._parts[position, width] = make_part(layer, shapes, Columns(*range_))
        return self._parts[position, width]

    def region_part(self, position: int, worker: int, cut: LayerCut) -> Layer:
        """Return a worker's part of a layer cut by space."""
        layer = self.net.nodes[position].layer
        region = cut_regions(layer.field_shape, cut.dim, cut.grid)[worker]
        if (position, region) not in self._parts:
            shapes = [
                needed_shape(shape, space_sharding(layer, cut, shape), worker) if layer.takes_points(k) else shape
                for k, shape in enumerate(layer.source_shapes)
            ]
            self._parts[position, region] = make_region_part(layer, shapes, region)
        return self._parts[position, region]

    def _range(self, total: int, worker: int) -> Rows:
        if total not in self._ranges:
            self._ranges[total] = cut_evenly(total, self.workers)
        return self._ranges[total][worker]


def _params(net: NeuralNet, shares: Sequence[WorkerShare]) -> dict[str, ParamUse]:
    params: dict[str, ParamUse] = {}
    for share in shares:
        for position, names in share.params.items():
            for name, spec in zip(names, share.works[position].layer.params, strict=True):
                users = params[name].users if name in params else ()
                params[name] = ParamUse(spec.shape, users if share.worker in users else (*users, share.worker))
    order = {name: number for number, name in enumerate(net.params)}
    return dict(sorted(params.items(), key=lambda item: order[_param_name(item[0], order)]))


def _param_name(part_name: str, params: Mapping[str, int]) -> str:
    return part_name if part_name in params else part_name.rpartition("@")[0]


class _IterationWriter:
    def __init__(
        self,
        net: NeuralNet,
        share: WorkerShare,
        transfers: Sequence[FeatureTransfer],
        builder: ProgramBuilder,
        group: GroupProgram,
        machine: MachineModel,
    ):
        self.share, self.builder, self.group, self.rates = share, builder, group, machine.rates
        self.times = {position: machine.time_layer(work) for position, work in share.works.items()}
        self.incoming: dict[int, list[FeatureTransfer]] = {position: [] for position in range(len(net.nodes))}
        self.outgoing: dict[int, list[FeatureTransfer]] = {position: [] for position in range(len(net.nodes))}
        for transfer in transfers:
            self.incoming[transfer.destination].append(transfer)
            self.outgoing[transfer.source].append(transfer)

    def write(self) -> None:
        first_use: dict[str, int] = {}
        for position, names in self.share.params.items():
            for transfer in self.incoming[position]:
                self._receive(transfer)
            self.builder.await_values(names)
            self._compute(position, self.times[position].forward, "feature", self.times[position].sums_forward)
            for transfer in self.outgoing[position]:
                size = self.builder.wire.feature(transfer.bf16_feature) * transfer.numbers
                self._send(transfer.key, transfer.holders, transfer.targets, transfer, size)
            for name in names:
                first_use.setdefault(name, position)
        for position, names in reversed(self.share.params.items()):
            for transfer in self.outgoing[position]:
                self._receive_gradient(transfer)
            if self.share.works[position].backward:
                time: LayerTime = self.times[position]
                self._compute(position, time.backward, "gradient", time.sums_backward)
            for transfer in self.incoming[position]:
                if transfer.gradient:
                    size = self.builder.wire.feature(transfer.bf16_gradient) * transfer.numbers
                    self._send(f"{transfer.key}/gradient", transfer.targets, transfer.holders, transfer, size)
            self.builder.push(name for name in dict.fromkeys(names) if first_use[name] == position)

    def _compute(self, position: int, seconds: float, what: str, sums: int) -> None:
        self.builder.add(Compute(seconds))
        work = self.share.works[position]
        if work.layer.region or work.rows < work.layer.shape[0]:
            self.builder.all_reduce(work.layer, what, sums, self.group)

    def _send(
        self, key: str, senders: Sequence[int], receivers: Sequence[int], transfer: FeatureTransfer, size: int
    ) -> None:
        if self.share.worker not in senders:
            return
        if transfer.all_to_all:
            self.builder.add(AllToAll(key, size))
            return
        for receiver in receivers:
            if receiver != self.share.worker:
                self.builder.add(Send(receiver, f"{key}@{self.share.worker}", size))

    def _wait(self, key: str, senders: Sequence[int], transfer: FeatureTransfer) -> None:
        if transfer.all_to_all:
            self.builder.add(Receive(key))
            return
        for sender in senders:
            if sender != self.share.worker:
                self.builder.add(Receive(f"{key}@{sender}"))

    def _receive(self, transfer: FeatureTransfer) -> None:
        self._wait(transfer.key, transfer.holders, transfer)
        if len(transfer.holders) > 1:
            self.builder.add(Compute(self.rates.copy * FLOAT_BYTES * transfer.numbers * len(transfer.holders)))

    def _receive_gradient(self, transfer: FeatureTransfer) -> None:
        if not transfer.gradient or self.share.worker not in transfer.holders:
            return
        self._wait(f"{transfer.key}/gradient", transfer.targets, transfer)
        others = len(transfer.targets) - 1
        if others:
            add, join = self.rates.add * others, self.rates.copy * FLOAT_BYTES * (others + 1)
            self.builder.add(Compute((add if transfer.sums_gradients else join) * transfer.numbers))


def exact_program(net: PartitionedNet, processes: ProcessMap, machine: MachineModel) -> GroupProgram:
    """List the work and messages of each worker in an iteration of kBP of a partitioned net."""
    params = {name: ParamUse(part.shape, part.users) for name, part in net.parts.items()}
    group, by_param = start_group(params, processes, machine.rates)
    for worker, local in enumerate(net.locals):
        shapes = {name: net.parts[name].shape for name in local.params}
        builder = ProgramBuilder(shapes, by_param, processes.workers[worker], processes, machine.rates)
        builder.program.memory = _memory(local)
        _add_iteration(builder, local.fused, machine.time_net(net, worker), group)
        group.programs.append(builder.program)
    return group


def _add_iteration(builder: ProgramBuilder, net: NeuralNet, times: Sequence[LayerTime], group: GroupProgram) -> None:
    for stage, time in zip(net.stages, times, strict=True):
        builder.await_values(stage.params)
        layer = stage.layer
        if isinstance(layer, BridgeSrc):
            _send(builder, layer, time.forward, group)
        elif isinstance(layer, BridgeDst):
            builder.add(Receive(layer.key))
        else:
            builder.add(Compute(time.forward))
            _all_reduce(builder, stage, time.sums_forward, "feature", group)
    for stage, time in reversed(list(zip(net.stages, times, strict=True))):
        layer = stage.layer
        if stage.backward and isinstance(layer, BridgeSrc):
            builder.add(Receive(layer.gradient_key))
        elif stage.backward and isinstance(layer, BridgeDst):
            _send(builder, layer, time.backward, group, back=True)
        elif stage.backward:
            builder.add(Compute(time.backward))
            _all_reduce(builder, stage, time.sums_backward, "gradient", group)
        builder.push(stage.completes)


def _send(builder: ProgramBuilder, bridge: BridgeEnd, seconds: float, group: GroupProgram, back: bool = False) -> None:
    if group.worker_processes[bridge.location] != builder.process:
        builder.add(Compute(seconds))
    size = builder.wire.bridge(bridge, back) * math.prod(bridge.shape)
    builder.add(Send(bridge.location, bridge.gradient_key if back else bridge.key, size))


def _all_reduce(builder: ProgramBuilder, stage: Stage, sums: int, what: str, group: GroupProgram) -> None:
    if stage.layer.region or (stage.rows and rows_of(stage) < stage.rows.total):
        builder.all_reduce(stage.layer, what, sums, group)


def _memory(net: NeuralNet) -> int:
    params = sum(math.prod(param.shape) for param in net.params.values())
    return sum(map(_bytes, net.stages)) + 2 * FLOAT_BYTES * params


def _bytes(stage: Stage) -> int:
    bridge = isinstance(stage.layer, BridgeEnd)
    return FLOAT_BYTES * (math.prod(stage.layer.shape) if bridge else rows_of(stage) * math.prod(stage.layer.shape[1:]))
