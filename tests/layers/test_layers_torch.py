"""Layers against PyTorch, forward and backward, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga.layers import RecordInfo, Records
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import feature_parts
from tests.support.layer_cases import BATCH, IMAGES, ROWS, context

torch = pytest.importorskip("torch")
functional = torch.nn.functional
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
    needs = [index != layer.label_source for index in range(len(sources))]
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
WHOLE = {pool: conf("pooling", pool=pool, global_pooling=True) for pool in ("MAX", "AVG")}
EMBEDDING = conf("embedding", vocab_size=6, feature_dim=3, dense_gradient=True)


def hinge(p: int) -> tuple[LayerCase, Callable[..., Any]]:
    return (
        case("kHingeLoss", ROWS, ROWS, conf=conf("hingeloss", norm=f"L{p}", margin=0.7), classes=12),
        lambda _, x, labels: functional.multi_margin_loss(x, labels, p=p, margin=0.7) * ROWS[1],
    )


def layer_norm(first: int) -> tuple[LayerCase, Callable[..., Any]]:
    return (
        case("kLayerNorm", IMAGES, conf=conf("layernorm", first_axis=first)),
        lambda params, x: functional.layer_norm(x, IMAGES[first:], *params, eps=1e-5),
    )


PEERS: dict[str, tuple[LayerCase, Callable[..., Any]]] = {
    "convolution": (
        case("kConvolution", IMAGES, conf=OBLONG),
        lambda params, x: functional.conv2d(x, params[0].reshape(4, 3, 2, 3), params[1], (2, 1), (0, 2)),
    ),
    "max pooling": (
        case("kPooling", IMAGES, conf=conf("pooling", pool="MAX", kernel=4, stride=3, pad=2)),
        lambda _, x: functional.max_pool2d(x, 4, 3, 2),
    ),
    "mean pooling": (
        case("kPooling", IMAGES, conf=conf("pooling", pool="AVG", kernel=3, stride=2, pad=1)),
        lambda _, x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=True),
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
    **{f"layer norm from {first}": layer_norm(first) for first in (1, 3)},
    "GELU": (case("kActivation", IMAGES, conf=conf("activation", type="GELU")), lambda _, x: functional.gelu(x)),
    "softmax": (case("kSoftmax", ROWS), lambda _, x: x.softmax(1)),
    "embedding": (
        case("kEmbedding", (BATCH, 4), conf=EMBEDDING, codes=6),
        lambda params, codes: functional.embedding(codes.clamp(0), params[0]) * (codes >= 0)[..., None],
    ),
    "softmax loss": (
        case("kSoftmaxLoss", ROWS, ROWS, conf=conf("softmaxloss", scale=0.5), classes=12),
        lambda _, x, labels: functional.cross_entropy(x, labels) * 0.5,
    ),
    "label smoothing": (
        case("kSoftmaxLoss", ROWS, (BATCH,), conf=conf("softmaxloss", label_smoothing=0.1), classes=12),
        lambda _, x, labels: functional.cross_entropy(x, labels, label_smoothing=0.1),
    ),
    "Euclidean loss": (case("kEuclideanLoss", ROWS, ROWS), lambda _, x, y: (x - y).square().sum() / BATCH),
    "sigmoid cross-entropy": (
        case("kSigmoidCrossEntropyLoss", ROWS, ROWS, probabilities=1),
        lambda _, x, y: functional.binary_cross_entropy_with_logits(x, y, reduction="sum") / BATCH,
    ),
    **{f"hinge loss L{p}": hinge(p) for p in (1, 2)},
}


@pytest.mark.parametrize("name", PEERS)
def test_a_layer_agrees_with_torch(name: str):
    against_torch(*PEERS[name])


def test_top_k_agrees_with_torch():
    case = LayerCase("kArgSort", (ROWS,), {"argsort_conf": {"topk": 5}})
    _, sources = case.inputs(NUMPY, np.float32)
    feature = case.layer().compute_feature([], sources, context(NUMPY)).feature
    assert feature.tolist() == torch.tensor(np.array(sources[0])).topk(5).indices.tolist()


def test_a_net_of_layers_agrees_with_torch():
    """A chain of convolution, pooling, normalisation and inner product; flattening keeps torch's order of weights."""
    shapes = [(BATCH, 3, 9, 8), (BATCH, 4, 9, 8), (BATCH, 4, 4, 3)]
    cases = [
        LayerCase("kConvolution", (shapes[0],), {"convolution_conf": {"num_filters": 4, "pad": 1}}),
        LayerCase("kPooling", (shapes[1],)),
        LayerCase("kInnerProduct", (shapes[2],), {"innerproduct_conf": {"num_output": 3}}),
    ]
    pixels = np.random.default_rng(2).integers(0, 256, shapes[0]).astype(np.uint8)
    data = LayerCase("kRecordInput", (), {"store_conf": {"std_value": 255}}, info=RecordInfo((3, 9, 8), BATCH))
    feature = data.layer().compute_feature([], [Records(pixels)], context(NUMPY)).feature
    params = [case.inputs(NUMPY, np.float32)[0] for case in cases]
    for case, values in zip(cases, params, strict=True):
        feature = case.layer().compute_feature(values, [feature], context(NUMPY)).feature
    (w1, b1), _, (w2, b2) = ([torch.tensor(np.array(value)) for value in values] for values in params)
    theirs = functional.conv2d(torch.tensor(pixels) / 255, w1.reshape(4, 3, 3, 3), b1, padding=1)
    theirs = functional.max_pool2d(theirs, 3, 2).reshape(BATCH, -1) @ w2.T + b2
    np.testing.assert_allclose(feature, theirs.numpy(), rtol=1e-5, atol=1e-5)
