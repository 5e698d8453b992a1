"""Builds nets with Keras's names and arguments: layers, losses, optimizers, and models that train.

See docs/howto/keras.md for examples, and for what differs from Keras.
"""

from collections import ChainMap
from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
    from collections.abc import Callable as _Callable
    from collections.abc import Iterator as _Iterator
    from typing import Any as _Any

    import dsinga.extensions as callbacks
    import dsinga.nn.words.activations as activations
    import dsinga.nn.words.augment as augment
    import dsinga.nn.words.initialisers as initialisers
    import dsinga.nn.words.initialisers as initializers
    import dsinga.nn.words.losses as losses
    import dsinga.nn.words.metrics as metrics
    import dsinga.nn.words.optimizers as optimizers
    import dsinga.nn.words.regularisers as regularisers
    import dsinga.nn.words.regularisers as regularizers
    import dsinga.nn.words.schedules as schedules

    # Keras's modules, for programs that begin with ``from dsinga import nn as keras``; each is this module.
    from dsinga import nn as backend
    from dsinga import nn as config
    from dsinga import nn as layers
    from dsinga import nn as models
    from dsinga import nn as saving
    from dsinga import nn as utils
    from dsinga.engine.local_net import LocalNet
    from dsinga.nn.model.from_job import from_job, load_model
    from dsinga.nn.model.model import CD, Model
    from dsinga.nn.model.sequential import Sequential, clone_model
    from dsinga.nn.words.activations import ELU, GELU, Activation, LeakyReLU, PReLU, ReLU, Softmax
    from dsinga.nn.words.attention import Attention, MultiHeadAttention
    from dsinga.nn.words.basic_layers import (
        Add,
        Average,
        CosineSimilarity,
        Dense,
        Dropout,
        Identity,
        Maximum,
        Minimum,
        Multiply,
        SpatialDropout1D,
        SpatialDropout2D,
        SpatialDropout3D,
        Subtract,
        layer_functions,
    )
    from dsinga.nn.words.cluster import Cluster
    from dsinga.nn.words.convolutions import (
        Conv2D,
        Conv2DTranspose,
        Conv3D,
        Conv3DTranspose,
        ConvLSTM2D,
        DepthwiseConv2D,
        SeparableConv2D,
    )
    from dsinga.nn.words.derived import added_words
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
    from dsinga.nn.words.image_layers import (
        AdaptiveAveragePooling2D,
        AdaptiveAveragePooling3D,
        AdaptiveMaxPooling2D,
        AdaptiveMaxPooling3D,
        AveragePooling2D,
        AveragePooling3D,
        Cropping2D,
        Cropping3D,
        GlobalAveragePooling2D,
        GlobalAveragePooling3D,
        GlobalMaxPooling2D,
        GlobalMaxPooling3D,
        MaxPooling2D,
        MaxPooling3D,
        Padding2D,
        Padding3D,
        UpSampling2D,
        UpSampling3D,
        ZeroPadding2D,
        ZeroPadding3D,
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
    from dsinga.nn.words.loss_layers import (
        AbsoluteLoss,
        ClassSoftmaxLoss,
        ContrastiveLoss,
        CosineLoss,
        Dice,
        EuclideanLoss,
        FieldSoftmaxLoss,
        FocalLoss,
        HingeLoss,
        Huber,
        HuberLoss,
        KLDivergenceLoss,
        MeanAbsoluteError,
        MeanLoss,
        MeanSquaredError,
        SampledLoss,
        SigmoidCrossEntropyLoss,
        SoftmaxLoss,
        TripletLoss,
    )
    from dsinga.nn.words.normalisation import (
        BatchNormalization,
        GroupNormalization,
        LayerNormalization,
        LocalResponseNormalization,
        Normalization,
        RMSNorm,
    )
    from dsinga.nn.words.optimizers import (
        SGD,
        Adadelta,
        Adagrad,
        Adam,
        Adamax,
        AdamW,
        Lamb,
        Lion,
        Muon,
        ParamSettings,
        RMSprop,
        optimizer_functions,
    )
    from dsinga.nn.words.own_layers import OwnLayer as Layer
    from dsinga.nn.words.regularisers import L1, L1L2, L2
    from dsinga.nn.words.schedules import (
        CosineDecay,
        CosineDecayRestarts,
        ExponentialDecay,
        InverseTimeDecay,
        LearningRateSchedule,
        LinearMomentum,
        OneCycle,
        OneCycleMomentum,
        PiecewiseConstantDecay,
        PolynomialDecay,
        Schedule,
        SequentialSchedule,
        schedule_functions,
    )
    from dsinga.nn.words.sequence_layers import (
        GRU,
        LSTM,
        AveragePooling1D,
        Bidirectional,
        Conv1D,
        Embedding,
        GlobalAveragePooling1D,
        GlobalMaxPooling1D,
        Masking,
        MaxPooling1D,
        OneHot,
        PositionalEncoding,
        SequenceLength,
        SimpleRNN,
        TimeDistributed,
    )
    from dsinga.nn.words.shape_layers import Concatenate, Flatten, Permute, RepeatVector, Reshape, Slice, Split
    from dsinga.nn.writing.symbol import LayerBuilder as _LayerBuilder

    # Functions of layers without a hand-written function, and words of add-ons.
    def _derived() -> _Iterator[_Callable[..., _LayerBuilder]]: ...

    (
        Arithmetic, BM, BatchEnsemble, CRF, CTCLoss, CachedAttention, Categories, ColumnScale, Concate, Convolution,
        Cropping, DistributionLoss, DistributionParams, Dueling, Dummy, EnsembleLoss, EntropyLoss, FunctionLoss,
        GroupNorm, ImagePreprocess, InnerProduct, LRN, Label, LayerNorm, LeadRecord, LearnedVector, MemberDense,
        MemberEuclideanLoss, MemberMean, MemberSigmoidLoss, MemberSoftmaxLoss, Mnist, PPOLoss, Padding,
        Periodic, PiecewiseLinear, PolicyGradientLoss, Pooling, Pooling1D, QuantileLoss, RBMHid, RBMVis,
        RNNDummy, RNNLabel, Resize, STanh, Sigmoid, TDLoss, TransposedConvolution, Upsampling, VTraceLoss,
    ) = _derived()  # fmt: skip
    FieldError: _Callable[..., _Any]
    Lambda: _Callable[..., _LayerBuilder]
    TextVectorization: _Callable[..., _Any]
    load_onnx: _Callable[..., Model]


__all__ = [
    "CD", "CRF", "ELU", "GELU", "GRU", "L1", "L1L2", "L2", "LSTM", "RBM", "SGD", "AbsoluteLoss", "Activation",
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "AdaptiveAveragePooling2D", "AdaptiveAveragePooling3D",
    "AdaptiveMaxPooling2D", "AdaptiveMaxPooling3D", "Add", "Attention", "Average", "AveragePooling1D",
    "AveragePooling2D", "AveragePooling3D", "BatchNormalization", "Bidirectional", "ClassSoftmaxLoss", "Cluster",
    "Concatenate", "Constant", "ContrastiveLoss", "Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose",
    "ConvLSTM2D", "CosineDecay", "CosineDecayRestarts", "CosineLoss", "CosineSimilarity", "Cropping2D", "Cropping3D",
    "Dense", "DepthwiseConv2D", "Dice", "Dropout", "Embedding", "EuclideanLoss", "ExponentialDecay", "FieldError",
    "FieldSoftmaxLoss", "Flatten", "FocalLoss", "GlobalAveragePooling1D", "GlobalAveragePooling2D",
    "GlobalAveragePooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D", "GroupNormalization",
    "HingeLoss", "Huber", "HuberLoss", "Identity", "Input", "InverseTimeDecay", "KLDivergenceLoss", "Lamb", "Lambda",
    "Layer", "LayerNormalization", "LeakyReLU", "LearningRateSchedule", "LinearMomentum", "Lion", "LocalNet",
    "LocalResponseNormalization", "Masking", "MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "Maximum",
    "MeanAbsoluteError", "MeanLoss", "MeanSquaredError", "Minimum", "Model", "MultiHeadAttention", "Multiply", "Muon",
    "Normalization", "OneCycle", "OneCycleMomentum", "OneHot", "PReLU", "Padding2D", "Padding3D", "Param",
    "ParamSettings", "Permute", "PiecewiseConstantDecay", "PolynomialDecay", "PositionalEncoding", "RMSNorm", "RMSprop",
    "RandomCrop", "RandomFlip", "RandomNormal", "RandomRotation", "RandomTranslation", "RandomUniform", "ReLU",
    "RepeatVector", "Rescaling", "Reshape", "SampledLoss", "Schedule", "SeparableConv2D", "SequenceLength",
    "Sequential", "SequentialSchedule", "SigmoidCrossEntropyLoss", "SimpleRNN", "Slice", "Softmax", "SoftmaxLoss",
    "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "Split", "Subtract", "TextVectorization",
    "TimeDistributed", "TripletLoss", "UpSampling2D", "UpSampling3D", "ZeroPadding2D", "ZeroPadding3D", "activations",
    "add", "augment", "average", "backend", "callbacks", "clear_session", "clone_model", "concatenate", "config",
    "decoder", "encoder", "from_job", "image_data_format", "initialisers", "initializers", "layers", "load_model",
    "losses", "maximum", "metrics", "minimum", "models", "multiply", "optimizers", "regularisers", "regularizers",
    "saving", "schedules", "set_image_data_format", "set_random_seed", "subtract", "to_categorical", "utils",
]  # fmt: skip

# Functions of components without a hand-written one, and words of add-ons, by name.
_DERIVED = ("layer_functions", "optimizer_functions", "schedule_functions", "source_functions", "added_words")

if not TYPE_CHECKING:

    def _other_name(name):
        """Find ``nn.NAME`` for functions of add-ons and Keras modules; suggest a name if there is none."""
        from dsinga.nn.words.keras_arguments import missing_names

        return missing_names(__name__, __all__, lambda: ChainMap(*map(__getattr__, _DERIVED)))(name)

    __getattr__, _names = lazy_names(__name__, _other_name)

    def __dir__():
        return sorted({*_names(), *ChainMap(*map(__getattr__, _DERIVED))} - {*_DERIVED, "model", "words", "writing"})
