"""Divides a worker's iteration into segments without communication, to run each as one unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.job import LayerType
from dsinga.layers.interface.layer import Layer
from dsinga.net.neuralnet import NeuralNet

CONNECTIONS = (LayerType.kSplit, LayerType.kSlice, LayerType.kConcate, LayerType.kBridgeSrc, LayerType.kBridgeDst)
# The largest number of segments into which layers alone divide a forward or a backward pass: more would be smaller than
# what a task costs, and names that a dashboard cannot show.
MAX_SEGMENTS = 16


class LayerPass(NamedTuple):
    """The forward or backward pass of one layer."""

    layer: str
    direction: str


class Segment(NamedTuple):
    """A stretch of a worker's iteration that receives only at its start and sends only at its end.

    ``name`` has its first and last layer in execution order, as "forward conv1..pool1". ``receives`` and ``sends`` are
    keys of messages.
    """

    name: str
    receives: tuple[str, ...]
    sends: tuple[str, ...]
    passes: tuple[LayerPass, ...]


class _Event(NamedTuple):
    """The next event in an iteration: a layer's pass, or a message received or sent, by its key."""

    layer_pass: LayerPass
    starts: bool = False
    shown: bool = False
    receives: str = ""
    sends: str = ""


def segments(net: NeuralNet) -> tuple[Segment, ...]:
    """Return the segments of one iteration over the net of one worker; at least one.

    Segments also end between the two passes, before each layer with params and each loss in the forward pass, and after
    them in the backward pass.
    """
    parts: list[list[_Event]] = [[]]
    for event in _events(net):
        part = parts[-1]
        computes = any(not (before.receives or before.sends) for before in part)
        shows = any(before.shown for before in part)
        has_sent = any(before.sends for before in part)
        if (has_sent and not event.sends) or (computes and event.receives) or (shows and event.starts):
            parts.append([])
        parts[-1].append(event)
    return tuple(_segment(part) for part in parts)


def _segment(events: Sequence[_Event]) -> Segment:
    return Segment(
        _name([event.layer_pass for event in events if event.shown]),
        tuple(event.receives for event in events if event.receives),
        tuple(event.sends for event in events if event.sends),
        tuple(event.layer_pass for event in events if not event.receives and not event.sends),
    )


def _events(net: NeuralNet) -> Iterator[_Event]:
    heads = _heads(net)
    for stage in net.stages:
        layer, layer_pass = stage.layer, LayerPass(stage.layer.name, "forward")
        if isinstance(layer, BridgeSrc):
            yield _Event(layer_pass, sends=layer.key)
        elif isinstance(layer, BridgeDst):
            yield _Event(layer_pass, receives=layer.key)
        else:
            yield _Event(layer_pass, stage.position in heads, _is_shown(layer))
    begins = True  # with the first named layer, and after each with which a segment of the forward pass begins
    for stage in reversed(net.stages):
        layer, layer_pass = stage.layer, LayerPass(stage.layer.name, "backward")
        if isinstance(layer, BridgeSrc) and layer.returns_gradient:
            yield _Event(layer_pass, receives=layer.gradient_key)
        elif isinstance(layer, BridgeDst) and layer.returns_gradient:
            yield _Event(layer_pass, sends=layer.gradient_key)
        elif stage.backward:
            shown = _is_shown(layer)
            yield _Event(layer_pass, begins and shown, shown)
            begins = begins and not shown
        begins = begins or stage.position in heads


def _heads(net: NeuralNet) -> frozenset[int]:
    heads = [stage.position for stage in net.stages if stage.params or stage.layer.is_loss]
    return frozenset(heads[:: -(-len(heads) // MAX_SEGMENTS) or 1])


def _is_shown(layer: Layer) -> bool:
    return layer.conf.type not in CONNECTIONS


def _name(passes: Sequence[LayerPass]) -> str:
    words = []
    for direction in ("forward", "backward"):
        layers = [layer for layer, its_direction in passes if its_direction == direction]
        if layers:
            words.append(f"{direction} {layers[0]}" + (f"..{layers[-1]}" if len(layers) > 1 else ""))
    return ", ".join(words) or "bridges"
