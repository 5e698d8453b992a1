"""The functions of layers that follow from their classes: ``nn.PReLU(slope=0.1)`` of a layer kPReLU, also a user's.

A function takes the settings that the layer's class declares. ``FORMS`` are those that Keras calls otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from dsinga.job.component import Settings
from dsinga.layers.base import Layer
from dsinga.layers.bridge import Bridge
from dsinga.layers.loss import PairLoss
from dsinga.nn.activations import activate, check_activation
from dsinga.nn.field_details import convolve_transposed, crop_images, pad_images, upsample_images
from dsinga.nn.forms import Derived, Form, named
from dsinga.nn.layer_details import (
    attend,
    compare,
    convolve,
    convolve_steps,
    flatten_rows,
    last_step,
    pool_images,
    recur_images,
    recurrent,
    require_channels_first,
    require_images,
    require_volumes,
    scores_and_labels,
    softmax_of_scores,
)
from dsinga.nn.regularisers import Penalty, penalty
from dsinga.nn.symbol import layer
from dsinga.nn.writer import LayerWriter, Write

RECURRENT = {"hx": "kernel_initializer", "hh": "recurrent_initializer", "b": "bias_initializer"}
KERNEL = {"weight": "kernel_initializer", "bias": "bias_initializer"}
# The activations of cells by the names of Keras, where None is "linear", too.
CELL_ACTIVATIONS = {"sigmoid": "SIGMOID", "tanh": "TANH", "relu": "RELU", "linear": "IDENTITY", None: "IDENTITY"}
LENGTHS = "A second source gives the lengths of the sequences"


def poolings(name: str, pool: str, what: str, note: str = "") -> dict[str, Form]:
    """Return the forms of the layers that pool windows, or all, of images and of sequences by one method."""
    window, every, fixed = "``strides`` are ``pool_size`` by default, as in Keras.", "global_pooling", {"pool": pool}
    return {
        f"{name}Pooling2D": Form(
            "kPooling",
            "pool_size strides padding",
            {"strides": None},
            fixed,
            details=functools.partial(pool_images, pool=pool),
            doc=f"{what} of each window of images (kPooling); {window}{note}",
        ),
        f"{name}Pooling3D": Form(
            "kPooling",
            "pool_size strides padding",
            {"strides": None},
            fixed,
            details=functools.partial(pool_images, pool=pool, axes=3),
            doc=f"{what} of each window of volumes (B, C, D, H, W) (kPooling); {window}{note}",
        ),
        f"{name}Pooling1D": Form(
            "kPooling1D",
            "pool_size=kernel strides=stride",
            {"pool_size": 2, "strides": None},
            fixed,
            doc=f"{what} of each window of steps before the end of a sequence (kPooling1D); {window}",
        ),
        f"Global{name}Pooling2D": Form(
            "kPooling",
            "",
            fixed={**fixed, every: True},
            details=require_images,
            flat=True,
            doc=f"{what} of each channel of images (kPooling): (B, C).",
        ),
        f"Global{name}Pooling3D": Form(
            "kPooling",
            "",
            fixed={**fixed, every: True},
            details=require_volumes,
            flat=True,
            doc=f"{what} of each channel of volumes (kPooling): (B, C).",
        ),
        f"Global{name}Pooling1D": Form(
            "kPooling1D",
            "",
            fixed=fixed,
            doc=f"{what} of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n).\n\n"
            f"{LENGTHS}; without it they have all T steps.",
        ),
    }


def cell(type: str, gates: int, activation: str = "", doc: str = "") -> Form:
    """Return the form of a recurrent layer with this number of gates; ``activation`` are settings of its candidate."""
    activations = f"activation={activation} recurrent_activation=gate_activation" if activation else ""
    return Form(
        type,
        f"units=dim_hidden {activations} use_bias=bias_term kernel_initializer recurrent_initializer "
        "bias_initializer return_sequences bidirectional carry kernel_regularizer recurrent_regularizer "
        "bias_regularizer",
        {"activation": "tanh", "recurrent_activation": "sigmoid"} if activation else {},
        words=dict.fromkeys(("activation", "recurrent_activation") if activation else (), CELL_ACTIVATIONS),
        inits=RECURRENT,
        details=functools.partial(recurrent, gates=gates),
        after=last_step,
        doc=doc,
    )


FORMS = {
    "Dense": Form(
        "kInnerProduct",
        "units=num_output activation use_bias=bias_term kernel_initializer bias_initializer transpose "
        "kernel_regularizer bias_regularizer",
        inits=KERNEL,
        details=flatten_rows,
        doc="Fully connected layer with ``units`` outputs (kInnerProduct), and its activation.\n\n"
        "Of sequences (B, T, n) it computes each step, as in Keras. Images (B, C, H, W) are flattened. A weight "
        "that is transposed, (inputs, units), can share another layer's (units, inputs).",
    ),
    "Embedding": Form(
        "kEmbedding",
        "input_dim=vocab_size output_dim=feature_dim embeddings_initializer dense_gradient embeddings_regularizer",
        required=("output_dim",),
        inits={"weight": "embeddings_initializer"},
    ),
    "OneHot": Form("kOneHot", "num_tokens=vocab_size", required=("num_tokens",)),
    "Dropout": Form("kDropout", "rate=dropout_ratio ...", required=("rate",)),
    "SpatialDropout2D": Form("kDropout", "rate=dropout_ratio", fixed={"unit": "kChannel"}, required=("rate",)),
    "LeakyReLU": Form("kReLU", defaults={"negative_slope": 0.3}),
    "GELU": Form(
        "kActivation",
        "",
        fixed={"type": "GELU"},
        doc="Gaussian error linear unit x·Φ(x), with the normal distribution Φ in its exact form (kActivation).",
    ),
    "LocalResponseNormalization": Form("kLRN", "size=local_size alpha beta k=knorm", details=require_channels_first),
    "Reshape": Form("kReshape", "target_shape=shape", required=("target_shape",)),
    "Permute": Form("kPermute", "dims", required=("dims",)),
    "RepeatVector": Form(
        "kRepeat",
        "n=times",
        required=("n",),
        doc="The feature at each of ``n`` steps (kRepeat): (B, ...) to (B, n, ...), also of images.",
    ),
    "Padding2D": Form(
        "kPadding",
        "padding padding_mode",
        {"padding": 1},
        details=pad_images,
        doc="Images with pixels added on every side (kPadding): zeros, the edge, a mirror image, or the opposite side.",
    ),
    "ZeroPadding2D": Form(
        "kPadding",
        "padding",
        {"padding": 1},
        details=pad_images,
        doc="Images with ``padding`` pixels of zeros on every side (kPadding).",
    ),
    "Cropping2D": Form(
        "kCropping",
        "cropping",
        {"cropping": 0},
        details=crop_images,
        doc="Images without their outermost pixels (kCropping).",
    ),
    "UpSampling2D": Form(
        "kUpsampling",
        "size interpolation=method",
        {"size": 2, "interpolation": "nearest"},
        words={"interpolation": {"nearest": None, "bilinear": "kLinear"}},
        details=upsample_images,
        doc="Images with ``size`` times as many pixels, repeated or interpolated (kUpsampling).",
    ),
    "GroupNormalization": Form(
        "kGroupNorm",
        doc="Group normalisation (kGroupNorm): each row over groups of channels, with a scale and bias for each "
        "channel.",
    ),
    "Conv2DTranspose": Form(
        "kTransposedConvolution",
        "filters=num_filters kernel_size strides padding output_padding activation use_bias=bias_term "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer",
        inits=KERNEL,
        details=convolve_transposed,
        doc="Transposed convolution of images, and its activation (kTransposedConvolution): images become ``strides`` "
        "times as large.\n\nAs a number ``padding`` says how many pixels of the result are left out on each side.",
    ),
    "Conv2D": Form(
        "kConvolution",
        "filters=num_filters kernel_size strides padding activation use_bias=bias_term kernel_initializer "
        "bias_initializer kernel_regularizer bias_regularizer",
        inits=KERNEL,
        details=convolve,
    ),
    "Conv3D": Form(
        "kConvolution",
        "filters=num_filters kernel_size strides padding activation use_bias=bias_term kernel_initializer "
        "bias_initializer kernel_regularizer bias_regularizer",
        inits=KERNEL,
        details=functools.partial(convolve, axes=3),
        doc="Convolution of volumes (B, C, D, H, W), and its activation (kConvolution).",
    ),
    "Conv1D": Form(
        "kConvolution1D",
        "filters=num_filters kernel_size=kernel strides=stride padding activation use_bias=bias_term "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer",
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
    "ConvLSTM2D": Form(
        "kConvLSTM",
        "filters=num_filters kernel_size strides padding use_bias=bias_term kernel_initializer recurrent_initializer "
        "bias_initializer return_sequences kernel_regularizer recurrent_regularizer bias_regularizer",
        inits=RECURRENT,
        details=recur_images,
        doc="Convolutional LSTM over images (B, T, C, H, W) (kConvLSTM), with tanh and sigmoid; the bias of the forget "
        "gate begins at 0, in Keras at 1.",
    ),
    "Attention": Form(
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
    "SoftmaxLoss": Form(
        "kSoftmaxLoss",
        details=softmax_of_scores,
        doc="Softmax and cross-entropy with labels of classes (kSoftmaxLoss), of sequences step by step.\n\n"
        "It takes the scores before a softmax; of a softmax it takes the source. It reports the accuracy, too.",
    ),
    "HingeLoss": Form("kHingeLoss", defaults={"norm": "L1"}, details=scores_and_labels),
    "SigmoidCrossEntropyLoss": Form(
        "kSigmoidCrossEntropyLoss", details=functools.partial(compare, activation="sigmoid")
    ),
    "FocalLoss": Form("kFocalLoss", details=functools.partial(compare, activation="sigmoid")),
    "KLDivergenceLoss": Form("kKLDivergenceLoss", details=functools.partial(compare, activation="softmax")),
    "CRF": Form("kCRF", details=scores_and_labels),
    "CTCLoss": Form("kCTCLoss", details=functools.partial(scores_and_labels, optional=1)),
    "ClassSoftmaxLoss": Form(
        "kClassSoftmaxLoss",
        required=("class_start",),
        inits={"word": "random_uniform", "class": "random_uniform"},
        details=scores_and_labels,
    ),
    "SampledLoss": Form("kSampledLoss", inits={"weight": "random_uniform"}, details=scores_and_labels),
}


def layer_function(name: str, form: Form, cls: Any) -> Any:
    """Return the function called ``name`` that makes layers of a class."""
    conf: type[Settings] | None = getattr(cls, "Conf", None)
    details = form.details or (compare if issubclass(cls, PairLoss) else None)
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


def penalties_of(form: Form, values: Mapping[str, Any]) -> dict[str, Penalty]:
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
    # Whose names mean something else in Keras, or nothing: nn has Conv1D, ConvLSTM2D, RepeatVector and SimpleRNN.
    otherwise=("kConvolution1D", "kConvLSTM", "kRepeat", "kRNN"),
    takes=is_of_nets,
)
