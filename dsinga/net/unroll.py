"""Unrolls recurrent nets over time steps: copies of layers, joined by SINGA's rules (RNN page of 0.3).

Where it can, a chain of copies is merged into one layer that computes whole sequences: the same numbers in fewer and
larger operations. ``dsinga show`` says how many steps each layer has. Copies stay where a ``shift`` joins different
steps, for batch normalisation, and for layers that hand out parts. Copies also stay if a layer that is not unrolled
reads them.

The loss of an unrolled net is the mean over rows and steps. Its gradient is SINGA's, of the sum over steps of means
over the batch, so learning rates and clipping of a SINGA job keep their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dsinga.job import JobError, LayerConf, LayerType, NetConf, ParamConf, UnrollConnType
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import RecordInfo
from dsinga.layers.interface.contract import MustUnroll, copy_name, make_layer
from dsinga.layers.interface.declarations import SourceKind
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.net.layer_classes import layer_class

MOST_COPIES = 50_000  # of all layers of a net


def unroll(conf: NetConf) -> NetConf:
    """Copy each layer once for each of its ``unroll_len`` time steps, and connect the copies.

    Copy i of layer x is called ``i#x`` and has ``unroll_index`` i; a layer that is not unrolled becomes ``0#x``.
    ``unroll_conn_type`` determines the sources of copy i:

    - kUnrollOneToOne (default): copy i - ``shift``, none if i < ``shift``.
    - kUnrollOneToAll: all copies.
    - kUnrollFirstToLast: the last copy, for copy 0 only.

    A recurrent layer also reads its previous copy. Copies share the params of copy 0, which keep their names in the
    job.

    Raises JobError, naming layer and field, if a copy needs a step that its source lacks.
    """
    lengths = step_counts(conf)
    if set(lengths.values()) <= {1}:
        return conf
    if sum(lengths.values()) > MOST_COPIES:
        longest = max(conf.layer, key=lambda layer: lengths[layer.name])
        raise longest.error(
            f"layer {longest.name!r}: unrolled, the net would have {sum(lengths.values()):,} layers, more than "
            f"{MOST_COPIES:,}; use a smaller unroll_len, or layers of whole sequences (per_step)"
        )
    copies = [
        _copy(layer, step, lengths[layer.name], _sources(layer, step, lengths))
        for layer in conf.layer
        for step in range(lengths[layer.name])
    ]
    return conf.replace(layer=copies, unroll_len=1)


def with_own_names(copies: NetConf, conf: NetConf) -> NetConf:
    """Give layers without copies their own names again, in place of ``0#name``."""
    names = {copy_name(0, name): name for name, steps in step_counts(conf).items() if steps == 1}
    layers = [
        layer.replace(
            name=names.get(layer.name, layer.name), srclayers=[names.get(name, name) for name in layer.srclayers]
        )
        for layer in copies.layer
    ]
    return copies.replace(layer=layers)


def step_counts(conf: NetConf) -> dict[str, int]:
    """Return how many time steps each layer has, by name."""
    lengths = {layer.name: conf.unroll_len if layer.unroll_len is None else layer.unroll_len for layer in conf.layer}
    texts = {layer.name: layer.char_rnn_conf for layer in conf.layer if layer.type is LayerType.kCharRNN}
    for layer in conf.layer:
        if lengths[layer.name] > 1 and layer_class(layer).is_input:
            raise layer.error(
                f"layer {layer.name!r} reads whole sequences and cannot be unrolled; give it unroll_len: 1, and the "
                "layers that take it unroll_conn_type: kUnrollOneToAll",
                "unroll_len",
            )
        for text in (texts[source] for source in layer.srclayers if texts.get(source)):
            if text and lengths[layer.name] not in (1, text.unroll_len):
                raise text.error(
                    f"the text is read {text.unroll_len} characters at a time, but layer {layer.name!r} has "
                    f"{lengths[layer.name]} steps; give char_rnn_conf and the net the same unroll_len",
                    "unroll_len",
                )
    return lengths


def connection(layer: LayerConf, source: int) -> tuple[UnrollConnType, int]:
    """Return which time steps of a source the copies of a layer read, and their shift."""
    kind = layer.unroll_conn_type[source] if layer.unroll_conn_type else UnrollConnType.kUnrollOneToOne
    if kind is UnrollConnType.kUnrollCustomized:
        raise _fault(
            layer,
            "kUnrollCustomized has no meaning: SINGA never gave it one; use kUnrollOneToOne with a shift, "
            "kUnrollOneToAll or kUnrollFirstToLast",
            "unroll_conn_type",
            source,
        )
    shift = layer.shift[source] if layer.shift else 0
    if shift and kind is not UnrollConnType.kUnrollOneToOne:
        raise _fault(layer, f"shift has no effect beside {kind.name}; leave it 0", "shift", source)
    return kind, shift


def _sources(layer: LayerConf, step: int, lengths: dict[str, int]) -> list[str]:
    names: list[str] = []
    for k, source in enumerate(layer.srclayers):
        kind, shift = connection(layer, k)
        if kind is UnrollConnType.kUnrollOneToAll:
            names += [copy_name(source_step, source) for source_step in range(lengths[source])]
        elif kind is UnrollConnType.kUnrollFirstToLast:
            names += [copy_name(lengths[source] - 1, source)] if step == 0 else []
        else:
            _check_steps(layer, k, shift, lengths)
            names += [copy_name(step - shift, source)] if step >= shift else []
    if step and layer_class(layer).source_kind is SourceKind.kRecurrent:
        names.append(copy_name(step - 1, layer.name))
    return names


def _check_steps(layer: LayerConf, source: int, shift: int, lengths: dict[str, int]) -> None:
    """Raise JobError if copies of a layer cannot be joined one to one with copies of its source."""
    name, steps = layer.srclayers[source], lengths[layer.name]
    source_steps = lengths[name]
    if shift >= steps:
        count = f"{steps} steps" if steps > 1 else "1 step"
        raise _fault(
            layer, f"shift: {shift} must be less than its {count}; else it never takes {name!r}", "shift", source
        )
    if steps - shift > source_steps:
        one_step = source_steps == 1
        remedy = "unroll_conn_type: kUnrollOneToAll gives it to each step" if one_step else "give both one unroll_len"
        text = f"has {steps} steps, but its source {name!r} has {source_steps}; {remedy}"
        raise _fault(layer, text, "srclayers", source)


def _copy(layer: LayerConf, step: int, steps: int, srclayers: Sequence[str]) -> LayerConf:
    return layer.replace(
        name=copy_name(step, layer.name),
        srclayers=list(srclayers),
        param=[_copy_param(param, step) for param in layer.param],
        unroll_len=None,
        unroll_index=step if steps > 1 else None,
        per_step=layer.per_step and steps == 1,
        unroll_conn_type=[],
        shift=[],
    )


def _copy_param(param: ParamConf, step: int) -> ParamConf:
    if step == 0 or not param.name or param.name == param.share_from:
        return param
    return param.replace(name=copy_name(step, param.name), share_from=param.share_from or param.name)


def _fault(layer: LayerConf, message: str, field: str, item: int) -> JobError:
    return layer.error(f"layer {layer.name!r}: {message}", field, item)


def merge_copies(conf: NetConf) -> NetConf:
    """Replace the copies of each layer by one layer that computes all time steps, which is faster.

    Every copy must read the same step of its sources, or sources that are not unrolled. Other layers can read a chain
    only if they compute whole sequences. Raises MustUnroll, with the reason, for any other net.
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
    """Raise MustUnroll unless a layer reads its source step by step."""
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
    """Make the layer that computes all time steps of sequences.

    It is a ``cls`` if that computes whole sequences, else a :class:`TimeDistributed`. Raises MustUnroll if the steps
    cannot be computed together.
    """
    if cls.source_kind.over_steps or (layer.unroll_len is None and not layer.per_step):
        return make_layer(cls, layer, shapes, info)
    if layer.unroll_len is None:
        return _make_per_step(cls, layer, shapes)
    from dsinga.layers.sequences.timedistributed import TimeDistributed

    return TimeDistributed(
        cls, layer, shapes, layer.unroll_len, [named[name].unroll_len is None for name in layer.srclayers]
    )


def _make_per_step(cls: type[Layer], layer: LayerConf, shapes: Sequence[Shape]) -> Layer:
    least = 2 if cls.labels.source == 0 else 3  # the shape of labels has no axis of features
    if not shapes or len(shapes[0]) < least:
        gives = f"takes {shape_text(shapes[0])}" if shapes else "has no source"
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
                f"{name!r} gives {shape_text(shape)}",
                "srclayers",
            )
    from dsinga.layers.sequences.timedistributed import TimeDistributed

    try:
        return TimeDistributed(cls, layer, shapes, shapes[0][1], repeated)
    except MustUnroll as error:
        raise layer.error(f"{error}: it cannot be computed per_step", "per_step") from None
