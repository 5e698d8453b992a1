"""A machine model with fixed times, and links between workers."""

from dsinga.addons.planner.layer_timing import LayerTime, LayerWork
from dsinga.addons.planner.link import ENDS, INSIDE, LOOPBACK, Link, Links
from dsinga.addons.planner.machine import MachineModel, Rates, work_of
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.net.layer_cost import layer_cost

LOCAL = Links(INSIDE, ENDS, LOOPBACK)
GIGABIT = Links(INSIDE, ENDS, Link(100e-6, 125e6))


def fixed_layer_time(work: LayerWork) -> LayerTime:
    """Return the time of a layer at 100 GFLOP/s, plus 20 microseconds for the call."""
    cost = layer_cost(work.layer)
    share = work.rows / work.layer.shape[0]
    backward = 20e-6 + cost.backward * share / 1e11 if work.backward else 0.0
    sums = int(work.layer.conf.type_name == "kBM")
    return LayerTime(20e-6 + cost.forward * share / 1e11, backward, sums, sums)


def fixed_net_times(net: PartitionedNet, worker: int) -> list[LayerTime]:
    """Return the time of each stage: that of its layer alone, and 0 for a bridge."""
    bridge = LayerTime(0.0, 0.0)
    return [
        bridge if isinstance(stage.layer, (BridgeSrc, BridgeDst)) else fixed_layer_time(work_of(stage))
        for stage in net.locals[worker].fused.stages
    ]


MACHINE = MachineModel(Rates(update=1e-9, add=3e-10, copy=1e-10, keep=1e-10), fixed_layer_time, fixed_net_times)
