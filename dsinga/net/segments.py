"""The plan of an iteration as segments: what each worker does between what it receives and what it sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsinga.job import LayerType
from dsinga.layers.base import Layer
from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.net.neuralnet import NeuralNet

CONNECTIONS = (LayerType.kSplit, LayerType.kSlice, LayerType.kConcate, LayerType.kBridgeSrc, LayerType.kBridgeDst)


class Segment(NamedTuple):
    """A stretch of one worker's iteration that waits only at its begin and sends only at its end.

    ``name`` is of its layers in the order in which they run, as "forward conv1..pool1"; no other segment of the worker
    has it. ``receives`` and ``sends`` are the keys of the mail.
    """

    name: str
    receives: tuple[str, ...]
    sends: tuple[str, ...]


class _Step(NamedTuple):
    layer: str
    forward: bool
    receives: str = ""
    sends: str = ""


def segments(net: NeuralNet) -> tuple[Segment, ...]:
    """Return the segments of one iteration of back-propagation over the net of one worker; at least one."""
    found: list[Segment] = []
    steps: list[_Step] = []
    receives: list[str] = []
    sends: list[str] = []
    for step in _steps(net):
        if sends and not step.sends or steps and step.receives:
            found.append(Segment(_name(steps, len(found)), tuple(receives), tuple(sends)))
            steps, receives, sends = [], [], []
        if step.receives:
            receives.append(step.receives)
        elif step.sends:
            sends.append(step.sends)
        else:
            steps.append(step)
    found.append(Segment(_name(steps, len(found)), tuple(receives), tuple(sends)))
    return tuple(found)


def _steps(net: NeuralNet) -> Iterator[_Step]:
    """Yield what the worker does, layer by layer, forward and then backward."""
    for node in net.nodes:
        layer = node.layer
        if isinstance(layer, BridgeSrc):
            yield _Step(layer.name, True, sends=layer.key)
        elif isinstance(layer, BridgeDst):
            yield _Step(layer.name, True, receives=layer.key)
        else:
            yield _Step(_shown(layer), True)
    for stage in reversed(net.stages):
        layer = stage.layer
        if isinstance(layer, BridgeSrc) and layer.starts_gradient:
            yield _Step(layer.name, False, receives=layer.gradient_key)
        elif isinstance(layer, BridgeDst) and layer.wants_gradient:
            yield _Step(layer.name, False, sends=layer.gradient_key)
        elif stage.backward:
            yield _Step(_shown(layer), False)


def _shown(layer: Layer) -> str:
    """Return the name of a layer in that of its segment; connection layers have none."""
    return "" if layer.conf.type in CONNECTIONS else layer.name


def _name(steps: Sequence[_Step], number: int) -> str:
    words = []
    for forward, direction in ((True, "forward"), (False, "backward")):
        layers = [step.layer for step in steps if step.forward is forward and step.layer]
        if layers:
            words.append(f"{direction} {layers[0]}" + (f"..{layers[-1]}" if len(layers) > 1 else ""))
    return ", ".join(words) or f"pass on {number}"
