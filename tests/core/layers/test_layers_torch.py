"""Layers against PyTorch, forward and backward, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import feature_parts
from tests.support.later_import import functional, torch
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


def conf(kind: str, **fields: Any) -> dict[str, Any]:
    return {f"{kind}_conf": fields}


def case(name: str, *shapes: tuple[int, ...], **more: Any) -> LayerCase:
    return LayerCase(name, shapes, **more)


OBLONG = conf("convolution", num_filters=4, kernel_y=2, kernel_x=3, stride_y=2, stride_x=1, pad_y=0, pad_x=2)
DILATED = {"dilation_y": 2, "dilation_x": 3, "pad_y": 1, "pad_x": 3}
WHOLE = {pool: conf("pooling", pool=pool, global_pooling=True) for pool in ("MAX", "AVG")}
VOLUMES = (BATCH, 2, 5, 4, 3)
EMBEDDING = conf("embedding", vocab_size=6, feature_dim=3, dense_gradient=True)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "RELU": lambda _, x: x.relu(),
    "SIGMOID": lambda _, x: x.sigmoid(),
    "TANH": lambda _, x: x.tanh(),
    "STANH": lambda _, x: 1.7159047 * (0.66666667 * x).tanh(),
    "GELU": lambda _, x: functional.gelu(x),
    "SILU": lambda _, x: functional.silu(x),
    "ELU": lambda _, x: functional.elu(x),
    "SELU": lambda _, x: functional.selu(x),
    "SOFTPLUS": lambda _, x: functional.softplus(x, threshold=40),
    "CELU": lambda _, x: functional.celu(x),
    "SOFTSIGN": lambda _, x: functional.softsign(x),
    "MISH": lambda _, x: functional.mish(x),
    "HARDSIGMOID": lambda _, x: (x / 6 + 0.5).clamp(0, 1),  # whose own gradient is rounded to float32
    "HARDSWISH": lambda _, x: functional.hardswish(x),
    "EXP": lambda _, x: x.exp(),
    "ERF": lambda _, x: x.erf(),
    "SIN": lambda _, x: x.sin(),
    "COS": lambda _, x: x.cos(),
}
NUMBERS: dict[str, tuple[dict[str, float], Callable[..., Any]]] = {
    "ELU": ({"alpha": 0.3}, lambda _, x: functional.elu(x, 0.3)),
    "CELU": ({"alpha": 2}, lambda _, x: functional.celu(x, 2)),
    "HARDSIGMOID": ({"alpha": 0.7, "beta": 0.2}, lambda _, x: (0.7 * x + 0.2).clamp(0, 1)),
}


def steps_convolution(kernel: int, stride: int, pad: tuple[int, int]) -> Callable[..., Any]:
    """Return a convolution over the steps of (B, T, 3), padded before the first and after the last."""

    def convolve(params: Any, x: Any) -> Any:
        filters = params[0].reshape(2, kernel, 3).transpose(1, 2)
        return functional.conv1d(functional.pad(x.transpose(1, 2), pad), filters, params[1], stride).transpose(1, 2)

    return convolve


def hinge(p: int) -> tuple[LayerCase, Callable[..., Any]]:
    return (
        case("kHingeLoss", ROWS, ROWS, conf=conf("hingeloss", norm=f"L{p}", margin=0.7, scale=2), classes=12),
        lambda _, x, labels: functional.multi_margin_loss(x, labels, p=p, margin=0.7) * 2 * ROWS[1],
    )


def focal(_: Any, x: Any, y: Any) -> Any:
    """torchvision.ops.sigmoid_focal_loss(x, y, alpha=0.25, gamma=1.5, reduction="sum") / BATCH, as written there."""
    p, entropy = x.sigmoid(), functional.binary_cross_entropy_with_logits(x, y, reduction="none")
    right = p * y + (1 - p) * (1 - y)
    return ((0.25 * y + 0.75 * (1 - y)) * entropy * (1 - right) ** 1.5).sum() / BATCH


def contrastive(_: Any, x: Any, y: Any, labels: Any) -> Any:
    d = functional.pairwise_distance(x, y, eps=0)
    return (labels * d**2 + (1 - labels) * (3 - d).clamp(min=0) ** 2).sum() / 2 / BATCH


def layer_norm(first: int) -> tuple[LayerCase, Callable[..., Any]]:
    return (
        case("kLayerNorm", IMAGES, conf=conf("layernorm", first_axis=first)),
        lambda params, x: functional.layer_norm(x, IMAGES[first:], *params, eps=1e-5),
    )


def rms_norm(first: int) -> tuple[LayerCase, Callable[..., Any]]:
    return (
        case("kRMSNorm", IMAGES, conf=conf("rmsnorm", first_axis=first)),
        lambda params, x: functional.rms_norm(x, IMAGES[first:], *params, eps=1e-5),
    )


EXACT = {"exclude_outside": True, "antialias": True}
RESIZED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": ({"size": [5, 11]}, {"size": (5, 11), "mode": "bilinear"}),
    "linear, corners": (
        {"size": [1, 11], "coordinates": "kAlignCorners"},
        {"size": (1, 11), "mode": "bilinear", "align_corners": True},
    ),
    "linear, scale": ({"scale": [0.7, 1.3]}, {"scale_factor": (0.7, 1.3), "mode": "bilinear"}),
    "cubic": ({"size": [5, 11], "method": "kCubic"}, {"size": (5, 11), "mode": "bicubic"}),
    "cubic, corners": (
        {"size": [5, 11], "method": "kCubic", "coordinates": "kAlignCorners"},
        {"size": (5, 11), "mode": "bicubic", "align_corners": True},
    ),
    "linear, antialias": ({"size": [3, 11], **EXACT}, {"size": (3, 11), "mode": "bilinear", "antialias": True}),
    "cubic, antialias": (
        {"size": [3, 4], "method": "kCubic", "cubic_coeff": -0.5, **EXACT},
        {"size": (3, 4), "mode": "bicubic", "antialias": True},
    ),
    "nearest": (
        {"size": [5, 11], "method": "kNearest", "coordinates": "kAsymmetric", "rounding": "kFloor"},
        {"size": (5, 11), "mode": "nearest"},
    ),
    "nearest, exact": (
        {"size": [5, 11], "method": "kNearest", "rounding": "kPreferCeil"},
        {"size": (5, 11), "mode": "nearest-exact"},
    ),
}
PEERS: dict[str, tuple[LayerCase, Callable[..., Any]]] = {
    "convolution": (
        case("kConvolution", IMAGES, conf=OBLONG),
        lambda params, x: functional.conv2d(x, params[0].reshape(4, 3, 2, 3), params[1], (2, 1), (0, 2)),
    ),
    "grouped convolution": (
        case("kConvolution", (BATCH, 6, 4, 5), conf=conf("convolution", num_filters=4, group=2, pad=1, stride=2)),
        lambda params, x: functional.conv2d(x, params[0].reshape(4, 3, 3, 3), params[1], 2, 1, groups=2),
    ),
    "dilated depthwise convolution": (
        case("kConvolution", (BATCH, 3, 8, 9), conf=conf("convolution", num_filters=6, group=3, **DILATED)),
        lambda params, x: functional.conv2d(x, params[0].reshape(6, 1, 3, 3), params[1], 1, (1, 3), (2, 3), 3),
    ),
    "grouped and dilated convolution of steps": (
        case("kConvolution1D", (BATCH, 9, 4), conf=conf("convolution1d", num_filters=6, group=2, dilation=3, pad=2)),
        lambda params, x: functional.conv1d(
            x.transpose(1, 2), params[0].reshape(6, 3, 2).transpose(1, 2), params[1], 1, 2, 3, 2
        ).transpose(1, 2),
    ),
    "max pooling": (
        case("kPooling", IMAGES, conf=conf("pooling", pool="MAX", kernel=4, stride=3, pad=2)),
        lambda _, x: functional.max_pool2d(x, 4, 3, 2),
    ),
    "mean pooling": (
        case("kPooling", IMAGES, conf=conf("pooling", pool="AVG", kernel=3, stride=2, pad=1)),
        lambda _, x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=True),
    ),
    "mean pooling without padding": (
        case("kPooling", IMAGES, conf=conf("pooling", pool="AVG", kernel=3, stride=2, pad=1, count_include_pad=False)),
        lambda _, x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    "dilated max pooling": (
        case("kPooling", IMAGES, conf=conf("pooling", kernel=3, stride=2, dilation=2, pad=1, ceil=True)),
        lambda _, x: functional.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True),
    ),
    "dilated max pooling of volumes": (
        case("kPooling", VOLUMES, conf=conf("pooling", kernel=2, stride=1, dilation_z=3, dilation_x=2, pad_y=1)),
        lambda _, x: functional.max_pool3d(x, 2, 1, (0, 1, 0), (3, 1, 2)),
    ),
    **{
        f"{size} windows, {pool}": (
            case("kPooling", IMAGES, conf=conf("pooling", pool=pool, output_size=size)),
            lambda _, x, size=size, pool=pool: getattr(functional, f"adaptive_{pool.lower()}_pool2d")(x, size),
        )
        for pool in ("AVG", "MAX")
        for size in ([3, 4], [7, 9], [1, 2])
    },
    "windows of volumes": (
        case("kPooling", VOLUMES, conf=conf("pooling", pool="AVG", output_size=[3, 2, 2])),
        lambda _, x: functional.adaptive_avg_pool3d(x, (3, 2, 2)),
    ),
    **{
        f"resized, {name}": (
            case("kResize", IMAGES, conf=conf("resize", **settings)),
            lambda _, x, how=how: functional.interpolate(x, **how),
        )
        for name, (settings, how) in RESIZED.items()
    },
    **{
        f"[:, {index}]": (case("kIndex", IMAGES, conf=conf("index", index=index)), take)
        for index, take in {
            "[2, 0, 2]": lambda _, x: x[:, [2, 0, 2]],
            "1:, ::3, [-1, 0]": lambda _, x: x[:, 1:, ::3][:, :, :, [-1, 0]],
            "..., ::-1": lambda _, x: x.flip(3),
            "1, new, ..., [4, 4, 1]": lambda _, x: x[:, 1, None][..., [4, 4, 1]],
        }.items()
    },
    "padding with a value": (
        case("kPadding", IMAGES, conf=conf("padding", before=[1, 0], after=[2, 3], value=-1.5)),
        lambda _, x: functional.pad(x, (0, 3, 1, 2), value=-1.5),
    ),
    "same convolution of an even window": (
        case("kConvolution", IMAGES, conf=conf("convolution", num_filters=4, kernel_y=2, kernel_x=4, same=True)),
        lambda params, x: functional.conv2d(functional.pad(x, (1, 2, 0, 1)), params[0].reshape(4, 3, 2, 4), params[1]),
    ),
    "maximum of the image": (
        case("kPooling", IMAGES, conf=WHOLE["MAX"]),
        lambda _, x: functional.adaptive_max_pool2d(x, 1),
    ),
    "mean of the image": (
        case("kPooling", IMAGES, conf=WHOLE["AVG"]),
        lambda _, x: functional.adaptive_avg_pool2d(x, 1),
    ),
    "local response normalisation": (
        case("kLRN", (BATCH, 6, 3, 2), conf=conf("lrn", local_size=5, alpha=2.0, beta=0.5, knorm=2.0)),
        lambda _, x: functional.local_response_norm(x, 5, 2.0, 0.5, 2.0),
    ),
    **{
        f"batch norm of {len(shape)} dimensions": (
            case("kBM", shape),
            lambda params, x: functional.batch_norm(x, None, None, *params[:2], training=True, eps=1e-5),
        )
        for shape in (IMAGES, ROWS)
    },
    "batch norm by running statistics": (
        case("kBM", IMAGES, conf=conf("bm", use_global_stats=True)),
        lambda params, x: functional.batch_norm(x, *(p.detach() for p in params[2:]), *params[:2], eps=1e-5),
    ),
    **{f"layer norm from {first}": layer_norm(first) for first in (1, 3)},
    **{f"RMS norm from {first}": rms_norm(first) for first in (1, 3)},
    "inner product": (
        case("kInnerProduct", IMAGES, conf=conf("innerproduct", num_output=4)),
        lambda params, x: functional.linear(x.flatten(1), *params),
    ),
    **{
        f"convolution of {kernel} steps": (
            case("kConvolution1D", (BATCH, 7, 3), conf=conf("convolution1d", num_filters=2, kernel=kernel, **more)),
            steps_convolution(kernel, more.get("stride", 1), pad),
        )
        for kernel, pad, more in ((3, (0, 0), {}), (4, (1, 2), {"same": True}), (2, (1, 1), {"stride": 3, "pad": 1}))
    },
    **{
        name: (case("kActivation", IMAGES, conf=conf("activation", type=name)), function)
        for name, function in FUNCTIONS.items()
    },
    **{
        f"{name} with numbers": (case("kActivation", IMAGES, conf=conf("activation", type=name, **numbers)), function)
        for name, (numbers, function) in NUMBERS.items()
    },
    "the default activation": (case("kActivation", IMAGES), FUNCTIONS["RELU"]),
    "sigmoid": (case("kSigmoid", ROWS), FUNCTIONS["SIGMOID"]),
    "LeCun's tangent": (case("kSTanh", ROWS), FUNCTIONS["STANH"]),
    "leaky ReLU": (
        case("kReLU", ROWS, conf=conf("relu", negative_slope=0.25)),
        lambda _, x: functional.leaky_relu(x, 0.25),
    ),
    "learnt slopes": (case("kPReLU", IMAGES), lambda params, x: functional.prelu(x, params[0])),
    "a shared slope": (
        case("kPReLU", ROWS, conf=conf("prelu", shared=True)),
        lambda params, x: functional.prelu(x, params[0]),
    ),
    "softmax": (case("kSoftmax", ROWS), lambda _, x: x.softmax(1)),
    "embedding": (
        case("kEmbedding", (BATCH, 4), conf=EMBEDDING, codes=6),
        lambda params, codes: functional.embedding(codes.clamp(0), params[0]) * (codes >= 0)[..., None],
    ),
    "softmax loss": (
        case("kSoftmaxLoss", ROWS, ROWS, conf=conf("softmaxloss", scale=0.5), classes=12),
        lambda _, x, labels: functional.cross_entropy(x, labels) * 0.5,
    ),
    "soft labels": (
        case("kSoftmaxLoss", ROWS, ROWS, conf=conf("softmaxloss", label_smoothing=0.1)),
        lambda _, x, labels: functional.cross_entropy(x, 0.9 * labels.double() + 0.1 / 12),
    ),
    "label smoothing": (
        case("kSoftmaxLoss", ROWS, (BATCH,), conf=conf("softmaxloss", label_smoothing=0.1), classes=12),
        lambda _, x, labels: functional.cross_entropy(x, labels, label_smoothing=0.1),
    ),
    "Euclidean loss": (case("kEuclideanLoss", ROWS, ROWS), lambda _, x, y: (x - y).square().sum() / BATCH),
    "scaled Euclidean loss": (
        case("kEuclideanLoss", ROWS, (BATCH, 3, 4), conf=conf("euclideanloss", scale=0.5)),
        lambda _, x, y: (x - y.flatten(1)).square().sum() / BATCH / 2,
    ),
    "Huber's loss": (
        case("kHuberLoss", ROWS, (BATCH, 3, 4), conf=conf("huberloss", delta=0.7, scale=2)),
        lambda _, x, y: functional.huber_loss(x, y.flatten(1), reduction="sum", delta=0.7) * 2 / BATCH,
    ),
    "cosine similarity": (
        case("kCosineSimilarity", ROWS, ROWS, conf=conf("cosinesimilarity", scale=5)),
        lambda _, x, y: 5 * functional.cosine_similarity(x, y)[:, None],
    ),
    "sigmoid cross-entropy": (
        case("kSigmoidCrossEntropyLoss", ROWS, ROWS, probabilities=1),
        lambda _, x, y: functional.binary_cross_entropy_with_logits(x, y, reduction="sum") / BATCH,
    ),
    **{f"hinge loss L{p}": hinge(p) for p in (1, 2)},
    "absolute error": (
        case("kAbsoluteLoss", ROWS, ROWS, conf=conf("absoluteloss", scale=2)),
        lambda _, x, y: functional.l1_loss(x, y, reduction="sum") * 2 / BATCH,
    ),
    "focal loss": (case("kFocalLoss", ROWS, ROWS, conf=conf("focalloss", gamma=1.5), probabilities=1), focal),
    "divergence": (
        case("kKLDivergenceLoss", ROWS, ROWS, probabilities=1),
        lambda _, x, y: functional.kl_div(x.log_softmax(1), y, reduction="batchmean"),
    ),
    "cosine loss": (
        case("kCosineLoss", ROWS, ROWS, conf=conf("cosineloss", scale=2)),
        lambda _, x, y: functional.cosine_embedding_loss(x, y, torch.ones(BATCH)) * 2,
    ),
    "contrastive loss": (
        case("kContrastiveLoss", (BATCH, 3), (BATCH, 3), ROWS, conf=conf("contrastiveloss", margin=3), classes=2),
        contrastive,
    ),
    "triplet loss": (
        case("kTripletLoss", ROWS, ROWS, ROWS, conf=conf("tripletloss", margin=0.5)),
        lambda _, x, y, z: functional.triplet_margin_loss(x, y, z, margin=0.5, eps=0),
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_a_layer_agrees_with_torch(name: str):
    against_torch(*PEERS[name])
