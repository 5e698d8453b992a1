"""Cases of onnx.backend.test that no net of dsinga computes, each with the reason, by operator and name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tests.support.onnx_cases import Case

# Operators of which no case can become a net of layers.
WITHOUT_LAYERS: Mapping[str, Sequence[str]] = {
    "functions of losses and steps of optimisers: a model is compiled with its own": (
        "Adagrad", "Adam", "Momentum", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
    ),
    "control flow, sequences and optional tensors": (
        "If", "Loop", "OptionalGetElement", "OptionalHasElement", "Scan", "SequenceInsert", "SequenceMap",
        "SplitToSequence",
    ),
    "how many results there are depends on the numbers": ("Compress", "NonMaxSuppression", "NonZero", "Unique"),
    "what no record brings: constants, shapes and random numbers": (
        "Bernoulli", "BlackmanWindow", "Constant", "ConstantOfShape", "EyeLike", "HammingWindow", "HannWindow",
        "MelWeightMatrix", "RandomNormal", "RandomUniform", "Range", "Shape", "Size",
    ),
    "bits of numbers": ("BitCast",),
}  # fmt: skip
# The operator, what the name of the case has in it, and why.
PATTERNS: Sequence[tuple[str, str, str]] = (
    ("ArgMax", "default_axis|random|select_last", "other than the first largest number of a vector"),
    ("Attention", "past|qk_matmul|padded_kv|nonpad|window", "keys of earlier calls, lengths, further outputs, windows"),
    ("Attention", "robustness", "queries that see no key"),
    ("BatchNormalization", "training_mode", "training outputs"),
    ("CenterCropPad", "crop$|pad_pad|crop_and_pad|hwc", "another number of records"),
    ("Dropout", "training_dropout(_default)?(_mask)?$|random_old", "training: random numbers"),
    ("Flatten", "axis[023]$|negative_axis[124]", "a matrix whose rows are no records"),
    ("Gemm", "matrix_bias", "a bias that has a row for each record"),
    ("Gemm", "transposeA|all_attributes", "records along the second axis"),
    ("GRU", "", "the state reset before its product (linear_before_reset 0)"),
    ("LSTM", "peepholes", "peepholes"),
    ("LogSoftmax", "", "no layer: losses take scores"),
    ("MatMul", "1d_1d", "a number of all records"),
    ("MaxPool", "with_argmax", "places of the maxima"),
    ("Pow", "pow$|example|array|types", "an exponent that is a tensor"),
    ("Resize", "downsample_scales_.*align_corners", "as PyTorch and ONNX Runtime compute it, by whole sizes"),
    ("Resize", "tf_crop_and_resize", "a part of images, resized"),
    ("", "expanded", "spelled out by operators without a layer"),
    ("Reduce|Split|Slice|Reshape", "empty_set|zero_size|start_out_of_bounds|allowzero", "tensors without numbers"),
)


def without_layers() -> set[str]:
    """Return the operators of which no case is run."""
    return {operator for operators in WITHOUT_LAYERS.values() for operator in operators}


def excluded(case: Case) -> str:
    """Return why a case is left out, "" for one that is run."""
    for operator, name, reason in PATTERNS:
        if re.match(operator, case.operator) and re.search(name, case.name):
            return reason
    return ""
