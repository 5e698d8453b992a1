"""Cases of onnx.backend.test that no net of dsinga computes, each with the reason, by operator and name."""

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
# The operator, what the name of the case has in it, and why its import is refused. The first one that fits counts.
PATTERNS: Sequence[tuple[str, str, str]] = (
    ("ArgMax", "", "other than the first largest number of a vector"),
    ("Attention", "fullymasked|structural_empty", "queries that see no key"),
    ("Attention", "past|qk_matmul|padded_kv|nonpad|window", "keys of earlier calls, lengths, further outputs, windows"),
    ("Flatten", "", "a matrix whose rows are no records"),
    ("Gemm", "matrix_bias", "a bias that has a row for each record"),
    ("Gemm", "transposeA|all_attributes", "records along the second axis"),
    ("GRU", "", "the state reset before its product (linear_before_reset 0)"),
    ("LSTM", "peepholes", "peepholes"),
    ("LayerNormalization", "(axis[23]|negative_[12]|default_axis).*expanded", "spelled out by matrices of no records"),
    ("MatMul", "1d_1d", "a number of all records"),
    ("MaxPool", "with_argmax", "places of the maxima"),
    ("Pow", "types_(float32_int32|int32_float32)", "records that are one number, of integers and others"),
    ("TopK", "", "the numbers in order"),
    ("GatherND|GatherElements", "", "indices that depend on a batch"),
    ("Resize", "tf_crop_and_resize", "a part of images, resized"),
    ("Reduce|Split|Slice|Reshape", "empty_set|zero_size|start_out_of_bounds|allowzero", "tensors without numbers"),
    ("LayerNorm|LogSoftmax|Reduce|RMSNorm|Softmax", "expanded", "spelled out along the axis of records"),
)


# What a model gives otherwise.
OTHERWISE: Sequence[tuple[str, str, str]] = (
    ("Attention", "robustness|fullymasked", "queries that see no key, which gather the mean instead of 0"),
    ("Attention", "qk_matmul.*causal_expanded", "scores of hidden keys, which are -1e9 instead of -inf"),
    ("BatchNormalization", "training_mode", "training outputs, where a model predicts"),
    ("Resize", "downsample_scales_.*align_corners", "computed by whole sizes, as PyTorch and ONNX Runtime do"),
    ("Dropout", "training", "random numbers of training, where a model predicts"),
)


def without_layers() -> set[str]:
    """Return the operators of which no case is run."""
    return {operator for operators in WITHOUT_LAYERS.values() for operator in operators}


def excluded(case: Case, is_refused: bool) -> str:
    """Return why a case may be refused, or have other results, "" for one that has to pass."""
    for operator, name, reason in PATTERNS if is_refused else OTHERWISE:
        if re.match(operator, case.operator) and re.search(name, case.name):
            return reason
    return ""
