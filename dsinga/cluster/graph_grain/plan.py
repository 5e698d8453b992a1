"""The segments of a worker's iteration in graph grain: the exchange with the servers, then layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.net import NeuralNet
from dsinga.net.segments import LayerPass, Segment, segments

# The first segment waits for the records of the batch and for the values of the params, so that no layer does.
EXCHANGE = Segment("exchange", (), (), ())


def plan_iteration(net: NeuralNet) -> tuple[Segment, ...]:
    """Return the segments of one iteration of back-propagation over the net of one worker, which may have no layers."""
    return (EXCHANGE, *segments(net.fused)) if net.nodes else (EXCHANGE,)


def positions(plan: Sequence[Segment]) -> Mapping[LayerPass, int]:
    """Return the number of the segment to which each pass of a layer belongs."""
    return {layer_pass: number for number, segment in enumerate(plan) for layer_pass in segment.passes}
