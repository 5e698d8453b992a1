"""Writes a loss of ``nn`` into a job: checks its sources, reads scores before a softmax, scales sums to means."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from dsinga.job import Phase
from dsinga.layers.losses.pair_loss import PairLoss
from dsinga.nn.writing.feature import Feature, row_shape
from dsinga.nn.writing.writer import LayerWriter, NetWriter, Write, layer_settings

Sources = Callable[[LayerWriter], list[Feature]]
Numbers = Callable[[LayerWriter, Feature], float]


def write_loss(
    function: str,
    type: str,
    sources: Sources,
    settings: Mapping[str, Any],
    numbers: Numbers | None = None,
    inits: Mapping[str, Any] = {},
) -> Write:
    """Return a function that writes a loss layer into a job."""
    conf = layer_settings(function, type, settings)

    def write(writer: LayerWriter) -> Feature:
        found = sources(writer)
        if numbers is None:
            return writer.add(type, sources=found, inits=inits, **conf)
        scale = settings.get("scale", 1.0) / numbers(writer, found[0])
        return writer.add(type, sources=found, **layer_settings(function, type, {**settings, "scale": scale}))

    return write


def write_derived_loss(function: str, type: str, cls: Any, settings: Mapping[str, Any]) -> Write | None:
    """Return a function that writes a user's loss into a job; None if its sources need no change."""
    if issubclass(cls, PairLoss) and cls.predicts_several:
        count = max(1, cls.forecast_form(settings).count)
        numbers = functools.partial(numbers_of_target, count=count)
        return write_loss(function, type, outputs_and_targets, settings, numbers)
    if issubclass(cls, PairLoss):
        weighted = settings.get("weighted", False)
        return write_loss(function, type, functools.partial(compared, weighted=weighted), settings)
    if cls.labels.of_scores:
        sources = functools.partial(scores_and_labels, optional=cls.optional_sources)
        return write_loss(function, type, sources, settings)
    return None


def numbers_of_target(writer: LayerWriter, outputs: Feature, count: int = 1) -> float:
    """Count the numbers of a target's row; the outputs have ``count`` for each."""
    return math.prod(writer.rows(outputs)) / count


def points_of_row(writer: LayerWriter, scores: Feature) -> int:
    """Count the points of a row of scores (B, K, *space)."""
    return math.prod(writer.rows(scores)[1:])


def scores_and_labels(
    writer: LayerWriter, activations: tuple[str, ...] = ("softmax",), optional: int = 0
) -> list[Feature]:
    """Return a loss's sources: scores before a final activation, labels, and up to ``optional`` more."""
    if not 2 <= len(writer.sources) <= 2 + optional:
        raise writer.fail(
            f"takes scores and labels, not {len(writer.sources)} sources: nn.{writer.builder.kind}()(scores, labels=x) "
            "takes those of the input x"
        )
    scores, *others = writer.sources
    for activation in activations:
        scores = take_before(writer.net, scores, activation)
    return [scores, *others]


def outputs_and_targets(writer: LayerWriter) -> list[Feature]:
    """Return outputs, targets and optional row weights, for a loss that checks their sizes itself."""
    if len(writer.sources) not in (2, 3):
        raise writer.fail(f"takes outputs and targets, not {len(writer.sources)} sources")
    return list(writer.sources)


def compared(writer: LayerWriter, activation: str | None = None, weighted: bool = False) -> list[Feature]:
    """Return a loss's sources: outputs before an activation, and the labels or tensor to compare with."""
    outputs, target, *weights = outputs_and_targets(writer)
    outputs = outputs if activation is None else take_before(writer.net, outputs, activation)
    shape, expected = row_shape(target), row_shape(outputs)
    if weighted:  # the layer itself checks the channels of fields
        expected = None
    if shape is not None and expected is not None and math.prod(shape) != math.prod(expected):
        if len(shape) == len(expected) > 2 and shape[1:] != expected[1:]:
            raise writer.fail(
                f"compares {outputs.layer!r}, {expected}, with {target.layer!r}, {shape}; give the layers "
                'padding="same", or targets of the first shape'
            )
        has_weights = len(shape) > 1 and shape == (expected[0] + 1, *expected[1:])
        or_weighted = ", or the loss weighted=True if its last channel has the weights of points" if has_weights else ""
        if len(shape) == len(expected) > 1 and shape[0] == expected[0]:  # fields: only their space differs
            raise writer.fail(
                f"compares {outputs.layer!r}, {expected}, with {target.layer!r}, {shape}: the points differ; give "
                'convolutions padding="same", and upsample where a layer makes fields smaller'
            )
        raise writer.fail(
            f"compares {outputs.layer!r}, {math.prod(expected)} numbers a row, with {target.layer!r}, "
            f"{math.prod(shape)}; give the last layer as many outputs as the target has{or_weighted}"
        )
    if shape is not None and expected is not None and shape != expected and shape == (*expected[1:], expected[0]):
        raise writer.fail(
            f"compares {outputs.layer!r}, {expected}, with {target.layer!r}, {shape}, whose channels are last; "
            'give y as an array, and begin with nn.Input(..., data_format="channels_last")'
        )
    return [outputs, target, *weights]


def take_before(net: NetWriter, feature: Feature, activation: str) -> Feature:
    """Return the scores before a final softmax or sigmoid, which the loss computes itself."""
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
