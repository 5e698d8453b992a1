"""Divides a worker's iteration into segments: what it computes between receiving and sending."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsinga.job import LayerType
from dsinga.layers.base import Layer
from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.net.neuralnet import NeuralNet

CONNECTIONS = (LayerType.kSplit, LayerType.kSlice, LayerType.kConcate, LayerType.kBridgeSrc, LayerType.kBridgeDst)


class Segment(NamedTuple):
    """A stretch of one worker's iteration that receives only at its start and sends only at its end.

    ``name`` has its first and last layer in the order in which they run, as "forward conv1..pool1", and is unique in
    the worker. ``receives`` and ``sends`` are the keys of the messages.
    """

    name: str
    receives: tuple[str, ...]
    sends: tuple[str, ...]


class _LayerPass(NamedTuple):
    """The forward or backward pass of one layer, and the keys of the messages that it receives or sends."""

    layer: str
    forward: bool
    receives: str = ""
    sends: str = ""


def segments(net: NeuralNet) -> tuple[Segment, ...]:
    """Return the segments of one iteration of back-propagation over the net of one worker; at least one."""
    segments_: list[Segment] = []
    passes: list[_LayerPass] = []
    receives: list[str] = []
    sends: list[str] = []
    for layer_pass in _passes(net):
        if sends and not layer_pass.sends or passes and layer_pass.receives:
            segments_.append(Segment(_name(passes, len(segments_)), tuple(receives), tuple(sends)))
            passes, receives, sends = [], [], []
        if layer_pass.receives:
            receives.append(layer_pass.receives)
        elif layer_pass.sends:
            sends.append(layer_pass.sends)
        else:
            passes.append(layer_pass)
    segments_.append(Segment(_name(passes, len(segments_)), tuple(receives), tuple(sends)))
    return tuple(segments_)


def _passes(net: NeuralNet) -> Iterator[_LayerPass]:
    """Yield the forward passes of a worker's layers, then the backward passes, in the order in which they run."""
    for node in net.nodes:
        layer = node.layer
        if isinstance(layer, BridgeSrc):
            yield _LayerPass(layer.name, True, sends=layer.key)
        elif isinstance(layer, BridgeDst):
            yield _LayerPass(layer.name, True, receives=layer.key)
        else:
            yield _LayerPass(_shown(layer), True)
    for stage in reversed(net.stages):
        layer = stage.layer
        if isinstance(layer, BridgeSrc) and layer.starts_gradient:
            yield _LayerPass(layer.name, False, receives=layer.gradient_key)
        elif isinstance(layer, BridgeDst) and layer.wants_gradient:
            yield _LayerPass(layer.name, False, sends=layer.gradient_key)
        elif stage.backward:
            yield _LayerPass(_shown(layer), False)


def _shown(layer: Layer) -> str:
    """Return the name that a layer has within the name of its segment: its own, or "" for a connection layer."""
    return "" if layer.conf.type in CONNECTIONS else layer.name


def _name(passes: Sequence[_LayerPass], number: int) -> str:
    """Return the name of the segment with these passes; ``number`` tells apart those without a named layer."""
    words = []
    for forward, direction in ((True, "forward"), (False, "backward")):
        layers = [item.layer for item in passes if item.forward is forward and item.layer]
        if layers:
            words.append(f"{direction} {layers[0]}" + (f"..{layers[-1]}" if len(layers) > 1 else ""))
    return ", ".join(words) or f"pass on {number}"
