"""What a layer's function does beyond giving settings: shapes that it needs, and sources in order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dsinga.base.registry import lookup
from dsinga.job import Phase
from dsinga.nn.writing.feature import Feature, row_shape
from dsinga.nn.writing.writer import LayerWriter, NetWriter

Values = Mapping[str, Any]  # the arguments of the function


def scores_and_labels(writer: LayerWriter, values: Values, optional: int = 0) -> dict[str, Any]:
    """Return the sources of a loss: the scores before a softmax, what has the labels, and at most ``optional`` more."""
    if not 2 <= len(writer.sources) <= 2 + optional:
        raise writer.fail(
            f"takes scores and labels, not {len(writer.sources)} sources: nn.{writer.builder.kind}()(scores, labels=x) "
            "takes those of the input x"
        )
    scores, *others = writer.sources
    return {"sources": [take_before(writer.net, scores, "softmax"), *others]}


def scores_of_points(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of a loss of the classes of points, and the scale that makes a sum over points their mean."""
    fields = scores_and_labels(writer, values)
    return {**fields, "scale": values.get("scale", 1.0) / math.prod(writer.rows(fields["sources"][0])[1:])}


def overlap_of_regions(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of a Dice loss: the scores before a final sigmoid, and what has the labels."""
    scores, *others = scores_and_labels(writer, values)["sources"]
    return {"sources": [take_before(writer.net, scores, "sigmoid"), *others]}


def softmax_of_scores(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of a softmax loss, and that it is applied to each step of sequences."""
    sources = scores_and_labels(writer, values)["sources"]
    return {"sources": sources, "per_step": True if len(row_shape(sources[0]) or ()) == 2 else None}


def compare(writer: LayerWriter, values: Values, activation: str | None = None) -> dict[str, Any]:
    """Return the sources of a loss that compares outputs, before an activation, with labels or another feature."""
    if len(writer.sources) not in (2, 3):
        raise writer.fail(f"takes outputs and targets, not {len(writer.sources)} sources")
    outputs, target, *weights = writer.sources
    outputs = outputs if activation is None else take_before(writer.net, outputs, activation)
    shape, expected = row_shape(target), row_shape(outputs)
    if values.get("weighted"):  # the layer itself checks the channels of fields
        expected = None
    if shape is not None and expected is not None and math.prod(shape) != math.prod(expected):
        has_weights = len(shape) > 1 and shape == (expected[0] + 1, *expected[1:])
        or_weighted = ", or the loss weighted=True if its last channel has the weights of points" if has_weights else ""
        raise writer.fail(
            f"compares {outputs.layer!r}, {math.prod(expected)} numbers a row, with {target.layer!r}, "
            f"{math.prod(shape)}; give the last layer as many outputs as the target has{or_weighted}"
        )
    if shape is not None and expected is not None and shape != expected and shape == (*expected[1:], expected[0]):
        raise writer.fail(
            f"compares {outputs.layer!r}, {expected}, with {target.layer!r}, {shape}, whose channels are last; "
            'give y as an array, and begin with nn.Input(..., data_format="channels_last")'
        )
    return {"sources": [outputs, target, *weights]}


def compare_mean(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return what :func:`compare` does, and the scale that makes the sum over the numbers of a row their mean."""
    fields = compare(writer, values)
    return {**fields, "scale": values.get("scale", 1.0) / math.prod(writer.rows(fields["sources"][0]))}


def compare_forecast(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the sources of a loss of several numbers for each number of the target, and the scale of their mean.

    The sum over the numbers of the target becomes their mean. The layer itself checks the sizes.
    """
    if len(writer.sources) not in (2, 3):
        raise writer.fail(f"takes outputs and targets, not {len(writer.sources)} sources")
    cls: Any = lookup("layer", f"k{writer.builder.kind}")
    numbers = math.prod(writer.rows(writer.sources[0])) / max(1, cls.forecast_form(values).count)
    return {"sources": [*writer.sources], "scale": values.get("scale", 1.0) / numbers}


def take_before(net: NetWriter, feature: Feature, activation: str) -> Feature:
    """Return the feature before a final softmax or sigmoid, which the loss computes itself; it stays for predictions.

    The activation's layer is left out of training where no other layer takes it.
    """
    before = feature.before
    if before is None:
        return feature
    conf = next(conf for conf in net.layers if conf.name == feature.layer)
    function = "softmax" if conf.type_name == "kSoftmax" else "sigmoid"
    if function != activation:
        return feature
    taken = any(feature.layer in layer_conf.srclayers for layer_conf in net.layers)
    if not taken and not conf.include and not conf.exclude:
        conf.exclude = [Phase.kTrain]
    return before
