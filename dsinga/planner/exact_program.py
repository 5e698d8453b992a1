"""The programs of the workers of a partitioned net: what back-propagation and the exchange do in an iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsinga.layers.connect.bridge import BridgeDst, BridgeEnd, BridgeSrc
from dsinga.net import NeuralNet, Stage
from dsinga.net.layer_cost import FLOAT_BYTES, rows_of
from dsinga.net.partitioned import PartitionedNet
from dsinga.planner.layer_timing import LayerTime
from dsinga.planner.machine import MachineModel
from dsinga.planner.processes import ParamUse, ProcessMap
from dsinga.planner.program import Compute, GroupProgram, ProgramBuilder, Receive, Send, start_group


def exact_program(net: PartitionedNet, processes: ProcessMap, machine: MachineModel) -> GroupProgram:
    """Return the program of each worker for an iteration of kBP."""
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
    """Add one iteration: forward through the stages, then backward."""
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
    """Send the array of a bridge; for another process it is first made contiguous, which takes ``seconds``."""
    if group.worker_processes[bridge.location] != builder.process:
        builder.add(Compute(seconds))
    size = builder.wire.bridge(bridge, back) * math.prod(bridge.shape)
    builder.add(Send(bridge.location, bridge.gradient_key if back else bridge.key, size))


def _all_reduce(builder: ProgramBuilder, stage: Stage, sums: int, what: str, group: GroupProgram) -> None:
    """Ask for the sums over the batch that a layer needs, where the worker has only some of its rows or points."""
    if stage.layer.region or (stage.rows and rows_of(stage) < stage.rows.total):
        builder.all_reduce(stage.layer, what, sums, group)


def _memory(net: NeuralNet) -> int:
    """Return the bytes of values and gradients of the params, and of every feature, which backward needs."""
    params = sum(math.prod(param.shape) for param in net.params.values())
    return sum(map(_bytes, net.stages)) + 2 * FLOAT_BYTES * params


def _bytes(stage: Stage) -> int:
    """Return the bytes of the feature that a worker has of a layer; a bridge has the shape of the array it sends."""
    bridge = isinstance(stage.layer, BridgeEnd)
    return FLOAT_BYTES * (math.prod(stage.layer.shape) if bridge else rows_of(stage) * math.prod(stage.layer.shape[1:]))
