"""Merges the copies of unrolled layers: a chain of copies becomes one layer that computes whole sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dsinga.job import LayerConf, NetConf, UnrollConnType
from dsinga.layers.interface.context import RecordInfo
from dsinga.layers.interface.contract import make_layer
from dsinga.layers.interface.layer import Layer, Shape, as_text
from dsinga.layers.sequences.timedistributed import MustUnroll, TimeDistributed
from dsinga.net.layer_classes import layer_class
from dsinga.net.unroll import connection, step_counts


def merge_copies(conf: NetConf) -> NetConf:
    """Return the net with each chain of copies as one layer of ``unroll_len`` T; ``conf`` has the layers of one phase.

    Layers that are not unrolled get ``unroll_len`` None. Every copy must take the same step of its sources
    (kUnrollOneToOne without shift), or sources that are not unrolled (kUnrollOneToAll). A layer that is not unrolled
    can take a chain only if it computes whole sequences. Raises MustUnroll, with the reason, for any other net.
    """
    lengths = step_counts(conf)
    for layer in conf.layer:
        for k, source in enumerate(layer.srclayers):
            _check_edge(layer, k, lengths[layer.name], lengths[source])
    merged = [
        layer.replace(
            unroll_len=lengths[layer.name] if lengths[layer.name] > 1 else None, unroll_conn_type=[], shift=[]
        )
        for layer in conf.layer
    ]
    return conf.replace(layer=merged, unroll_len=1)


def _check_edge(layer: LayerConf, index: int, steps: int, source_steps: int) -> None:
    """Raise MustUnroll where a source, which has ``source_steps`` steps, is not taken step by step."""
    kind, shift = connection(layer, index)
    edge = f"layer {layer.name!r} takes {layer.srclayers[index]!r} by {kind.name}"
    if steps == source_steps == 1:
        return
    if steps == 1:
        if not (kind is UnrollConnType.kUnrollOneToAll and layer_class(layer).source_kind.over_steps):
            raise MustUnroll(f"{edge}, and computes no sequences")
    elif source_steps == 1:
        if kind is not UnrollConnType.kUnrollOneToAll:
            raise MustUnroll(edge)
    elif steps != source_steps or kind is not UnrollConnType.kUnrollOneToOne or shift:
        raise MustUnroll(f"{edge}, shift {shift}, over {source_steps} steps")


def make_sequence_layer(
    cls: type[Layer], layer: LayerConf, shapes: Sequence[Shape], info: RecordInfo | None, named: Mapping[str, LayerConf]
) -> Layer:
    """Return the layer that computes all steps of a chain, or of whole sequences if the job says ``per_step``.

    It is of class ``cls`` if this computes whole sequences or there are none, else :class:`TimeDistributed`. ``named``
    are the layers of the net by name. Raises MustUnroll where the steps cannot be computed together.
    """
    if cls.source_kind.over_steps or (layer.unroll_len is None and not layer.per_step):
        return make_layer(cls, layer, shapes, info)
    if layer.unroll_len is None:
        return _make_per_step(cls, layer, shapes)
    return TimeDistributed(
        cls, layer, shapes, layer.unroll_len, [named[name].unroll_len is None for name in layer.srclayers]
    )


def _make_per_step(cls: type[Layer], layer: LayerConf, shapes: Sequence[Shape]) -> Layer:
    """Return the layer that computes each step of whole sequences; raise JobError where it cannot."""
    least = 2 if cls.labels.source == 0 else 3  # the shape of labels has no axis of features
    if not shapes or len(shapes[0]) < least:
        gives = f"takes {as_text(shapes[0])}" if shapes else "has no source"
        raise layer.error(
            f"layer {layer.name!r}: per_step needs a source of sequences (batch, steps, ...), but the layer {gives}; "
            "leave per_step out",
            "per_step",
        )
    # A weight for each row, a further source of losses, is that of all its steps.
    steps, own = shapes[0][1], cls.source_count
    repeated = [own is not None and k >= own and math.prod(shape[1:]) == 1 != steps for k, shape in enumerate(shapes)]
    for k, (name, shape) in enumerate(zip(layer.srclayers, shapes, strict=True)):
        if k != cls.labels.source and not repeated[k] and shape[1:2] != shapes[0][1:2]:
            raise layer.error(
                f"layer {layer.name!r}: per_step needs {shapes[0][1]} steps (batch, steps, ...) from every source, but "
                f"{name!r} gives {as_text(shape)}",
                "srclayers",
            )
    try:
        return TimeDistributed(cls, layer, shapes, shapes[0][1], repeated)
    except MustUnroll as error:
        raise layer.error(f"{error}: it cannot be computed per_step", "per_step") from None
