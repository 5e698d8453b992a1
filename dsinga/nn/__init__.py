"""Nets in a few lines of Python, in the words of Keras: layers, losses, optimizers, and models that train.

``nn.Sequential([nn.Dense(128, activation="relu"), nn.Dense(10)])`` is a model; ``print`` shows it as a job file.
docs/nn.md has examples, and what differs from Keras.
"""

import sys
from collections import ChainMap
from typing import Any

from dsinga import extensions
from dsinga.base.registry import find, registered
from dsinga.engine.local_net import LocalNet
from dsinga.nn.model.from_job import from_job, load_model
from dsinga.nn.model.model import CD, Model
from dsinga.nn.model.sequential import Sequential, clone_model
from dsinga.nn.words import activations, augment, initialisers, losses, metrics, optimizers, regularisers, schedules
from dsinga.nn.words.activations import ELU, Activation, Softmax
from dsinga.nn.words.basic_layers import (
    BatchNormalization,
    Concatenate,
    Flatten,
    Identity,
    Layer,
    LayerNormalization,
    Masking,
    Normalization,
    Slice,
    SpatialDropout1D,
    Split,
)
from dsinga.nn.words.composed_layers import Bidirectional, MultiHeadAttention, SeparableConv2D, TimeDistributed
from dsinga.nn.words.energy import RBM, decoder, encoder
from dsinga.nn.words.functional import (
    add,
    average,
    clear_session,
    concatenate,
    maximum,
    minimum,
    multiply,
    set_random_seed,
    subtract,
    to_categorical,
)
from dsinga.nn.words.initialisers import Constant, Param, RandomNormal, RandomUniform
from dsinga.nn.words.inputs import (
    Input,
    RandomCrop,
    RandomFlip,
    RandomRotation,
    RandomTranslation,
    Rescaling,
    image_data_format,
    set_image_data_format,
    source_functions,
)
from dsinga.nn.words.keras_arguments import missing_names
from dsinga.nn.words.layer_functions import layer_functions
from dsinga.nn.words.optimizers import SGD, Cluster, ParamSettings, optimizer_functions
from dsinga.nn.words.regularisers import L1, L1L2, L2
from dsinga.nn.words.schedules import (
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    LearningRateSchedule,
    LinearMomentum,
    OneCycle,
    OneCycleMomentum,
    PiecewiseConstantDecay,
    Schedule,
    SequentialSchedule,
    schedule_functions,
)

__all__ = [
    "CD", "CRF", "ELU", "GELU", "GRU", "L1", "L1L2", "L2", "LSTM", "RBM", "SGD", "Activation", "Adadelta", "Adagrad",
    "Adam", "Adamax", "Add", "Attention", "AveragePooling1D", "AveragePooling2D", "BatchNormalization", "Bidirectional",
    "ClassSoftmaxLoss", "Cluster", "Concatenate", "Constant", "Conv1D", "Conv2D", "Conv2DTranspose", "CosineDecay",
    "CosineSimilarity", "Cropping2D", "Dense", "DepthwiseConv2D", "Dropout", "Embedding", "EuclideanLoss",
    "ExponentialDecay", "FieldError", "Flatten", "GlobalAveragePooling1D", "GlobalAveragePooling2D",
    "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GroupNormalization", "HingeLoss", "Identity", "Input",
    "InverseTimeDecay", "Lambda", "Layer", "LayerNormalization", "LeakyReLU", "LearningRateSchedule", "LinearMomentum",
    "LocalNet", "LocalResponseNormalization", "Masking", "MaxPooling1D", "MaxPooling2D", "Model", "MultiHeadAttention",
    "Multiply", "Normalization", "OneCycle", "OneCycleMomentum", "OneHot", "Padding2D", "Param", "ParamSettings",
    "PiecewiseConstantDecay", "PositionalEncoding", "RMSprop", "RandomCrop", "RandomFlip", "RandomNormal",
    "RandomRotation", "RandomTranslation", "RandomUniform", "ReLU", "Rescaling", "SampledLoss", "Schedule",
    "SeparableConv2D", "SequenceLength", "Sequential", "SequentialSchedule", "SigmoidCrossEntropyLoss", "SimpleRNN",
    "Slice", "Softmax", "SoftmaxLoss", "SpatialDropout1D", "SpatialDropout2D", "Split", "TextVectorization",
    "TimeDistributed", "UpSampling2D", "ZeroPadding2D", "add", "average", "clear_session", "clone_model", "concatenate",
    "decoder", "encoder", "from_job", "image_data_format", "load_model", "maximum", "minimum", "multiply",
    "set_image_data_format", "set_random_seed", "subtract", "to_categorical",
]  # fmt: skip

# The functions that follow from the classes of registered components, by name.
derived_functions = ChainMap(layer_functions, optimizer_functions, schedule_functions, source_functions)

# The modules of Keras, for programs that begin with ``from dsinga import nn as keras``.
MODULES = {
    **dict.fromkeys(("backend", "config", "layers", "models", "saving", "utils"), sys.modules[__name__]),
    "callbacks": extensions,
    "initializers": initialisers,
    "regularizers": regularisers,
}

_missing = missing_names(__name__, __all__, lambda: ChainMap(MODULES, *derived_functions.maps))


def __getattr__(name: str) -> Any:
    """Import a word of an add-on when it is first used, or return a function that follows from a component."""
    word = None if name.startswith("_") else find("word", name)
    return _missing(name) if word is None else word


def __dir__() -> list[str]:
    return sorted({*globals(), *derived_functions, *registered("word")})
