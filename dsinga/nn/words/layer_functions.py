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
from dsinga.nn.words.activations import activate, check_activation
from dsinga.nn.words.function_specs import Derived, FunctionSpec, named
from dsinga.nn.words.image_layers import (
    DEPTHWISE,
    KERNEL,
    LENGTHS,
    of_axes,
    poolings,
    recur_images,
    require_channels_first,
)
from dsinga.nn.words.layer_adapters import (
    attend,
    compare,
    compare_forecast,
    compare_mean,
    convolve_steps,
    find_ends,
    flatten_rows,
    last_step,
    leave_out_zeros,
    numbers_of_pixels,
    overlap_of_regions,
    permuted_axes,
    recurrent,
    reshape_images,
    scores_and_labels,
    scores_of_points,
    softmax_of_scores,
)
from dsinga.nn.words.regularisers import Penalty, penalty
from dsinga.nn.writing.symbol import layer
from dsinga.nn.writing.writer import LayerWriter, Write

RECURRENT = {"hx": "kernel_initializer", "hh": "recurrent_initializer", "b": "bias_initializer"}
# The activations of cells by the names of Keras, where None is "linear", too.
CELL_ACTIVATIONS = {"sigmoid": "SIGMOID", "tanh": "TANH", "relu": "RELU", "linear": "IDENTITY", None: "IDENTITY"}


def cell(type: str, gates: int, activation: str = "", doc: str = "") -> FunctionSpec:
    """Return the form of a recurrent layer with this number of gates; ``activation`` are settings of its candidate."""
    activations = f"activation={activation} recurrent_activation=gate_activation" if activation else ""
    return FunctionSpec(
        type,
        f"units=dim_hidden {activations} use_bias=bias_term kernel_initializer recurrent_initializer "
        "bias_initializer return_sequences bidirectional carry kernel_regularizer recurrent_regularizer "
        "bias_regularizer dropout",
        {"activation": "tanh", "recurrent_activation": "sigmoid"} if activation else {},
        words=dict.fromkeys(("activation", "recurrent_activation") if activation else (), CELL_ACTIVATIONS),
        inits=RECURRENT,
        details=functools.partial(recurrent, gates=gates),
        after=last_step,
        doc=doc,
    )


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
    "Dense": FunctionSpec(
        "kInnerProduct",
        "units=num_output activation use_bias=bias_term kernel_initializer bias_initializer transpose "
        "kernel_regularizer bias_regularizer",
        inits=KERNEL,
        details=flatten_rows,
        doc="Fully connected layer with ``units`` outputs (kInnerProduct), and its activation.\n\n"
        "Of sequences (B, T, n) it computes each step, as in Keras. Images (B, C, H, W) are flattened. A weight "
        "that is transposed, (inputs, units), can share another layer's (units, inputs).",
    ),
    "Embedding": FunctionSpec(
        "kEmbedding",
        "input_dim=vocab_size output_dim=feature_dim embeddings_initializer dense_gradient embeddings_regularizer "
        "mask_zero",
        required=("output_dim",),
        inits={"weight": "embeddings_initializer"},
        details=leave_out_zeros,
        after=find_ends,
    ),
    "OneHot": FunctionSpec("kOneHot", "num_tokens=vocab_size", required=("num_tokens",), after=find_ends),
    "Dropout": FunctionSpec("kDropout", "rate=dropout_ratio unit", required=("rate",)),
    "LeakyReLU": FunctionSpec("kReLU", defaults={"negative_slope": 0.3}),
    "GELU": FunctionSpec(
        "kActivation",
        "",
        fixed={"type": "GELU"},
        doc="Gaussian error linear unit x·Φ(x), with the normal distribution Φ in its exact form (kActivation).",
    ),
    "LocalResponseNormalization": FunctionSpec(
        "kLRN", "size=local_size alpha beta k=knorm", details=require_channels_first
    ),
    **{
        name: FunctionSpec(
            "kArithmetic",
            "",
            fixed={"operator": name.upper()},
            doc=f"The {what} of two sources, number by number (kArithmetic); axes of length 1 are repeated.",
        )
        for name, what in {
            "Subtract": "difference",
            "Maximum": "larger ones",
            "Minimum": "smaller ones",
            "Average": "mean",
        }.items()
    },
    "Reshape": FunctionSpec(
        "kReshape", "target_shape=shape", required=("target_shape",), details=numbers_of_pixels, after=reshape_images
    ),
    "Permute": FunctionSpec("kPermute", "dims", required=("dims",), details=permuted_axes),
    "RepeatVector": FunctionSpec(
        "kRepeat",
        "n=times",
        required=("n",),
        doc="The feature at each of ``n`` steps (kRepeat): (B, ...) to (B, n, ...), also of images.",
    ),
    **of_axes("Images", 2, "bilinear"),
    "DepthwiseConv2D": DEPTHWISE,
    **of_axes("Volumes", 3, "trilinear"),
    "GroupNormalization": FunctionSpec(
        "kGroupNorm",
        doc="Group normalisation (kGroupNorm): each row over groups of channels, with a scale and bias for each "
        "channel.",
    ),
    "Conv1D": FunctionSpec(
        "kConvolution1D",
        "filters=num_filters kernel_size=kernel strides=stride padding activation use_bias=bias_term "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer dilation_rate=dilation groups=group",
        required=("kernel_size",),
        inits=KERNEL,
        details=convolve_steps,
        doc=f"Convolution over the steps of sequences (B, T, n), and its activation (kConvolution1D).\n\n{LENGTHS}.",
    ),
    **poolings("Max", "MAX", "Maximum"),
    **poolings("Average", "AVG", "Mean", " Padding is left out."),
    "GRU": cell("kGRU", 3, "candidate_activation"),
    "LSTM": cell(
        "kLSTM",
        4,
        "candidate_activation+cell_activation",
        "Long short-term memory over sequences (kLSTM); the bias of the forget gate begins at 0, in Keras at 1.\n\n"
        "``activation`` is that of the candidate and of the cell state.",
    ),
    "SimpleRNN": cell("kRNN", 1),
    "ConvLSTM2D": FunctionSpec(
        "kConvLSTM",
        "filters=num_filters kernel_size strides padding use_bias=bias_term kernel_initializer recurrent_initializer "
        "bias_initializer return_sequences kernel_regularizer recurrent_regularizer bias_regularizer",
        inits=RECURRENT,
        details=recur_images,
        doc="Convolutional LSTM over images (B, T, C, H, W) (kConvLSTM), with tanh and sigmoid; the bias of the forget "
        "gate begins at 0, in Keras at 1.",
    ),
    "Attention": FunctionSpec(
        "kAttention",
        "score_mode=score num_heads use_causal_mask=causal score_initializer",
        {"score_mode": "dot"},
        words={"score_mode": {"dot": "kDot", "scaled_dot": None, "additive": "kAdditive"}},
        inits={"score": "score_initializer"},
        details=attend,
        doc="Weighted means of values (kAttention), called on [query, value] or, as in Keras, on [query, value, "
        "key].\n\n"
        "The labels of a last source (B, Tk), an input of codes, give the lengths of keys and values; so do "
        "those of any fourth source.",
    ),
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
    has_activation = form.settings(None).get("activation") == ["activation"]

    def function(**arguments: Any) -> Write:
        values = form.values(name, arguments)
        activation = values.get("activation") if has_activation else None
        check_activation(name, activation)
        fields = form.fields(name, conf, values)
        inits = {role: values.get(init, init) for role, init in form.inits.items()}
        penalties = penalties_of(form, values)

        def write(writer: LayerWriter) -> Any:
            more = (details and details(writer, values)) or {}
            written = form.fields(name, conf, values, more) if more else fields
            others = {key: value for key, value in more.items() if conf is None or key not in conf._types}
            feature = writer.add(form.type, inits=inits, penalties=penalties, **others, **written)
            feature = feature if form.after is None else form.after(writer, feature, values)
            return activate(writer, feature, activation)._replace(flat=form.flat or feature.flat)

        return write

    return layer(named(function, name, form, cls))


def details_of_loss(cls: Any) -> Callable[[LayerWriter, Mapping[str, Any]], Any] | None:
    """Return what finds the sources and the scale of a loss whose form does not say so; None for other layers."""
    if issubclass(cls, PairLoss):
        return compare_forecast if cls.predicts_several else compare
    return functools.partial(scores_and_labels, optional=cls.optional_sources) if cls.labels.of_scores else None


def penalties_of(form: FunctionSpec, values: Mapping[str, Any]) -> dict[str, Penalty]:
    """Return the penalties of params by role: those of the regularizers beside the initializers of a form."""
    names = {role: init.replace("_initializer", "_regularizer") for role, init in form.inits.items()}
    return {role: penalty(values[name]) for role, name in names.items() if values.get(name) is not None}


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
