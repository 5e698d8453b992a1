"""Names of Keras that ``nn`` lacks, with what to write instead; those of arguments are in ``keras_arguments``."""

from __future__ import annotations

import functools
import re

from dsinga.base.arguments import instead_by_name
from dsinga.base.arguments import missing_names as missing
from dsinga.extensions.keras_names import CALLBACKS

_FROM_RECORDS = "compute it on the records before training, or register a layer of your own (docs/extending.md)"
_NO_LAYER = "there is no such layer; register one of your own (docs/extending.md)"
_ADAPTIVE = "there is none; nn.GlobalAveragePooling2D gives one number a channel, nn.AveragePooling2D takes pool_size"
_AUGMENT = "write nn.augment.{}, for nn.Input(augment=[...]) (docs/augmentation.md)"
_IMAGES = "nn.{} is for images only; register a layer of your own (docs/extending.md)"
_FOR_SEQUENCES = "Conv1DTranspose ConvLSTM1D Cropping1D UpSampling1D ZeroPadding1D"
_CELL = "cells are not layers here; use nn.GRU, nn.LSTM or nn.SimpleRNN"
_NO_OPTIMIZER = "there is none; nn.Adam, nn.RMSprop and nn.SGD with momentum are nearest"
_NO_LOSS = "there is no such loss; register a loss layer of your own (docs/extending.md)"
_METRIC = 'compile takes names, metrics=["accuracy", "roc_auc"], functions of (labels, predictions): docs/metrics.md'
_CONSTRAINT = "there are no constraints; clip gradients by the optimizer's clip_norm or clip_value"
_NO_INITIALISER = "write nn.RandomNormal(stddev=...), or register an initialiser (docs/extending.md)"

_LAYERS = {
    **instead_by_name(
        {
            _FROM_RECORDS: "AugMix AutoContrast CenterCrop Equalization MelSpectrogram Pipeline "
            "RandomColorDegeneration RandomElasticTransform RandomGaussianBlur RandomGrayscale RandomInvert "
            "RandomPerspective RandomPosterization RandomSharpness RandomShear RandomTranslation RandomZoom Resizing "
            "STFTSpectrogram Solarization Discretization HashedCrossing Hashing FeatureSpace MaxNumBoundingBoxes",
            _AUGMENT.format(
                "ColorJitter"
            ): "RandomBrightness RandomColorJitter RandomContrast RandomHue RandomSaturation",
            _NO_LAYER: "EinsumDense GaussianDropout GaussianNoise AlphaDropout "
            "GroupQueryAttention GroupedQueryAttention "
            "SpectralNormalization ThresholdedReLU UnitNormalization "
            "FlaxLayer JaxLayer TFSMLayer TorchModuleWrapper ReversibleEmbedding "
            "Wrapper",
            _ADAPTIVE: "AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D "
            "AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D",
            _CELL: "GRUCell LSTMCell SimpleRNNCell StackedRNNCells RNN AbstractRNNCell",
        }
    ),
    **{name: _IMAGES.format(name.replace("1D", "2D")) for name in _FOR_SEQUENCES.split()},
    "DepthwiseConv1D": "write nn.Conv1D(n, kernel_size, groups=n) for n features; nn.DepthwiseConv2D is for images",
    "SeparableConv1D": "write nn.Conv1D(n, kernel_size, groups=n), for n features, and nn.Conv1D(filters, 1); "
    "nn.SeparableConv2D is for images",
    "ConvLSTM3D": _IMAGES.format("ConvLSTM2D"),
    **{name: _AUGMENT.format(name) for name in "CutMix RandAugment RandomErasing RandomRotation".split()},
    "MixUp": _AUGMENT.format("Mixup"),
    "RMSNormalization": "write nn.RMSNorm()",
    "CuDNNGRU": "write nn.GRU",
    "ActivityRegularization": "there is none; give the optimizer weight_decay",
    "AdditiveAttention": 'write nn.Attention(score_mode="additive")',
    "CategoryEncoding": "write nn.OneHot for codes",
    "Dot": "write nn.CosineSimilarity, or nn.Multiply and a dense layer",
    "ELU": 'write nn.LeakyReLU() or nn.Activation("gelu")',
    "InputLayer": "write nn.Input(shape=...)",
    "InputSpec": "shapes are checked when a layer is called",
    "IntegerLookup": "number the values by np.unique(x, return_inverse=True)",
    "StringLookup": "number the words by np.unique(words, return_inverse=True)",
    "TextVectorization": "import the text by dsinga data import (docs/text.md)",
    "Masking": "nn.SequenceLength() tells layers where sequences end",
    "SpatialDropout1D": "nn.SpatialDropout2D is for images only; write nn.Dropout(rate)",
}

OPTIMIZERS = {
    **dict.fromkeys("Adafactor Ftrl Nadam".split(), _NO_OPTIMIZER),
    "LossScaleOptimizer": "params are float32; a job's precision needs no scale of the loss",
    "Optimizer": "register an updater of your own (docs/extending.md), and give compile its name",
}

LOSSES = {
    **instead_by_name(
        {
            _NO_LOSS: "CategoricalFocalCrossentropy CategoricalGeneralizedCrossEntropy "
            "Circle LogCosh MeanAbsolutePercentageError "
            "MeanSquaredLogarithmicError Tversky",
            "write nn.HingeLoss()": "CategoricalHinge Hinge",
        }
    ),
    "BinaryFocalCrossentropy": "write nn.FocalLoss(alpha=0.5, scale=2), which has the same sum over the outputs",
    "CTC": 'write loss="ctc", or nn.CTCLoss()',
    "KLDivergence": 'write loss="kl_divergence", or nn.KLDivergenceLoss()',
    "SquaredHinge": 'write nn.HingeLoss("L2")',
    "Poisson": 'write nn.DistributionLoss("poisson"), and nn.DistributionParams("poisson") as the last layer',
}
# Losses as compile names them: those above, and their short names.
LOSS_NAMES = {
    **instead_by_name(
        {
            _NO_LOSS: "mape msle log_cosh logcosh "
            "mean_absolute_percentage_error circle mean_squared_logarithmic_error "
            "tversky categorical_focal_crossentropy",
        }
    ),
    "binary_focal_crossentropy": "write nn.FocalLoss(alpha=0.5, scale=2), which has the same sum over the outputs",
    "contrastive": "it compares two features: give the symbol nn.ContrastiveLoss()([a, b, x]), x an input with labels",
    "triplet": "it compares three features: give the symbol nn.TripletLoss()([anchor, positive, negative])",
    "poisson": 'write nn.DistributionLoss("poisson"), and nn.DistributionParams("poisson") as the last layer',
    "pinball": "write nn.QuantileLoss([0.1, 0.5, 0.9])",
    "gaussian_nll": 'write nn.DistributionLoss("normal"), and nn.DistributionParams("normal") as the last layer',
    "crps": 'write nn.DistributionLoss(score="crps"), or nn.EnsembleLoss(members=...)',
    "squared_hinge": 'write nn.HingeLoss("L2")',
    "categorical_hinge": 'write "hinge"',
}

_METRICS = dict.fromkeys(
    (
        "BinaryIoU ConcordanceCorrelation F1Score FBetaScore FalseNegatives FalsePositives IoU Mean "
        "MeanMetricWrapper MeanRelativeError Metric OneHotIoU OneHotMeanIoU PearsonCorrelation PrecisionAtRecall "
        "RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity Sum TrueNegatives TruePositives"
    ).split(),
    _METRIC,
)

_OTHERS = {
    **instead_by_name(
        {
            _CONSTRAINT: "MaxNorm MinMaxNorm NonNeg UnitNorm Constraint constraints",
            'write nn.L1(), nn.L2() or nn.L1L2(), or the name, as in kernel_regularizer="l2"': "l1 l2 l1_l2 "
            "Regularizer",
            "there is none; nn.L1, nn.L2 and nn.L1L2 are": "OrthogonalRegularizer",
            _NO_INITIALISER: "Orthogonal OrthogonalInitializer TruncatedNormal VarianceScaling Initializer",
            "numpy and scikit-learn prepare arrays; stores are in docs/data.md": "preprocessing utils",
            "nn describes nets; arrays are numpy's": "backend ops tree random",
            "write nn.Model(inputs, outputs)": "Functional Function",
        }
    ),
    **{
        name: f'write "{re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()}", the name, as kernel_initializer'
        for name in "GlorotNormal GlorotUniform HeNormal HeUniform LecunNormal LecunUniform Ones Zeros".split()
    },
    "applications": "dsinga.models has well-known nets, without trained params",
    "datasets": "dsinga data import reads published files (docs/data.md)",
    "saving": "model.save(folder) writes a model and nn.load_model(folder) reads it",
    "save_model": "write model.save(folder)",
    "load": "write nn.load_model(folder)",
    "model_from_json": "write nn.from_job(path) for a job file",
    "clone_model": "write nn.from_job(model.job())",
    "KerasTensor": "nn.Input and layers return symbols",
    "Variable": "params are those of layers; write nn.Param(...)",
    "set_random_seed": "give fit seed=",
    "to_categorical": "losses take classes; nn.OneHot makes codes one-hot",
    "pad_sequences": "fill sequences with -1 by numpy; nn.SequenceLength() tells layers where they end",
    "plot_model": "dsinga show JOB draws a net; model.summary() prints it",
    "mixed_precision": 'give fit precision="kBF16", on CPU cores and GPUs: products of bfloat16 (docs/precision.md)',
    "distribution": "give fit workers= and client=",
    "DataParallel": "give fit workers=",
    "ModelParallel": "give layers partition_dim=1",
}

NAMES = {**_METRICS, **_LAYERS, **OPTIMIZERS, **LOSSES, **CALLBACKS, **_OTHERS}


missing_names = functools.partial(missing, instead=NAMES)
