"""Layers against PyTorch, forward and backward, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import feature_parts
from tests.support.later_import import functional as F
from tests.support.later_import import torch
from tests.support.layer_cases import BATCH, IMAGES, ROWS, context

NUMPY = BACKENDS["numpy"]()


def against_torch(case: LayerCase, peer: Callable[..., Any]) -> None:
    """Compare the feature and all gradients of a layer with those of ``peer(params, *sources)``, in PyTorch."""
    layer, (params, sources) = case.layer(), case.inputs(NUMPY, np.float64)
    tensors = [torch.tensor(array, requires_grad=array.dtype == np.float64) for array in (*params, *sources)]
    theirs = peer(tensors[: len(params)], *tensors[len(params) :])
    output = layer.compute_feature(params, sources, context(NUMPY))
    if layer.is_loss:
        total, rows = output.metrics["loss"]
        assert total / rows == pytest.approx(float(theirs.detach()), rel=1e-12)
        grad = None
        theirs.backward()
    else:
        np.testing.assert_allclose(feature_parts(layer, output)[0], theirs.detach().numpy(), rtol=1e-9, atol=1e-12)
        grad = np.random.default_rng(0).normal(size=layer.shape)
        theirs.backward(torch.tensor(grad))
    needs = [index != layer.labels.source for index in range(len(sources))]
    for_sources, for_params = layer.compute_gradient(params, sources, output, grad, needs, context(NUMPY))
    for tensor, gradient in zip(tensors, (*for_params, *for_sources), strict=True):
        if gradient is None:
            assert tensor.grad is None
        else:
            np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-9, atol=1e-12)


def case(name: str, *shapes: tuple[int, ...], **fields: Any) -> LayerCase:
    """Return a case of fields of the layer's own settings, and of what makes its sources."""
    sources = {key: fields.pop(key) for key in ("codes", "classes", "probabilities") if key in fields}
    return LayerCase(name, shapes, {f"{name[1:].lower()}_conf": fields} if fields else {}, **sources)


OBLONG = {"num_filters": 4, "kernel_y": 2, "kernel_x": 3, "stride_y": 2, "pad_x": 2}
DILATED = {"dilation_y": 2, "dilation_x": 3, "pad_y": 1, "pad_x": 3}
CHANNELS, VOLUMES = (BATCH, 6, 3, 2), (BATCH, 2, 5, 4, 3)
TABLE = {"vocab_size": 6, "feature_dim": 3, "dense_gradient": True}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "RELU": lambda _, x: x.relu(),
    "SIGMOID": lambda _, x: x.sigmoid(),
    "TANH": lambda _, x: x.tanh(),
    "STANH": lambda _, x: 1.7159047 * (0.66666667 * x).tanh(),
    "GELU": lambda _, x: F.gelu(x),
    "SILU": lambda _, x: F.silu(x),
    "ELU": lambda _, x: F.elu(x),
    "SELU": lambda _, x: F.selu(x),
    "SOFTPLUS": lambda _, x: F.softplus(x, threshold=40),
    "CELU": lambda _, x: F.celu(x),
    "SOFTSIGN": lambda _, x: F.softsign(x),
    "MISH": lambda _, x: F.mish(x),
    "HARDSIGMOID": lambda _, x: (x / 6 + 0.5).clamp(0, 1),  # whose own gradient is rounded to float32
    "HARDSWISH": lambda _, x: F.hardswish(x),
    "EXP": lambda _, x: x.exp(),
    "ERF": lambda _, x: x.erf(),
    "SIN": lambda _, x: x.sin(),
    "COS": lambda _, x: x.cos(),
}
NUMBERS: dict[str, tuple[dict[str, float], Callable[..., Any]]] = {
    "ELU": ({"alpha": 0.3}, lambda _, x: F.elu(x, 0.3)),
    "CELU": ({"alpha": 2}, lambda _, x: F.celu(x, 2)),
    "HARDSIGMOID": ({"alpha": 0.7, "beta": 0.2}, lambda _, x: (0.7 * x + 0.2).clamp(0, 1)),
}


def steps_convolution(kernel: int, stride: int, pad: tuple[int, int]) -> Callable[..., Any]:
    """Return a convolution over the steps of (B, T, 3), padded before the first and after the last."""

    def convolve(params: Any, x: Any) -> Any:
        filters = params[0].reshape(2, kernel, 3).transpose(1, 2)
        return F.conv1d(F.pad(x.transpose(1, 2), pad), filters, params[1], stride).transpose(1, 2)

    return convolve


def hinge(p: int) -> tuple[LayerCase, Callable[..., Any]]:
    return (
        case("kHingeLoss", ROWS, ROWS, norm=f"L{p}", margin=0.7, scale=2, classes=12),
        lambda _, x, labels: F.multi_margin_loss(x, labels, p=p, margin=0.7) * 2 * ROWS[1],
    )


def focal(_: Any, x: Any, y: Any) -> Any:
    """torchvision.ops.sigmoid_focal_loss(x, y, alpha=0.25, gamma=1.5, reduction="sum") / BATCH, as written there."""
    p, entropy = x.sigmoid(), F.binary_cross_entropy_with_logits(x, y, reduction="none")
    right = p * y + (1 - p) * (1 - y)
    return ((0.25 * y + 0.75 * (1 - y)) * entropy * (1 - right) ** 1.5).sum() / BATCH


def contrastive(_: Any, x: Any, y: Any, labels: Any) -> Any:
    d = F.pairwise_distance(x, y, eps=0)
    return (labels * d**2 + (1 - labels) * (3 - d).clamp(min=0) ** 2).sum() / 2 / BATCH


EXACT, CORNERS = {"exclude_outside": True, "antialias": True}, {"coordinates": "kAlignCorners"}
RESIZED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"size": [5, 11]}, {"size": (5, 11), "mode": "bilinear"}),
    ({"size": [1, 11], **CORNERS}, {"size": (1, 11), "mode": "bilinear", "align_corners": True}),
    ({"scale": [0.7, 1.3]}, {"scale_factor": (0.7, 1.3), "mode": "bilinear"}),
    ({"size": [5, 11], "method": "kCubic"}, {"size": (5, 11), "mode": "bicubic"}),
    ({"size": [5, 11], "method": "kCubic", **CORNERS}, {"size": (5, 11), "mode": "bicubic", "align_corners": True}),
    ({"size": [3, 11], **EXACT}, {"size": (3, 11), "mode": "bilinear", "antialias": True}),
    (
        {"size": [3, 4], "method": "kCubic", "cubic_coeff": -0.5, **EXACT},
        {"size": (3, 4), "mode": "bicubic", "antialias": True},
    ),
    (
        {"size": [5, 11], "method": "kNearest", "coordinates": "kAsymmetric", "rounding": "kFloor"},
        {"size": (5, 11), "mode": "nearest"},
    ),
    ({"size": [5, 11], "method": "kNearest", "rounding": "kPreferCeil"}, {"size": (5, 11), "mode": "nearest-exact"}),
]
PEERS: list[tuple[LayerCase, Callable[..., Any]]] = [
    (case("kConvolution", IMAGES, **OBLONG), lambda p, x: F.conv2d(x, p[0].reshape(4, 3, 2, 3), p[1], (2, 1), (0, 2))),
    (
        case("kConvolution", (BATCH, 6, 4, 5), num_filters=4, group=2, pad=1, stride=2),
        lambda p, x: F.conv2d(x, p[0].reshape(4, 3, 3, 3), p[1], 2, 1, groups=2),
    ),
    (
        case("kConvolution", (BATCH, 3, 8, 9), num_filters=6, group=3, **DILATED),
        lambda p, x: F.conv2d(x, p[0].reshape(6, 1, 3, 3), p[1], 1, (1, 3), (2, 3), 3),
    ),
    (
        case("kConvolution1D", (BATCH, 9, 4), num_filters=6, group=2, dilation=3, pad=2),
        lambda p, x: F.conv1d(x.transpose(1, 2), p[0].reshape(6, 3, 2).transpose(1, 2), p[1], 1, 2, 3, 2).transpose(
            1, 2
        ),
    ),
    (case("kPooling", IMAGES, pool="MAX", kernel=4, stride=3, pad=2), lambda _, x: F.max_pool2d(x, 4, 3, 2)),
    (case("kPooling", IMAGES, pool="AVG", kernel=3, stride=2, pad=1), lambda _, x: F.avg_pool2d(x, 3, 2, 1)),
    (
        case("kPooling", IMAGES, pool="AVG", kernel=3, stride=2, pad=1, count_include_pad=False),
        lambda _, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    (
        case("kPooling", IMAGES, kernel=3, stride=2, dilation=2, pad=1, ceil=True),
        lambda _, x: F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True),
    ),
    (
        case("kPooling", VOLUMES, kernel=2, stride=1, dilation_z=3, dilation_x=2, pad_y=1),
        lambda _, x: F.max_pool3d(x, 2, 1, (0, 1, 0), (3, 1, 2)),
    ),
    *[
        (
            case("kPooling", IMAGES, pool=pool, output_size=size),
            lambda _, x, size=size, pool=pool: getattr(F, f"adaptive_{pool.lower()}_pool2d")(x, size),
        )
        for pool in ("AVG", "MAX")
        for size in ([3, 4], [7, 9], [1, 2])
    ],
    (case("kPooling", VOLUMES, pool="AVG", output_size=[3, 2, 2]), lambda _, x: F.adaptive_avg_pool3d(x, (3, 2, 2))),
    *[(case("kResize", IMAGES, **conf), lambda _, x, how=how: F.interpolate(x, **how)) for conf, how in RESIZED],
    *[
        (case("kIndex", IMAGES, index=index), take)
        for index, take in {
            "[2, 0, 2]": lambda _, x: x[:, [2, 0, 2]],
            "1:, ::3, [-1, 0]": lambda _, x: x[:, 1:, ::3][:, :, :, [-1, 0]],
            "..., ::-1": lambda _, x: x.flip(3),
            "1, new, ..., [4, 4, 1]": lambda _, x: x[:, 1, None][..., [4, 4, 1]],
        }.items()
    ],
    (case("kPadding", IMAGES, before=[1, 0], after=[2, 3], value=-1), lambda _, x: F.pad(x, (0, 3, 1, 2), value=-1)),
    (
        case("kConvolution", IMAGES, num_filters=4, kernel_y=2, kernel_x=4, same=True),
        lambda p, x: F.conv2d(F.pad(x, (1, 2, 0, 1)), p[0].reshape(4, 3, 2, 4), p[1]),
    ),
    (case("kPooling", IMAGES, pool="MAX", global_pooling=True), lambda _, x: F.adaptive_max_pool2d(x, 1)),
    (case("kPooling", IMAGES, pool="AVG", global_pooling=True), lambda _, x: F.adaptive_avg_pool2d(x, 1)),
    (case("kLRN", CHANNELS, local_size=5, alpha=2, beta=1, knorm=2), lambda _, x: F.local_response_norm(x, 5, 2, 1, 2)),
    *[(case("kBM", size), lambda p, x: F.batch_norm(x, None, None, *p[:2], training=True)) for size in (IMAGES, ROWS)],
    (case("kBM", IMAGES, use_global_stats=True), lambda p, x: F.batch_norm(x, *(q.detach() for q in p[2:]), *p[:2])),
    *[
        (case(kind, IMAGES, first_axis=k), lambda p, x, k=k, norm=norm: getattr(F, norm)(x, IMAGES[k:], *p, eps=1e-5))
        for kind, norm in (("kLayerNorm", "layer_norm"), ("kRMSNorm", "rms_norm"))
        for k in (1, 3)
    ],
    (case("kInnerProduct", IMAGES, num_output=4), lambda p, x: F.linear(x.flatten(1), *p)),
    *[
        (
            case("kConvolution1D", (BATCH, 7, 3), num_filters=2, kernel=kernel, **more),
            steps_convolution(kernel, more.get("stride", 1), pad),
        )
        for kernel, pad, more in ((3, (0, 0), {}), (4, (1, 2), {"same": True}), (2, (1, 1), {"stride": 3, "pad": 1}))
    ],
    *[(case("kActivation", IMAGES, type=name), function) for name, function in FUNCTIONS.items()],
    *[(case("kActivation", IMAGES, type=name, **numbers), function) for name, (numbers, function) in NUMBERS.items()],
    (case("kActivation", IMAGES), FUNCTIONS["RELU"]),
    (case("kSigmoid", ROWS), FUNCTIONS["SIGMOID"]),
    (case("kSTanh", ROWS), FUNCTIONS["STANH"]),
    (case("kReLU", ROWS, negative_slope=0.25), lambda _, x: F.leaky_relu(x, 0.25)),
    (case("kPReLU", IMAGES), lambda p, x: F.prelu(x, p[0])),
    (case("kPReLU", ROWS, shared=True), lambda p, x: F.prelu(x, p[0])),
    (case("kSoftmax", ROWS), lambda _, x: x.softmax(1)),
    (case("kEmbedding", (5, 4), **TABLE, codes=6), lambda p, x: F.embedding(x.clamp(0), p[0]) * (x >= 0)[..., None]),
    (case("kSoftmaxLoss", ROWS, ROWS, scale=0.5, classes=12), lambda _, x, labels: F.cross_entropy(x, labels) * 0.5),
    (
        case("kSoftmaxLoss", ROWS, ROWS, label_smoothing=0.1),
        lambda _, x, y: F.cross_entropy(x, 0.9 * y.double() + 0.1 / 12),
    ),
    (
        case("kSoftmaxLoss", ROWS, (BATCH,), label_smoothing=0.1, classes=12),
        lambda _, x, labels: F.cross_entropy(x, labels, label_smoothing=0.1),
    ),
    (case("kEuclideanLoss", ROWS, ROWS), lambda _, x, y: (x - y).square().sum() / BATCH),
    (
        case("kEuclideanLoss", ROWS, (BATCH, 3, 4), scale=0.5),
        lambda _, x, y: ((x - y.flatten(1)) ** 2).sum() / 2 / BATCH,
    ),
    (
        case("kHuberLoss", ROWS, (BATCH, 3, 4), delta=0.7, scale=2),
        lambda _, x, y: F.huber_loss(x, y.flatten(1), reduction="sum", delta=0.7) * 2 / BATCH,
    ),
    (case("kCosineSimilarity", ROWS, ROWS, scale=5), lambda _, x, y: 5 * F.cosine_similarity(x, y)[:, None]),
    (
        case("kSigmoidCrossEntropyLoss", ROWS, ROWS, probabilities=1),
        lambda _, x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum") / BATCH,
    ),
    *[hinge(p) for p in (1, 2)],
    (case("kAbsoluteLoss", ROWS, ROWS, scale=2), lambda _, x, y: F.l1_loss(x, y, reduction="sum") * 2 / BATCH),
    (case("kFocalLoss", ROWS, ROWS, gamma=1.5, probabilities=1), focal),
    (
        case("kKLDivergenceLoss", ROWS, ROWS, probabilities=1),
        lambda _, x, y: F.kl_div(x.log_softmax(1), y, reduction="batchmean"),
    ),
    (case("kCosineLoss", ROWS, ROWS, scale=2), lambda _, x, y: F.cosine_embedding_loss(x, y, torch.ones(BATCH)) * 2),
    (case("kContrastiveLoss", (BATCH, 3), (BATCH, 3), ROWS, margin=3, classes=2), contrastive),
    (case("kTripletLoss", *[ROWS] * 3, margin=0.5), lambda _, x, y, z: F.triplet_margin_loss(x, y, z, 0.5, eps=0)),
]


@pytest.mark.parametrize(("case", "peer"), PEERS, ids=lambda each: getattr(each, "kind", ""))
def test_a_layer_agrees_with_torch(case: LayerCase, peer: Callable[..., Any]):
    against_torch(case, peer)
