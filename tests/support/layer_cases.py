"""The cases of the layer contract: at least one for every type of layer."""

from typing import Any

import numpy as np

from dsinga.job import ActivationType, LayerType, Phase
from dsinga.layers import Context, Layer, RecordInfo, Rows
from dsinga.ops import Ops
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import layer_context
from tests.support.installed import is_installed

BATCH = 5
IMAGES = (BATCH, 3, 7, 6)
ROWS = (BATCH, 12)

# Types that have no case here: energy models, which kCD trains, users' layers, functions of PyTorch
# (test_layers_functions.py), a loss whose gradient has constants, whose contract is in test_layers_vtrace.py, and a
# layer without a gradient, for generation: test_models_gpt.py.
LATER = {*"kRBMHid kRBMVis kVTraceLoss kFunction kFunctionLoss kCachedAttention kUserLayer".split()}
# SINGA's other names of a layer, which is registered under its own name, too.
ALIASES = {
    "kCConvolution": "kConvolution", "kCudnnConv": "kConvolution", "kCPooling": "kPooling", "kCudnnPool": "kPooling",
    "kCudnnLRN": "kLRN", "kCudnnActivation": "kActivation", "kCudnnSoftmax": "kSoftmax", "kCudnnBM": "kBM",
    "kCudnnSoftmaxLoss": "kSoftmaxLoss",
}  # fmt: skip
TYPES = {kind.name for kind in LayerType if is_installed("layer", kind.name)}
FEED_FORWARD = [kind.name for kind in LayerType if kind.name in TYPES - LATER - ALIASES.keys()]


# Whose features are integers.
INTEGERS = "kArgSort kAccuracy kCRF kCTCLoss kEntityF1 kConfusionMatrix kCharRNN kRNNLabel kSequenceLength".split()


def context(ops: Ops, phase: Phase = Phase.kTrain, rows: Rows | None = None, step: int = 3, **more: Any) -> Context:
    """Return the context of an iteration on the whole batch of 5 rows, or on ``rows``."""
    return layer_context(ops, BATCH, phase, rows, step, **more)


def layer_of(kind: str, *shapes: tuple[int, ...], info: RecordInfo | None = None, **conf: Any) -> Layer:
    """Return the layer "layer" on sources "source0", ... of ``shapes``."""
    return LayerCase(kind, shapes, conf, info=info).layer()


CASES: list[LayerCase] = []


def case(kinds: str, variant: str, conf: dict[str, Any], *shapes: tuple[int, ...], **more: Any) -> None:
    """Add a case for each of the types in ``kinds``."""
    for kind in kinds.split():
        dtype = np.int64 if kind in INTEGERS else np.float32
        CASES.append(LayerCase(kind, shapes, conf, variant, feature_dtype=dtype, **more))


RECORD = RecordInfo((3, 7, 6), BATCH)
case("kRecordInput", "image", {"store_conf": {"std_value": 255}}, info=RECORD)
case("kRecordInput", "reshaped", {"store_conf": {"mean_value": 127.5, "shape": [126]}}, info=RECORD)
case("kRecordInput", "mean", {}, info=RecordInfo((12,), BATCH, mean=np.arange(12.0), std=np.arange(1.0, 13)))
LAST = RecordInfo((7, 6, 3), BATCH, mean=np.arange(3.0), std=np.arange(1.0, 4))
case("kRecordInput", "channels last", {"store_conf": {"channels_last": True}}, info=LAST)
case("kCSVInput", "", {"store_conf": {}}, info=RecordInfo((12,), BATCH, has_labels=False))
case("kLMDBData", "", {"lmdbdata_conf": {"path": "x", "batchsize": BATCH}}, info=RECORD)
case("kShardData", "", {"sharddata_conf": {"path": "x", "batchsize": BATCH}}, info=RECORD)
crop = {"rgbimage_conf": {"cropsize": 4, "mirror": True}}
case("kImagePreprocess kRGBImage", "crop", crop, IMAGES, phases_differ=True)
case("kRGBImage", "padded", {"rgbimage_conf": {"pad": 2, "cropsize": 6}}, IMAGES, phases_differ=True)
case("kRGBImage", "scale", {"rgbimage_conf": {"scale": 0.5}}, IMAGES)
case("kImagePreprocess", "gray", {"rgbimage_conf": {"cropsize": 5}}, (BATCH, 8, 8), phases_differ=True)
case("kMnist", "", {"mnist_conf": {"norm_a": 127.5, "norm_b": 1}}, (BATCH, 1, 6, 6))
case("kLabel", "classes", {}, ROWS, classes=10)
case("kLabel", "steps", {}, ROWS, classes=10, steps=4)
LEAD = {"source": [0, 1, 1, 0], "channel": [2, 0, 1, 3], "mask": [-1, 4, 4, -1], "fill": [0, 0.5, 0.5, 0]}
case("kLeadRecord", "masked", {"leadrecord_conf": LEAD}, (BATCH, 5, 7, 6), (BATCH, 2, 7, 6))
normalised = {"leadrecord_conf": LEAD | {"mean": 0.5, "std": 2.0}}
case("kLeadRecord", "normalised", normalised, (BATCH, 5, 7, 6), (BATCH, 2, 7, 6))
TWICE = {"source": [1, 1, 0], "channel": [0, 0, 0], "mask": [-1] * 3, "fill": [0] * 3}
case("kLeadRecord", "vectors", {"leadrecord_conf": TWICE}, (BATCH, 3), (BATCH, 1))
case("kLabel", "lead", {"label_conf": {"first": 1, "count": 2, "weighted": True}}, (BATCH, 4, 7, 6))
case("kLabel", "numbers", {}, (BATCH,))
case("kLabel", "matrix", {}, (BATCH, 3))
case("kDummy", "input", {"dummy_conf": {"input": True, "shape": [BATCH, 2, 3, 3]}})
case("kDummy", "through", {}, IMAGES)
case("kDummy", "output", {"dummy_conf": {"output": True}}, ROWS)

case("kInnerProduct", "", {"innerproduct_conf": {"num_output": 4}}, ROWS)
case("kInnerProduct", "image", {"innerproduct_conf": {"num_output": 4}}, (BATCH, 2, 3, 2))
case("kInnerProduct", "transposed", {"innerproduct_conf": {"num_output": 4, "transpose": True}}, (BATCH, 2, 5))
case("kInnerProduct", "unbiased", {"innerproduct_conf": {"num_output": 3, "bias_term": False}}, ROWS)
case("kConvolution", "", {"convolution_conf": {"num_filters": 4, "pad": 1}}, (BATCH, 2, 4, 5))
case("kConvolution", "stride", {"convolution_conf": {"num_filters": 2, "kernel": 2, "stride": 2}}, (BATCH, 3, 5, 4))
case("kConvolution", "oblong", {"convolution_conf": {"num_filters": 3, "kernel_x": 1, "pad_y": 2}}, (BATCH, 2, 3, 4))
case("kConvolution", "unbiased", {"convolution_conf": {"num_filters": 3, "bias_term": False}}, (BATCH, 2, 4, 3))
case("kConvolution", "gray", {"convolution_conf": {"num_filters": 3}}, (BATCH, 5, 4))
for name, window in {"even": {"kernel": 2}, "strided": {"kernel_y": 3, "kernel_x": 4, "stride": 2}}.items():
    filters = {"num_filters": 2, "same": True, **window}
    case("kConvolution", f"same {name}", {"convolution_conf": filters}, (BATCH, 2, 4, 4))
    case("kPooling", f"same max {name}", {"pooling_conf": {"same": True, **window}}, IMAGES)
    averaged = {"pool": "AVG", "same": True, "count_include_pad": False, **window}
    case("kPooling", f"same avg {name}", {"pooling_conf": averaged}, IMAGES)
for name, window in {
    "groups": {"num_filters": 6, "group": 2, "pad": 1},
    "depthwise": {"num_filters": 4, "group": 4, "stride": 2, "dilation": 2, "same": True},
    "multiplied": {"num_filters": 8, "group": 4, "kernel": 2, "bias_term": False},
    "dilated": {"num_filters": 3, "dilation_y": 2, "dilation_x": 3, "pad": 2, "stride_x": 2},
}.items():
    case("kConvolution", name, {"convolution_conf": window}, (BATCH, 4, 6, 5))
VOLUMES, SMALL = (BATCH, 2, 4, 5, 3), (BATCH, 2, 3, 3, 2)
case("kConvolution", "volumes", {"convolution_conf": {"num_filters": 3, "kernel": 2, "pad_x": 1}}, SMALL)
DEEP = {"num_filters": 2, "kernel_z": 2, "stride_z": 2, "kernel_y": 2, "pad_x": 1}
case("kConvolution", "deep", {"convolution_conf": DEEP}, VOLUMES)
case("kConvolution", "same volumes", {"convolution_conf": {"num_filters": 2, "kernel": 2, "same": True}}, VOLUMES)
spaced = {"num_filters": 4, "group": 2, "kernel": 2, "dilation_y": 2}
case("kConvolution", "spaced volumes", {"convolution_conf": spaced}, VOLUMES)
case("kPooling", "max volumes", {"pooling_conf": {"kernel": 2, "stride": 1}}, VOLUMES)
case("kPooling", "avg volumes", {"pooling_conf": {"pool": "AVG", "pad": 1, "count_include_pad": False}}, VOLUMES)
case("kPooling", "same volumes", {"pooling_conf": {"kernel_z": 2, "stride_x": 1, "same": True}}, VOLUMES)
case("kPooling", "whole volumes", {"pooling_conf": {"global_pooling": True, "pool": "AVG"}}, VOLUMES)
WIDER = {"num_filters": 3, "kernel": 2, "stride_z": 2, "output_pad_z": 1}
case("kTransposedConvolution", "volumes", {"transposedconvolution_conf": WIDER}, SMALL)
for name in ("ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "AVERAGE"):
    case("kArithmetic", name, {"arithmetic_conf": {"operator": name}}, ROWS, ROWS)
for name in ("MAXIMUM", "MINIMUM"):
    case("kArithmetic", name, {"arithmetic_conf": {"operator": name}}, (BATCH, 7), (BATCH, 1))
for name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL"):
    case("kArithmetic", name, {"arithmetic_conf": {"operator": name, "number": 0.1}}, IMAGES)
case("kArithmetic", "repeated", {"arithmetic_conf": {"operator": "DIVIDE"}}, IMAGES, (BATCH, 1, 7, 1))
case("kArithmetic", "matrices", {"arithmetic_conf": {"operator": "MATMUL"}}, (BATCH, 3, 2), (BATCH, 2, 4))
for name, number in {"SUBTRACT": 1.5, "DIVIDE": 2.5, "POWER": 3.0, "MAXIMUM": 0.1}.items():
    more = {"swapped": True} if name == "SUBTRACT" else {}
    case("kArithmetic", f"{name} number", {"arithmetic_conf": {"operator": name, "number": number, **more}}, IMAGES)
for index in ("1", "..., -1", "1:, new, ::2", "::-2, 1, [3, 0, -1, 3]", "[1, 1], ..., :2", "..., [2, 0], new, 1:"):
    case("kIndex", index, {"index_conf": {"index": index}}, IMAGES)
case("kPermute", "", {"permute_conf": {"dims": [2, 3, 1]}}, IMAGES)
case("kRepeat", "", {"repeat_conf": {"times": 3}}, IMAGES)
case("kRepeat", "rows", {"repeat_conf": {"times": 2}}, ROWS)
FRAMES = (BATCH, 3, 2, 3, 2)
case("kConvLSTM", "", {"convlstm_conf": {"num_filters": 2, "kernel": 2}}, FRAMES)
case("kConvLSTM", "padded", {"convlstm_conf": {"num_filters": 2, "pad": 1, "bias_term": False}}, FRAMES)
case("kConvLSTM", "last", {"convlstm_conf": {"num_filters": 3, "stride": 2, "same": True, "last": True}}, FRAMES)
case("kConvolution", "same gray", {"convolution_conf": {"num_filters": 3, "same": True, "kernel": 2}}, (BATCH, 5, 4))
case("kPooling", "uncounted", {"pooling_conf": {"pool": "AVG", "pad": 1, "count_include_pad": False}}, IMAGES)
case("kPooling", "max", {"pooling_conf": {"pool": "MAX"}}, IMAGES)
case("kPooling", "avg", {"pooling_conf": {"pool": "AVG", "pad": 1}}, IMAGES)
case("kPooling", "padded", {"pooling_conf": {"kernel": 2, "stride": 3, "pad": 1}}, IMAGES)
case("kPooling", "ceil max", {"pooling_conf": {"kernel": 2, "stride": 3, "pad": 1, "ceil": True}}, (BATCH, 2, 6, 7))
for counts in (True, False):
    averaged = {"pool": "AVG", "stride": 2, "pad": 1, "ceil": True, "count_include_pad": counts}
    case("kPooling", f"ceil avg {counts}", {"pooling_conf": averaged}, (BATCH, 2, 6, 7))
for pool in ("MAX", "AVG"):
    spaced = {"pool": pool, "kernel": 2, "dilation_y": 2, "dilation_x": 3, "stride": 1, "pad": 1}
    case("kPooling", f"dilated {pool}", {"pooling_conf": spaced}, IMAGES)
    spaced = {"pool": pool, "dilation": 2, "ceil": True, "pad_y": 2, "count_include_pad": False}
    case("kPooling", f"dilated gray {pool}", {"pooling_conf": spaced}, (BATCH, 6, 8))
    case("kPooling", f"windows {pool}", {"pooling_conf": {"pool": pool, "output_size": [5, 4]}}, IMAGES)
    spaced = {"pool": pool, "kernel": 2, "dilation_z": 3, "stride": 2, "same": True}
    case("kPooling", f"dilated volumes {pool}", {"pooling_conf": spaced}, VOLUMES)
case("kPooling", "windows", {"pooling_conf": {"output_size": [2, 3]}}, (BATCH, 2, 4, 6))
case("kPooling", "gray", {}, (BATCH, 5, 6))
case("kPooling", "whole max", {"pooling_conf": {"global_pooling": True}}, IMAGES)
case("kPooling", "whole avg", {"pooling_conf": {"global_pooling": True, "pool": "AVG"}}, IMAGES)
case("kLRN", "", {"lrn_conf": {"local_size": 3, "alpha": 0.5}}, (BATCH, 5, 3, 2))
case("kLRN", "wide", {"lrn_conf": {"local_size": 7, "alpha": 2, "beta": 0.6, "knorm": 2}}, (BATCH, 4, 2, 2))
case("kReshape", "vectors", {}, IMAGES)
case("kReshape", "images", {"reshape_conf": {"shape": [2, -1, 3]}}, ROWS)
case("kReshape", "other images", {"reshape_conf": {"shape": [6, 7, 3]}}, IMAGES)
case("kReshape", "steps", {"reshape_conf": {"shape": [4, 3]}}, ROWS)
case("kDropout", "", {}, ROWS, phases_differ=True)
case("kDropout", "image", {"dropout_conf": {"dropout_ratio": 0.3}}, IMAGES, phases_differ=True)
case("kDropout", "channels", {"dropout_conf": {"unit": "kChannel"}}, IMAGES, phases_differ=True)
case("kDropout", "features", {"dropout_conf": {"unit": "kFeature"}}, (BATCH, 4, 3), phases_differ=True)
case("kDropout", "rows", {"dropout_conf": {"unit": "kRow"}}, IMAGES, phases_differ=True)
member = {"dropout_ratio": 0.3, "member": 2}
case("kDropout", "member", {"dropout_conf": member}, ROWS, phases_differ=True)
case("kDropout", "member image", {"dropout_conf": member}, IMAGES, phases_differ=True)
member = {"dropout_ratio": 0.6, "member": 5, "unit": "kRow"}
case("kDropout", "member rows", {"dropout_conf": member}, IMAGES, phases_differ=True)
case("kDropout", "none", {"dropout_conf": {"dropout_ratio": 0.0}}, ROWS)
case("kReLU", "", {}, IMAGES)
case("kReLU", "leaky", {"relu_conf": {"negative_slope": 0.1}}, ROWS)
case("kPReLU", "", {}, IMAGES)
case("kPReLU", "rows", {"prelu_conf": {"initial_slope": 0.5}}, ROWS)
case("kPReLU", "shared", {"prelu_conf": {"shared": True}}, IMAGES)
case("kSigmoid kSTanh", "", {}, ROWS)


class PositiveCase(LayerCase):
    """A case whose source has numbers above 0."""

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        return np.abs(super().source(layer, index, rng)) + 0.1


for function in ActivationType:
    kind = PositiveCase if function is ActivationType.LOG else LayerCase
    CASES.append(kind("kActivation", (IMAGES,), {"activation_conf": {"type": function.name}}, function.name))
for name, numbers in {"ELU": {"alpha": 0.5}, "CELU": {"alpha": 2}, "HARDSIGMOID": {"alpha": 0.3, "beta": 0.4}}.items():
    case("kActivation", f"{name} with numbers", {"activation_conf": {"type": name, **numbers}}, IMAGES)
case("kActivation", "", {}, ROWS)
case("kSoftmax", "", {}, ROWS)
case("kSoftmax", "parts", {"softmax_conf": {"num_softmax_per_instance": 3}}, ROWS)
case("kSoftmax", "image", {}, (BATCH, 3, 2, 2))
case("kBM", "image", {}, (BATCH, 3, 3, 2), phases_differ=True)
case("kBM", "rows", {"bm_conf": {"epsilon": 0.1, "keep_initial": True}}, ROWS, phases_differ=True)
case("kBM", "global statistics", {"bm_conf": {"use_global_stats": True}}, (BATCH, 3, 3, 2))
case("kLayerNorm", "rows", {}, ROWS)
case("kLayerNorm", "image", {}, (BATCH, 3, 3, 2))
case("kLayerNorm", "steps", {"layernorm_conf": {"first_axis": 2, "epsilon": 0.1}}, (BATCH, 3, 4))
case("kRMSNorm", "rows", {}, ROWS)
case("kRMSNorm", "image", {}, (BATCH, 3, 3, 2))
case("kRMSNorm", "steps", {"rmsnorm_conf": {"first_axis": 2, "epsilon": 0.1}}, (BATCH, 3, 4))
case("kGroupNorm", "image", {"groupnorm_conf": {"groups": 2}}, (BATCH, 6, 3, 2))
case("kGroupNorm", "channels", {"groupnorm_conf": {"groups": 3, "epsilon": 0.1}}, (BATCH, 3, 4, 3))
case("kGroupNorm", "one group", {"groupnorm_conf": {"groups": 1}}, (BATCH, 4, 3, 2))
case("kGroupNorm", "volume", {"groupnorm_conf": {"groups": 2}}, (BATCH, 4, 2, 2, 2))
case("kNormalization", "channels", {"normalization_conf": {"mean": [1, 2, 3], "std": [1, 2, 0.5]}}, IMAGES)
case("kNormalization", "inverse", {"normalization_conf": {"mean": 4, "std": 2, "inverse": True}}, IMAGES)
case("kNormalization", "points", {"normalization_conf": {"mean": [*range(12)], "std": 2}}, (BATCH, 3, 2, 2))
case("kNormalization", "rows", {"normalization_conf": {"std": [*range(1, 13)]}}, ROWS)
case("kGroupNorm", "rows", {"groupnorm_conf": {"groups": 4}}, ROWS)
FIELD, VOLUME = (BATCH, 2, 4, 3), (BATCH, 2, 3, 2, 3)
around = {"before": [2, 1], "after": [1, 2]}
for mode in ("kZero", "kEdge", "kReflect", "kPeriodic"):
    case("kPadding", mode, {"padding_conf": {**around, "mode": [mode]}}, FIELD)
case("kPadding", "a value", {"padding_conf": {**around, "mode": ["kZero", "kEdge"], "value": 1.5}}, FIELD)
case("kPadding", "globe", {"padding_conf": {"before": [1], "after": [1], "mode": ["kReflect", "kPeriodic"]}}, FIELD)
modes = ["kEdge", "kZero", "kPeriodic"]
case("kPadding", "volume", {"padding_conf": {"before": [1, 0, 2], "after": [1], "mode": modes}}, VOLUME)
case("kCropping", "", {"cropping_conf": {"before": [1], "after": [2, 0]}}, FIELD)
case("kCropping", "volume", {"cropping_conf": {"after": [1]}}, VOLUME)
for method in ("kNearest", "kLinear"):
    case("kUpsampling", f"{method}", {"upsampling_conf": {"factor": [2, 3], "method": method}}, (BATCH, 2, 3, 2))
case("kUpsampling", "one column", {"upsampling_conf": {"method": "kLinear"}}, (BATCH, 2, 3, 1))
case("kUpsampling", "volume", {"upsampling_conf": {"factor": [2, 1, 2], "method": "kLinear"}}, VOLUME)
for name, settings in {
    "linear": {"size": [5, 4]},
    "nearest": {"scale": [2.4, 0.6], "method": "kNearest", "coordinates": "kAsymmetric", "rounding": "kFloor"},
    "cubic": {"size": [3, 7], "method": "kCubic", "coordinates": "kAlignCorners"},
    "antialias": {"size": [2], "method": "kCubic", "antialias": True, "exclude_outside": True},
}.items():
    case("kResize", name, {"resize_conf": settings}, FIELD)
case("kResize", "volume", {"resize_conf": {"size": [3, 4, 2], "coordinates": "kHalfPixelSymmetric"}}, VOLUME)
for name, window in {
    "": {"kernel": 2, "stride": 2},
    "padded": {"kernel": 3, "stride": 2, "pad": 1, "output_pad": 1},
    "oblong": {"kernel_y": 2, "kernel_x": 3, "stride_x": 2, "pad_x": 1, "output_pad_x": 1, "output_pad_y": 0},
    "same": {"kernel": 3, "stride": 2, "same": True},
    "unbiased": {"bias_term": False},
    "dilated": {"dilation_x": 2, "stride_y": 2, "output_pad_y": 1},
}.items():
    case("kTransposedConvolution", name, {"transposedconvolution_conf": {"num_filters": 3, **window}}, (BATCH, 2, 3, 2))
grouped = {"num_filters": 4, "group": 2, "kernel": 2, "dilation": 2}
case("kTransposedConvolution", "grouped", {"transposedconvolution_conf": grouped}, (BATCH, 4, 3, 2))
gray = {"num_filters": 2, "kernel": 2, "same": True}
case("kTransposedConvolution", "gray", {"transposedconvolution_conf": gray}, (BATCH, 3, 3))
case("kAdd kMultiply", "", {}, IMAGES, IMAGES, IMAGES)
case("kAdd kMultiply", "one", {}, ROWS)

case("kSoftmaxLoss", "", {}, ROWS, (BATCH, 3, 7, 7), classes=12)
case("kSoftmaxLoss", "scaled", {"softmaxloss_conf": {"topk": 3, "scale": 2.5}}, (BATCH, 4, 1, 2), ROWS, classes=8)
smoothed = {"softmaxloss_conf": {"label_smoothing": 0.2, "scale": 2}}
case("kSoftmaxLoss", "smoothed", smoothed, ROWS, (BATCH,), classes=12)
case("kSoftmaxLoss", "smoothed weighted", smoothed, ROWS, (BATCH,), (BATCH,), classes=12)
case("kSoftmaxLoss", "shares", {}, (BATCH, 3, 2, 2), ROWS)
case("kSoftmaxLoss", "shares smoothed weighted", smoothed, ROWS, ROWS, (BATCH,))
case("kEuclideanLoss", "", {}, ROWS, ROWS)
case("kEuclideanLoss", "image", {}, ROWS, (BATCH, 3, 2, 2))
case("kEuclideanLoss", "scaled", {"euclideanloss_conf": {"scale": 0.5}}, ROWS, ROWS)
case("kHuberLoss", "", {}, ROWS, (BATCH, 3, 2, 2))
huber = {"huberloss_conf": {"delta": 0.5, "scale": 2}}
case("kHuberLoss", "scaled", huber, ROWS, ROWS)
case("kHuberLoss", "weighted", huber, ROWS, ROWS, (BATCH, 1))
case("kSigmoidCrossEntropyLoss", "", {}, ROWS, ROWS, probabilities=1)
scaled = {"sigmoidcrossentropyloss_conf": {"scale": 2}}
case("kSigmoidCrossEntropyLoss", "scaled", scaled, (BATCH, 3, 2, 2), ROWS, probabilities=1)
case("kSoftmaxLoss", "weighted", {}, ROWS, (BATCH,), (BATCH,), classes=12)
top = {"softmaxloss_conf": {"topk": 3, "scale": 2.5}}
case("kSoftmaxLoss", "weighted top", top, (BATCH, 4, 1, 2), (BATCH,), (BATCH, 1), classes=8)
case("kEuclideanLoss", "weighted", {"euclideanloss_conf": {"scale": 0.5}}, ROWS, (BATCH, 3, 2, 2), (BATCH, 1))
case("kSigmoidCrossEntropyLoss", "weighted", scaled, ROWS, ROWS, (BATCH,), probabilities=1)
case("kHingeLoss", "L1", {}, ROWS, ROWS, classes=12)
hinge = {"hingeloss_conf": {"norm": "L2", "margin": 0.5, "topk": 2, "scale": 3}}
case("kHingeLoss", "L2", hinge, (BATCH, 2, 2, 3), ROWS, classes=12)
case("kAbsoluteLoss", "", {}, ROWS, (BATCH, 3, 2, 2))
case("kAbsoluteLoss", "weighted", {"absoluteloss_conf": {"scale": 2}}, ROWS, ROWS, (BATCH, 1))
case("kFocalLoss", "", {}, ROWS, ROWS, probabilities=1)
focal = {"focalloss_conf": {"gamma": 0.5, "alpha": 0.6, "scale": 3}}
case("kFocalLoss", "weighted", focal, (BATCH, 3, 2, 2), ROWS, (BATCH,), probabilities=1)
case("kKLDivergenceLoss", "", {}, ROWS, ROWS, probabilities=1)
divergence = {"kldivergenceloss_conf": {"scale": 2}}
case("kKLDivergenceLoss", "weighted", divergence, (BATCH, 3, 2, 2), ROWS, (BATCH, 1), probabilities=1)
case("kCosineLoss", "", {}, ROWS, (BATCH, 3, 2, 2))
case("kCosineLoss", "weighted", {"cosineloss_conf": {"scale": 2}}, ROWS, ROWS, (BATCH,))
case("kContrastiveLoss", "", {}, (BATCH, 3), (BATCH, 3), ROWS, classes=2)
contrastive = {"contrastiveloss_conf": {"margin": 3, "scale": 2}}
case("kContrastiveLoss", "scaled", contrastive, ROWS, (BATCH, 3, 2, 2), ROWS, classes=2)
case("kTripletLoss", "", {}, ROWS, ROWS, (BATCH, 3, 2, 2))
case("kTripletLoss", "scaled", {"tripletloss_conf": {"margin": 0.1, "scale": 2}}, (BATCH, 2), (BATCH, 2), (BATCH, 2))
case("kCTCLoss", "", {"ctcloss_conf": {"blank": 3}}, (BATCH, 7, 4), ROWS, classes=3, steps=3)
case("kCTCLoss", "scaled", {"ctcloss_conf": {"blank": 4, "scale": 2}}, (BATCH, 5, 5), ROWS, classes=4, steps=2)
case("kCRF", "", {}, (BATCH, 4, 3), ROWS, classes=3, steps=4)
case("kCRF", "one step", {}, (BATCH, 1, 4), ROWS, classes=4, steps=1)
words = {"classsoftmaxloss_conf": {"vocab_size": 9, "class_start": [0, 1, 4]}}
case("kClassSoftmaxLoss", "", words, (BATCH, 6), ROWS, classes=9)
case("kClassSoftmaxLoss", "steps", words, (BATCH, 4, 3), ROWS, classes=9, steps=4)
sampled = {"vocab_size": 9, "num_samples": 4}
case("kSampledLoss", "", {"sampledloss_conf": sampled}, (BATCH, 6), ROWS, classes=9)
nce = {"sampledloss_conf": {**sampled, "method": "kNCE", "counts": [9, 7, 0, 5, 5, 3, 1, 1, 1]}}
case("kSampledLoss", "NCE steps", nce, (BATCH, 4, 3), ROWS, classes=9, steps=4)


class FirstCase(LayerCase):
    """A loss of which only the first source gets a gradient."""

    def needs(self) -> list[bool]:
        return [index == 0 for index in range(len(self.shapes))]


class PolicyCase(FirstCase):
    """A loss of a policy: the second source has numbers of actions, and only the policy gets a gradient."""

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        numbers = super().source(layer, index, rng)
        return numbers if index != 1 else rng.integers(0, self.shapes[0][1], self.shapes[1]).astype(np.float64)


class GaussianCase(PolicyCase):
    """A loss of a Gaussian policy, whose actions are any numbers."""

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        return LayerCase.source(self, layer, index, rng)


class MaskedCase(LayerCase):
    """A layer whose target, the second source, is NaN at some points; with weights only in the first channels."""

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        numbers = super().source(layer, index, rng)
        if index == 1:
            fields = numbers[:, : self.shapes[0][1]]  # without weights
            fields[rng.uniform(size=fields.shape) < 0.3] = np.nan
        return numbers


POINTS, MARKED = (BATCH, 2, 4, 3), {"masked": True, "weighted": True, "std": [2.0, 0.5]}
for kind in ("kEuclideanLoss", "kHuberLoss", "kAbsoluteLoss"):
    field = f"{kind[1:].lower()}_conf"
    case(kind, "fields in units", {field: {"std": [0.5]}}, POINTS, POINTS)
    case(kind, "weighted points", {field: {"weighted": True, "scale": 2}}, POINTS, (BATCH, 3, 4, 3))
    CASES += [
        MaskedCase(kind, [POINTS, (BATCH, 3, 4, 3), (BATCH, 1)], {field: MARKED}, "marked points"),
        MaskedCase(kind, [(BATCH, 6), (BATCH, 2, 3)], {field: {"masked": True}}, "masked points"),
    ]


class ForecastCase(LayerCase):
    """A loss or a metric of predictions that say how sure they are; only these get a gradient, not the target.

    The variant says whether the target is masked, and which distribution the numbers have to suit.
    """

    def needs(self) -> list[bool]:
        return [index != 1 for index in range(len(self.shapes))]

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        numbers = super().source(layer, index, rng)
        counts = "poisson" in self.variant or "negative" in self.variant
        if index == 0 and "crossing" not in self.variant or index == 1 and ("lognormal" in self.variant or counts):
            numbers = np.abs(numbers) / 3 + 0.1
        if index == 1 and counts:
            numbers = np.floor(numbers * 3)
        if index == 1 and "masked" in self.variant:
            fields = numbers[:, :-1]  # without weights
            fields[rng.uniform(size=fields.shape) < 0.3] = np.nan
        return numbers


def forecast(kind: str, variant: str, settings: dict[str, Any], *shapes: tuple[int, ...]) -> None:
    """Add a case of a layer of predictions that say how sure they are."""
    CASES.append(ForecastCase(kind, shapes, {f"{kind[1:].lower()}_conf": settings}, variant))


MASKED_POINTS = {"masked": True, "weighted": True, "scale": 2}
FORMS = [
    ("kQuantileLoss", "crossing", {"quantile": [0.2, 0.9]}),
    ("kEnsembleLoss", "crossing", {"members": 2, "fairness": 0.7}),
]
FORMS += [
    ("kDistributionLoss", f"{name} {score}", {"distribution": name, "score": score})
    for name, score in (
        *((name, score) for name in ("normal", "laplace", "lognormal") for score in ("nll", "crps")),
        ("negative_binomial", "nll"),
    )
]
for kind, variant, settings in FORMS:
    forecast(kind, f"masked {variant}", {**settings, **MASKED_POINTS}, (BATCH, 4, 4, 3), (BATCH, 3, 4, 3), (BATCH,))
for kind, variant, settings in FORMS[:3]:
    forecast(kind, variant, settings, (BATCH, 6), (BATCH, 3))
    forecast(kind, f"steps {variant}", settings, (BATCH, 4, 6), (BATCH, 4, 3), (BATCH, 4))
forecast("kDistributionLoss", "poisson", {"distribution": "poisson"}, (BATCH, 6), (BATCH, 6))
for values in ({"distribution": "normal"}, {"quantile": [0.3, 0.6]}, {"members": 2}):
    name, masked = next(iter(values)), {**values, "masked": True, "weighted": True}
    forecast("kForecastScores", name, values, (BATCH, 6), (BATCH, 3))
    forecast("kForecastScores", f"masked {name}", masked, POINTS, (BATCH, 2, 4, 3))
for name in ("normal", "negative_binomial"):
    params = {"distributionparams_conf": {"distribution": name}}
    case("kDistributionParams", name, params, (BATCH, 6))
    case("kDistributionParams", f"{name} fields", params, (BATCH, 4, 4, 3))
case("kDistributionParams", "steps", {"distributionparams_conf": {"axis": 2}}, (BATCH, 3, 4))

error = {"fielderror_conf": {"masked": True, "weighted": True, "channel": ["t", "z"]}}
CASES += [
    MaskedCase("kFieldError", [POINTS, (BATCH, 3, 4, 3)], error, "marked points"),
    MaskedCase("kFieldError", [POINTS, POINTS, POINTS], {"fielderror_conf": {"masked": True}}, "climatology"),
]
case("kFieldError", "numbers", {"fielderror_conf": {"climatology": [k / 10 for k in range(24)]}}, POINTS, POINTS)


case("kReliability", "", {}, (BATCH, 4), (BATCH,), classes=4, probabilities=0)
case("kReliability", "answers", {}, ROWS, ROWS, classes=0, probabilities=0)


class PointCase(LayerCase):
    """A layer whose labels are a class for each point, some of them masked, or a class and a weight."""

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        if index != layer.labels.source:
            return super().source(layer, index, rng)
        shape, classes = self.shapes[1], max(2, self.shapes[0][1])
        if len(shape) < len(self.shapes[0]):  # integers, none of them masked
            return rng.integers(0, classes, shape)
        labels = rng.integers(-1, classes, shape).astype(np.float32)
        labels[rng.uniform(size=shape) < 0.1] = np.nan
        labels[:, 1:] = rng.uniform(0.5, 1.5, labels[:, 1:].shape)
        return labels


for kind in ("kFieldSoftmaxLoss", "kDiceLoss", "kSegmentationScore"):
    field, is_metric = f"{kind[1:].lower()}_conf", kind == "kSegmentationScore"
    more: dict[str, Any] = {"feature_dtype": np.int64 if is_metric else np.float32}
    volume, scaled = [(BATCH, 3, 2, 3, 2), (BATCH, 2, 2, 3, 2)], {} if is_metric else {"scale": 2}
    CASES += [
        PointCase(kind, [(BATCH, 3, 4, 2), (BATCH, 4, 2)], {}, "codes", **more),
        PointCase(kind, [(BATCH, 3, 7), (BATCH, 1, 7)], {field: scaled}, "masked", **more),
        PointCase(kind, volume, {field: {"weighted": True}}, "weighted volume", **more),
    ]
    if kind != "kFieldSoftmaxLoss":
        CASES.append(PointCase(kind, [(BATCH, 1, 4, 2), (BATCH, 1, 4, 2)], {}, "yes or no", **more))
rows = [(BATCH, 3, 4, 2), (BATCH, 4, 2), (BATCH, 1)], [(BATCH, 3, 7), (BATCH, 2, 7), (BATCH,)]
CASES += [
    PointCase("kFieldSoftmaxLoss", rows[0], {}, "weighted rows"),
    PointCase("kFieldSoftmaxLoss", rows[1], {"fieldsoftmaxloss_conf": {"weighted": True}}, "weighted rows, points"),
]

NUMBER = (BATCH, 1)
gaussian = {"distribution": "kGaussian"}
CASES += [
    PolicyCase("kPolicyGradientLoss", [(BATCH, 4), NUMBER, NUMBER], {}),
    PolicyCase("kPPOLoss", [(BATCH, 4), NUMBER, NUMBER, NUMBER], {"ppoloss_conf": {"clip": 0.3, "scale": 2}}),
    PolicyCase("kTDLoss", [(BATCH, 4), NUMBER, NUMBER], {"tdloss_conf": {"delta": 0.5}}),
    PolicyCase("kTDLoss", [(BATCH, 4), *[NUMBER] * 3], {"tdloss_conf": {"delta": 0, "scale": 2}}, "weighted"),
    PolicyCase("kEntropyLoss", [(BATCH, 4)], {"entropyloss_conf": {"scale": 0.5}}),
    GaussianCase(
        "kPolicyGradientLoss", [(BATCH, 4), (BATCH, 2), NUMBER], {"policygradientloss_conf": gaussian}, "Gaussian"
    ),
    GaussianCase("kPPOLoss", [(BATCH, 6), (BATCH, 3), NUMBER, NUMBER], {"ppoloss_conf": gaussian}, "Gaussian"),
    GaussianCase("kEntropyLoss", [(BATCH, 6)], {"entropyloss_conf": gaussian}, "Gaussian"),
]
case("kDueling", "", {}, (BATCH, 1), (BATCH, 4))
case("kMeanLoss", "", {"meanloss_conf": {"scale": -1}}, (BATCH, 3, 2))
CASES.append(FirstCase("kMeanLoss", [(BATCH, 3, 2), (BATCH, 6)], {"meanloss_conf": {"scale": 2}}, "weighted"))
case("kLearnedVector", "", {"learnedvector_conf": {"num_output": 4}}, ROWS)
case("kLearnedVector", "array", {"learnedvector_conf": {"num_output": 4, "leading": [3, 2]}}, ROWS)
case("kEntityF1", "", {}, (BATCH, 4, 5), ROWS, classes=5, steps=4)
case("kGatheredMetrics", "classes", {"gatheredmetrics_conf": {"metric": ["roc_auc"]}}, ROWS, ROWS, classes=12)
both = {"gatheredmetrics_conf": {"metric": ["average_precision", "roc_auc"]}}
case("kGatheredMetrics", "answers", both, (BATCH, 2, 1), ROWS, classes=2)
case("kTopKAccuracy", "", {"topkaccuracy_conf": {"k": 3}}, (BATCH, 4, 1, 2), ROWS, classes=8)
case("kPerplexity", "", {}, ROWS, ROWS, classes=12, probabilities=0)
case("kPerplexity", "of the labels", {}, (BATCH, 1), ROWS, classes=12, probabilities=0)
case("kConfusionMatrix", "one score", {}, (BATCH, 1), ROWS, classes=2)
case("kRegressionError", "", {}, ROWS, ROWS)
case("kRegressionError", "one number", {}, (BATCH, 1, 1), (BATCH,))
case("kConfusionMatrix", "", {}, ROWS, ROWS, classes=12)
case("kAccuracy", "", {}, ROWS, ROWS, classes=12)
case("kAccuracy", "top3", {"argsort_conf": {"topk": 3}}, ROWS, ROWS, classes=12)
case("kArgSort", "", {"argsort_conf": {"topk": 4}}, ROWS)
case("kCSVOutput kRecordOutput", "", {"store_conf": {"path": "out"}}, IMAGES)
case("kBridgeSrc kBridgeDst", "", {}, IMAGES)
case("kSplit", "", {"split_conf": {"num_splits": 3}}, IMAGES)
case("kSlice", "rows", {"slice_conf": {"slice_dim": 0, "num_slices": 3}}, ROWS)
case("kSlice", "columns", {"slice_conf": {"slice_dim": 1, "num_slices": 5}}, ROWS)
case("kSlice", "channels", {"slice_conf": {"slice_dim": 1, "num_slices": 2}}, IMAGES)
case("kSlice", "heights", {"slice_conf": {"slice_dim": 2, "num_slices": 3}}, IMAGES)
case("kConcate", "columns", {"concate_conf": {"concate_dim": 1, "num_concates": 3}}, ROWS, (BATCH, 1), (BATCH, 4))
case("kConcate", "channels", {"concate_conf": {"concate_dim": 1}}, IMAGES, (BATCH, 1, 7, 6))
case("kConcate", "heights", {"concate_conf": {"concate_dim": 2}}, IMAGES, (BATCH, 3, 2, 6))
case("kConcate", "rows", {}, ROWS, ROWS, joins_rows=True)
SEQUENCES, STEP = (BATCH, 4, 3), (BATCH, 3)
case("kOneHot", "sequences", {"onehot_conf": {"vocab_size": 6}}, (BATCH, 4), codes=6)
case("kOneHot", "step", {"onehot_conf": {"vocab_size": 6}}, (BATCH,), codes=6)
case("kEmbedding", "sequences", {"embedding_conf": {"vocab_size": 6, "feature_dim": 3}}, (BATCH, 4), codes=6)
DENSE = {"embedding_conf": {"vocab_size": 6, "feature_dim": 3, "dense_gradient": True}}
case("kEmbedding", "dense gradient", DENSE, (BATCH, 4), codes=6)
words = {"embedding_conf": {"vocab_size": 6, "feature_dim": 2}}
case("kEmbedding", "fewer", {"unroll_len": 3, **words}, (BATCH, 4), codes=6)
case("kEmbedding", "copy", {"unroll_index": 1, **words}, (BATCH, 4), codes=6)
for kind, field in (("kGRU", "gru_conf"), ("kLSTM", "lstm_conf"), ("kRNN", "rnn_conf")):
    case(kind, "sequences", {field: {"dim_hidden": 2}}, SEQUENCES)
    case(kind, "lengths", {field: {"dim_hidden": 2}}, SEQUENCES, (BATCH, 4), classes=3, steps=4)
    both = {"dim_hidden": 2, "bidirectional": True, "bias_term": False}
    case(kind, "bidirectional", {field: both}, SEQUENCES, (BATCH, 4), classes=3, steps=4)
    begin = {"dim_hidden": 2, "initial_state": True}
    state = (BATCH, 4 if kind == "kLSTM" else 2)
    case(kind, "initial state", {field: begin}, SEQUENCES, state)
    case(kind, "state, lengths", {field: begin}, SEQUENCES, (BATCH, 4), state, classes=3, steps=4)
    case(kind, "carry", {field: {"dim_hidden": 2, "carry": True}}, SEQUENCES)
    last = {**begin, "last_state": True, "recurrent_bias": True}
    case(kind, "last state", {field: last}, SEQUENCES, (BATCH, 4), state, classes=3, steps=4)
    both = {"dim_hidden": 2, "recurrent_bias": True, "bidirectional": True}
    case(kind, "two biases", {field: both}, SEQUENCES, (BATCH, 4), classes=3, steps=4)
for kind, field in (("kGRU", "gru_conf"), ("kLSTM", "lstm_conf")):
    by_tanh = {"dim_hidden": 2, "gate_activation": "TANH", "candidate_activation": "SIGMOID"}
    case(kind, "activations", {field: by_tanh}, SEQUENCES)
    linear = {"dim_hidden": 2, "candidate_activation": "IDENTITY", "bidirectional": True}
    case(kind, "linear candidate", {field: linear}, SEQUENCES, (BATCH, 4), classes=3, steps=4)
case("kLSTM", "cell activation", {"lstm_conf": {"dim_hidden": 2, "cell_activation": "SIGMOID"}}, SEQUENCES)
case("kGRU kRNN", "first-step", {"gru_conf": {"dim_hidden": 2}, "rnn_conf": {"dim_hidden": 2}}, STEP)
case("kGRU kRNN", "step", {"gru_conf": {"dim_hidden": 2}, "rnn_conf": {"dim_hidden": 2}}, STEP, (BATCH, 2))


class SentenceCase(LayerCase):
    """A case whose first source is codes of sequences of different lengths, none of them empty."""

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        return np.where(np.arange(4) < np.array([[4], [1], [3], [2], [4]]), rng.integers(0, self.codes, (BATCH, 4)), -1)


CASES.append(LayerCase("kSequenceLength", ((BATCH, 4, 3),), {"sequencelength_conf": {"mask_value": 9}}, "masked"))
CASES.append(SentenceCase("kSequenceLength", [(BATCH, 4)], codes=6, feature_dtype=np.int64))
LONG, LENGTHS = (BATCH, 7, 3), {"classes": 3, "steps": 7}
for method in ("MAX", "AVG", "SUM", "FIRST", "LAST"):
    pool = {"pool": method}
    case("kPooling1D", f"{method} of all", {"pooling1d_conf": pool}, LONG)
    case("kPooling1D", f"{method} by lengths", {"pooling1d_conf": pool}, LONG, (BATCH, 7), **LENGTHS)
    case("kPooling1D", f"{method} windows", {"pooling1d_conf": {**pool, "kernel": 3}}, LONG, (BATCH, 7), **LENGTHS)
case("kPooling1D", "ends", {"pooling1d_conf": {"pool": "ENDS"}}, (BATCH, 7, 4), (BATCH, 7), **LENGTHS)
case("kPooling1D", "overlapping", {"pooling1d_conf": {"kernel": 3, "stride": 1, "pool": "LAST"}}, LONG)
case("kConvolution1D", "", {"convolution1d_conf": {"num_filters": 4}}, LONG)
case("kConvolution1D", "lengths", {"convolution1d_conf": {"num_filters": 2, "kernel": 4}}, LONG, (BATCH, 7), **LENGTHS)
same = {"convolution1d_conf": {"num_filters": 2, "kernel": 4, "same": True, "bias_term": False}}
case("kConvolution1D", "same", same, LONG, (BATCH, 7), **LENGTHS)
spaced = {"convolution1d_conf": {"num_filters": 4, "group": 2, "dilation": 2, "same": True}}
case("kConvolution1D", "groups", spaced, (BATCH, 7, 4), (BATCH, 7), **LENGTHS)
case("kConvolution1D", "stride", {"convolution1d_conf": {"num_filters": 2, "stride": 2, "pad": 2}}, LONG)
case("kCosineSimilarity", "", {}, ROWS, ROWS)
case("kCosineSimilarity", "scaled", {"cosinesimilarity_conf": {"scale": 5}}, (BATCH, 2, 3), (BATCH, 2, 3))
for name in ("kScaledDot", "kDot", "kAdditive"):
    attention = {"attention_conf": {"num_heads": 3, "score": name}}
    kinds = "kAttention" if name == "kAdditive" else "kAttention kAttentionWeights"  # with the param of a kAttention
    case(kinds, name, attention, (BATCH, 2, 6), (BATCH, 4, 6))
    case("kAttention", f"{name} values", attention, (BATCH, 2, 6), (BATCH, 4, 6), (BATCH, 4, 6))
    lengths = {"classes": 3, "steps": 4}
    case(kinds, f"{name} lengths", attention, (BATCH, 2, 6), (BATCH, 4, 6), (BATCH, 4), **lengths)
causal = {"attention_conf": {"num_heads": 2, "causal": True}}
case("kAttention kAttentionWeights", "causal", causal, (BATCH, 4, 4), (BATCH, 4, 4))
rotary = {"attention_conf": {"num_heads": 2, "causal": True, "rotary": True}}
case("kAttention kAttentionWeights", "rotary", rotary, (BATCH, 4, 8), (BATCH, 4, 8))
sources = (BATCH, 4, 4), (BATCH, 4, 4), (BATCH, 4, 4), (BATCH, 4)
case("kAttention", "causal lengths", causal, *sources, classes=3, steps=4)
case("kPositionalEncoding", "", {}, SEQUENCES)
case("kPositionalEncoding", "scaled", {"positionalencoding_conf": {"scale": 2.5}}, (BATCH, 3, 4))
case("kCharRNN", "", {"char_rnn_conf": {}}, info=RecordInfo((5,), BATCH, has_labels=False))
case("kCharRNN", "labels", {"char_rnn_conf": {"labels": True}}, info=RecordInfo((5,), BATCH, label_shape=(5,)))
case("kRNNLabel", "sequences", {}, (BATCH, 5), codes=6)
case("kRNNLabel", "fewer", {"unroll_len": 3}, (BATCH, 5), codes=6)
case("kRNNLabel", "copy", {"unroll_index": 2}, (BATCH, 5), codes=6)
case("kRNNDummy", "numbers", {"rnn_dummy_conf": {"shape": [BATCH, 2], "low": -1, "high": 3}})
case("kRNNDummy", "codes", {"rnn_dummy_conf": {"shape": [BATCH], "integer": True, "high": 9}})
case("kRNNDummy", "again", {}, ROWS)
case("kCharRNNOutput", "", {"char_rnn_conf": {}}, (BATCH, 1))


class CategoryCase(LayerCase):
    """A case of codes of categories, 0 to 4 each, which get no gradient."""

    def needs(self) -> list[bool]:
        return [False]

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, 4, self.shapes[index]).astype(np.float64)


MEMBERS = (BATCH, 3, 4)  # of an ensemble
case("kBatchEnsemble", "", {"batchensemble_conf": {"num_output": 2, "members": 3}}, ROWS)
case("kBatchEnsemble", "own", {"batchensemble_conf": {"num_output": 2, "members": 3}}, MEMBERS)
case("kMemberDense", "", {"memberdense_conf": {"num_output": 2}}, MEMBERS)
for name in ("NUMBERS", "CLASSES", "ANSWERS"):
    case("kMemberMean", name, {"membermean_conf": {"of": name}}, MEMBERS)
case("kMemberSoftmaxLoss", "", {"softmaxloss_conf": {"scale": 3}}, (BATCH, 4), (BATCH,), MEMBERS, classes=4)
smoothed = {"softmaxloss_conf": {"label_smoothing": 0.2}}
case("kMemberSoftmaxLoss", "weighted", smoothed, (BATCH, 4), (BATCH,), MEMBERS, (BATCH,), classes=4)
case("kMemberSigmoidLoss", "", {}, (BATCH, 4), (BATCH, 4), MEMBERS, probabilities=1)
case("kMemberSigmoidLoss", "weighted", {}, (BATCH, 4), (BATCH, 4), MEMBERS, (BATCH, 4), probabilities=1)
case("kMemberEuclideanLoss", "", {}, (BATCH, 4), (BATCH, 4), MEMBERS)
case("kMemberEuclideanLoss", "weighted", {"euclideanloss_conf": {"scale": 2}}, *[(BATCH, 4)] * 2, MEMBERS, (BATCH,))
categories = {"categories_conf": {"size": [4, 9, 5, 7], "one_hot": 5, "width": 3}}
CASES.append(CategoryCase("kCategories", [(BATCH, 4)], categories))
CASES.append(CategoryCase("kCategories", [(BATCH, 2)], {"categories_conf": {"size": [4, 5]}}, "few"))
BINS = {"edge": [-2, -0.7, 0.3, 1, -1.5, 1.5, -1, 0, 1], "edges": [4, 2, 3], "width": 2}
for name, settings in {
    **{"B": {}, "A": {"linear": False}, "rectified": {"rectified": True}},
    "rectified A": {"linear": False, "rectified": True},
}.items():
    case("kPiecewiseLinear", name, {"piecewiselinear_conf": {**BINS, **settings}}, (BATCH, 3))
case("kPeriodic", "phases", {"periodic_conf": {"waves": 4, "width": 2}}, (BATCH, 3))
case("kPeriodic", "PLR", {"periodic_conf": {"waves": 4, "width": 2, "phases": False, "rectified": True}}, (BATCH, 3))
case("kColumnScale", "", {}, ROWS)

CASES = [case for case in CASES if case.kind in TYPES]
