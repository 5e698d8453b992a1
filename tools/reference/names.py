"""The names in Python of what a job file names, where they differ from the type without its k."""

from typing import Any

from dsinga import nn

# The names in ``nn``, by type; the first ones are the titles of entries.
LAYERS = {
    "kActivation": "Activation ELU GELU",
    "kAdd": "Add",
    "kArithmetic": "Subtract Maximum Minimum Average Rescaling Arithmetic",
    "kAttention": "Attention MultiHeadAttention",
    "kBM": "BatchNormalization",
    "kConcate": "Concatenate",
    "kConvLSTM": "ConvLSTM2D",
    "kConvolution": "Conv2D Conv3D DepthwiseConv2D SeparableConv2D",
    "kConvolution1D": "Conv1D",
    "kCropping": "Cropping2D Cropping3D",
    "kDropout": "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D",
    "kFunction": "Lambda",
    "kGroupNorm": "GroupNormalization",
    "kImagePreprocess": "RandomCrop RandomFlip",
    "kInnerProduct": "Dense",
    "kLayerNorm": "LayerNormalization",
    "kLRN": "LocalResponseNormalization",
    "kPadding": "Padding2D Padding3D ZeroPadding2D ZeroPadding3D",
    "kPermute": "Permute",
    "kPooling": "MaxPooling2D AveragePooling2D GlobalMaxPooling2D GlobalAveragePooling2D AdaptiveMaxPooling2D "
    "AdaptiveAveragePooling2D MaxPooling3D AveragePooling3D GlobalMaxPooling3D GlobalAveragePooling3D "
    "AdaptiveMaxPooling3D AdaptiveAveragePooling3D",
    "kPooling1D": "MaxPooling1D AveragePooling1D GlobalMaxPooling1D GlobalAveragePooling1D",
    "kRecordInput": "Input",
    "kRepeat": "RepeatVector",
    "kReLU": "ReLU LeakyReLU",
    "kReshape": "Flatten Reshape",
    "kRNN": "SimpleRNN",
    "kSequenceLength": "Masking SequenceLength",
    "kTransposedConvolution": "Conv2DTranspose Conv3DTranspose",
    "kUpsampling": "UpSampling2D UpSampling3D",
    "kRBMVis": "RBM",
    "kRBMHid": "",
    "kIndex": "",
    "kEuclideanLoss": "MeanSquaredError EuclideanLoss",
    "kAbsoluteLoss": "MeanAbsoluteError AbsoluteLoss",
    "kHuberLoss": "Huber HuberLoss",
    "kDiceLoss": "Dice",
    "kFieldError": "FieldError",
}
# Words of ``nn`` that wrap layers or stand for several: no entry is theirs alone.
OTHERS = ("Bidirectional", "TimeDistributed", "Identity", "TextVectorization", "RandomRotation", "RandomTranslation")
UPDATERS = {
    "kSGD": "SGD",
    "kNesterov": "SGD",
    "kAdaGrad": "Adagrad",
    "kAdaDelta": "Adadelta",
    "kAdamMax": "Adamax",
    "kRMSProp": "RMSprop",
}
SCHEDULES = {
    "kCosine": "CosineDecay",
    "kCosineRestarts": "CosineDecayRestarts",
    "kExponential": "ExponentialDecay",
    "kStep": "ExponentialDecay",
    "kFixedStep": "PiecewiseConstantDecay",
    "kInverseT": "InverseTimeDecay",
    "kInverse": "InverseTimeDecay",
    "kPolynomial": "PolynomialDecay",
    "kOneCycle": "OneCycle",
    "kSequential": "SequentialSchedule",
    "kFixed": "",
    "kFunction": "",
    "kLinear": "",
    "kCosineLog": "",
}
INITIALISERS = {
    "kConstant": "Constant Zeros Ones",
    "kGaussian": "RandomNormal",
    "kGaussianSqrtFanIn": "LecunNormal HeNormal",
    "kUniform": "RandomUniform",
    "kUniformSqrtFanIn": "LecunUniform HeUniform",
    "kUniformFanInOut": "GlorotUniform",
}


def python_names(kind: str, type: str) -> dict[str, Any]:
    """Return what makes a component in Python, by the names that a user writes, the most usual ones first."""
    if kind == "extension":
        from dsinga import extensions

        name = type.removeprefix("k")
        return {f"extensions.{name}": getattr(extensions, name)}
    if kind == "learning_algorithm":
        from dsinga import rl

        return {f"rl.{type.removeprefix('k')}": getattr(rl, type.removeprefix("k"))}
    if kind == "augmentation":
        return {f"nn.augment.{type.removeprefix('k')}": getattr(nn.augment, type.removeprefix("k"))}
    tables = {"layer": LAYERS, "updater": UPDATERS, "schedule": SCHEDULES, "initialiser": INITIALISERS}
    words = tables.get(kind, {}).get(type)
    if words is None:
        words = type.removeprefix("k") if kind in ("layer", "updater") and is_word(type.removeprefix("k")) else ""
    room, prefix = (nn.initializers, "nn.initializers") if kind == "initialiser" else (nn, "nn")
    return {f"{prefix}.{word}": getattr(room, word) for word in words.split()}


def is_word(name: str) -> bool:
    """Whether ``nn`` has a function of this name."""
    return name in dir(nn)
