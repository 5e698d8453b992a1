"""From a partitioned net to the programs of its workers: what bp and the exchange do, with durations and sizes."""

from __future__ import annotations

import math

from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.net import NeuralNet, Stage
from dsinga.net.partitioned import PartitionedNet
from dsinga.planner.builder import Builder, by_param, update_pieces
from dsinga.planner.cost import FLOAT_BYTES
from dsinga.planner.hosts import Hosts, Part
from dsinga.planner.machine import Machine
from dsinga.planner.measure import rows_of
from dsinga.planner.program import Compute, Group, Receive, Send


def translate(net: PartitionedNet, hosts: Hosts, machine: Machine) -> Group:
    """Return what each worker does in an iteration of kBP."""
    parts = {name: Part(part.shape, part.users) for name, part in net.parts.items()}
    slices = hosts.slices(parts)
    kept = by_param(slices, parts)
    users = {name: len(part.users) for name, part in parts.items()}
    group = Group([], hosts.workers, hosts.servers, update_pieces(slices, users, hosts, machine.rates))
    for worker, local in enumerate(net.locals):
        shapes = {name: net.parts[name].shape for name in local.params}
        builder = Builder(shapes, kept, hosts.workers[worker], hosts.servers, machine.rates)
        builder.program.memory = _memory(local)
        _iterate(builder, local, group, machine)
        group.programs.append(builder.program)
    return group


def _iterate(builder: Builder, net: NeuralNet, group: Group, machine: Machine) -> None:
    """Write one iteration: forward through the stages, then backward."""
    times = machine.walk(net)
    for stage, time in zip(net.stages, times, strict=True):
        builder.look_up(stage.params)
        layer = stage.layer
        if isinstance(layer, BridgeSrc):
            _send(builder, layer.location, layer.key, stage, time.forward, group)
        elif isinstance(layer, BridgeDst):
            builder.add(Receive(layer.key))
        else:
            builder.add(Compute(time.forward))
            _sum_up(builder, stage, time.sums_forward, "feature", group)
    for stage, time in reversed(list(zip(net.stages, times, strict=True))):
        layer = stage.layer
        if stage.backward and isinstance(layer, BridgeSrc):
            builder.add(Receive(layer.gradient_key))
        elif stage.backward and isinstance(layer, BridgeDst):
            _send(builder, layer.location, layer.gradient_key, stage, time.backward, group)
        elif stage.backward:
            builder.add(Compute(time.backward))
            _sum_up(builder, stage, time.sums_backward, "gradient", group)
        builder.push(stage.completes)


def _send(builder: Builder, worker: int, key: str, stage: Stage, seconds: float, group: Group) -> None:
    """Send what crosses a bridge; ``seconds`` bring it into the order of a message, which another process needs."""
    if group.homes[worker] != builder.home:
        builder.add(Compute(seconds))
    builder.add(Send(worker, key, _bytes(stage)))


def _sum_up(builder: Builder, stage: Stage, sums: int, what: str, group: Group) -> None:
    """Ask for sums over the batch where a layer that needs them has only some of its rows."""
    if stage.rows and rows_of(stage) < stage.rows.total:
        for turn in range(sums):
            size = 16 * stage.layer.shape[1]  # two float64 a channel
            builder.sum_up(f"{stage.layer.name}.{what}.{turn}", size, len(group.homes), group.pieces)


def _memory(net: NeuralNet) -> int:
    """Values and gradients of the params, and every feature, which backward needs."""
    params = sum(math.prod(param.shape) for param in net.params.values())
    return sum(map(_bytes, net.stages)) + 2 * FLOAT_BYTES * params


def _bytes(stage: Stage) -> int:
    """Return the size of the feature that a worker has of a layer; a bridge has the shape of what crosses it."""
    bridge = isinstance(stage.layer, (BridgeSrc, BridgeDst))
    return FLOAT_BYTES * (math.prod(stage.layer.shape) if bridge else rows_of(stage) * math.prod(stage.layer.shape[1:]))
