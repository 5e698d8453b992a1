"""The functions of layers that follow from their classes: ``nn.PReLU(slope=0.1)`` of a layer kPReLU, also a user's.

A function takes the settings that the layer's class declares. ``FORMS`` are those that Keras calls otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from dsinga.job.component import Settings
from dsinga.layers.connect.bridge import Bridge
from dsinga.layers.interface.layer import Layer
from dsinga.layers.losses.pair_loss import PairLoss
from dsinga.nn.words.function_specs import Derived, FunctionSpec, named
from dsinga.nn.words.layer_adapters import (
    compare,
    compare_forecast,
    compare_mean,
    overlap_of_regions,
    scores_and_labels,
    scores_of_points,
    softmax_of_scores,
)
from dsinga.nn.writing.symbol import layer
from dsinga.nn.writing.writer import LayerWriter, Write


def mean_loss(type: str, what: str, first: str = "") -> FunctionSpec:
    """Return the form of a loss of differences that is a mean over the numbers of a row, as in Keras."""
    return FunctionSpec(
        type,
        f"{first}masked weighted std scale",
        details=compare_mean,
        doc=f"{what} as a mean over the numbers of a row ({type}); of fields over all their points.\n\n"
        "The mean divides by the number of all points, masked ones included. The weights of points have the mean 1.",
    )


FORMS = {
    "SoftmaxLoss": FunctionSpec(
        "kSoftmaxLoss",
        details=softmax_of_scores,
        doc="Softmax and cross-entropy with labels of classes (kSoftmaxLoss), of sequences step by step.\n\n"
        "It takes the scores before a softmax; of a softmax it takes the source. It reports the accuracy, too.",
    ),
    "MeanSquaredError": mean_loss("kEuclideanLoss", "Squared error"),
    "MeanAbsoluteError": mean_loss("kAbsoluteLoss", "Absolute error"),
    "FieldSoftmaxLoss": FunctionSpec(
        "kFieldSoftmaxLoss",
        details=scores_of_points,
        doc="Softmax and cross-entropy with a class for each point, as a mean over points (kFieldSoftmaxLoss).\n\n"
        "It takes scores (B, K, *space) and labels (B, *space) or (B, 1, *space); points with the label -1 or NaN are "
        "left out, but counted in the divisor. It reports the accuracy, too.",
    ),
    "Dice": FunctionSpec(
        "kDiceLoss",
        details=overlap_of_regions,
        doc="Soft Dice loss of scores (B, K, *space) and a class for each point, a mean over rows and classes "
        "(kDiceLoss).\n\nOne channel is the score of class 1 of two. Points with the label -1 or NaN are left out.",
    ),
    "Huber": mean_loss("kHuberLoss", "Huber's loss", "delta "),
    "HingeLoss": FunctionSpec("kHingeLoss", defaults={"norm": "L1"}),
    "SigmoidCrossEntropyLoss": FunctionSpec(
        "kSigmoidCrossEntropyLoss", details=functools.partial(compare, activation="sigmoid")
    ),
    "FocalLoss": FunctionSpec("kFocalLoss", details=functools.partial(compare, activation="sigmoid")),
    "KLDivergenceLoss": FunctionSpec("kKLDivergenceLoss", details=functools.partial(compare, activation="softmax")),
    "ClassSoftmaxLoss": FunctionSpec(
        "kClassSoftmaxLoss",
        required=("class_start",),
        inits={"word": "random_uniform", "class": "random_uniform"},
    ),
    "SampledLoss": FunctionSpec("kSampledLoss", inits={"weight": "random_uniform"}),
}


def layer_function(name: str, form: FunctionSpec, cls: Any) -> Any:
    """Return the function called ``name`` that makes layers of a class."""
    conf: type[Settings] | None = getattr(cls, "Conf", None)
    details = form.details or details_of_loss(cls)

    def function(**arguments: Any) -> Write:
        values = {**form.defaults, **arguments}
        fields = form.fields(name, conf, values)

        def write(writer: LayerWriter) -> Any:
            more = (details and details(writer, values)) or {}
            written = form.fields(name, conf, values, more) if more else fields
            others = {key: value for key, value in more.items() if conf is None or key not in conf._types}
            return writer.add(form.type, inits=form.inits, **others, **written)

        return write

    return layer(named(function, name, form, cls))


def details_of_loss(cls: Any) -> Callable[[LayerWriter, Mapping[str, Any]], Any] | None:
    """Return what finds the sources and the scale of a loss whose form does not say so; None for other layers."""
    if issubclass(cls, PairLoss):
        return compare_forecast if cls.predicts_several else compare
    return functools.partial(scores_and_labels, optional=cls.optional_sources) if cls.labels.of_scores else None


def is_of_nets(cls: Any) -> bool:
    """Whether a layer computes a feature from those of others; nn.Input and partitioning make the other layers."""
    return issubclass(cls, Layer) and not issubclass(cls, Bridge) and not (cls.is_input or cls.is_output)


layer_functions = Derived(
    "layer",
    layer_function,
    FORMS,
    # Whose names mean something else in Keras, or nothing: nn has Conv1D, ConvLSTM2D, RepeatVector, SimpleRNN, Dice,
    # Lambda and the indexing of features.
    otherwise=("kConvolution1D", "kConvLSTM", "kRepeat", "kRNN", "kDiceLoss", "kFunction", "kIndex"),
    takes=is_of_nets,
)
