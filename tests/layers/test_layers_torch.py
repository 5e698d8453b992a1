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
    """Compare the feature and all gradients of a layer with those of ``peer(params, sources)``, in PyTorch."""
    layer, (params, sources) = case.layer(), case.inputs(NUMPY, np.float64)
    tensors = [torch.tensor(array, requires_grad=array.dtype == np.float64) for array in (*params, *sources)]
    theirs = peer(tensors[: len(params)], tensors[len(params) :])
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


@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [((3, 3), (1, 1), (1, 1)), ((2, 3), (2, 1), (0, 2)), ((5, 4), (3, 3), (2, 0))]
)
def test_convolution(kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int]):
    conf = dict(
        zip(("kernel_y", "kernel_x", "stride_y", "stride_x", "pad_y", "pad_x"), kernel + stride + pad, strict=True)
    )
    case = LayerCase("kConvolution", (IMAGES,), {"convolution_conf": {"num_filters": 4, **conf}})
    against_torch(
        case,
        lambda params, sources: functional.conv2d(
            sources[0], params[0].reshape(4, 3, *kernel), params[1], stride=stride, padding=pad
        ),
    )


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 0), (3, 2, 1), (4, 3, 2)])
def test_pooling_rounds_down_and_counts_padding(kernel: int, stride: int, pad: int):
    conf = {"kernel": kernel, "stride": stride, "pad": pad}
    against_torch(
        LayerCase("kPooling", (IMAGES,), {"pooling_conf": {"pool": "MAX", **conf}}),
        lambda _, sources: functional.max_pool2d(sources[0], kernel, stride, pad),
    )
    against_torch(
        LayerCase("kPooling", (IMAGES,), {"pooling_conf": {"pool": "AVG", **conf}}),
        lambda _, sources: functional.avg_pool2d(sources[0], kernel, stride, pad, count_include_pad=True),
    )


@pytest.mark.parametrize(
    ("size", "alpha", "beta", "k"), [(3, 5e-5, 0.75, 1.0), (5, 2.0, 0.5, 2.0), (9, 1.0, 0.75, 1.0)]
)
def test_lrn(size: int, alpha: float, beta: float, k: float):
    conf = {"local_size": size, "alpha": alpha, "beta": beta, "knorm": k}
    against_torch(
        LayerCase("kLRN", ((BATCH, 6, 3, 2),), {"lrn_conf": conf}),
        lambda _, sources: functional.local_response_norm(sources[0], size, alpha, beta, k),
    )


@pytest.mark.parametrize("shape", [IMAGES, ROWS])
def test_batch_norm_in_training(shape: tuple[int, ...]):
    case = LayerCase("kBM", (shape,))
    state: dict[str, Any] = {}

    def peer(params: Any, sources: Any) -> Any:
        state["mean"], state["variance"] = params[2].detach().clone(), params[3].detach().clone()
        return functional.batch_norm(
            sources[0], state["mean"], state["variance"], params[0], params[1], training=True, momentum=0.25, eps=1e-5
        )

    against_torch(case, peer)
    layer, (params, sources) = case.layer(), case.inputs(NUMPY, np.float64)
    output = layer.compute_feature(params, sources, context(NUMPY, step=3))  # the fourth batch: a share of 1/4
    for role, value in output.state.items():
        np.testing.assert_allclose(value, state[role].numpy(), rtol=1e-12)


def test_softmax():
    against_torch(LayerCase("kSoftmax", (ROWS,)), lambda _, sources: sources[0].softmax(1))


def test_softmax_loss():
    against_torch(
        LayerCase("kSoftmaxLoss", (ROWS, ROWS), {"softmaxloss_conf": {"scale": 0.5}}, classes=12),
        lambda _, sources: functional.cross_entropy(sources[0], sources[1]) * 0.5,
    )


def test_label_smoothing():
    case = LayerCase("kSoftmaxLoss", (ROWS, (5,)), {"softmaxloss_conf": {"label_smoothing": 0.1}}, classes=12)
    against_torch(case, lambda _, sources: functional.cross_entropy(*sources, label_smoothing=0.1))


def test_euclidean_loss():
    against_torch(
        LayerCase("kEuclideanLoss", (ROWS, ROWS)),
        lambda _, sources: (sources[0] - sources[1]).square().sum() / BATCH,
    )


@pytest.mark.parametrize("first", [1, 2, 3])
def test_layer_norm(first: int):
    case = LayerCase("kLayerNorm", (IMAGES,), {"layernorm_conf": {"first_axis": first}})
    against_torch(
        case,
        lambda params, sources: functional.layer_norm(sources[0], IMAGES[first:], params[0], params[1], eps=1e-5),
    )


def test_sums_and_products():
    against_torch(LayerCase("kAdd", (IMAGES,) * 3), lambda _, sources: sum(sources))
    against_torch(LayerCase("kMultiply", (IMAGES,) * 3), lambda _, sources: torch.stack(sources).prod(dim=0))


def test_pooling_of_the_whole_image():
    for pool, peer in (("MAX", functional.adaptive_max_pool2d), ("AVG", functional.adaptive_avg_pool2d)):
        case = LayerCase("kPooling", (IMAGES,), {"pooling_conf": {"pool": pool, "global_pooling": True}})
        against_torch(case, lambda _, sources, peer=peer: peer(sources[0], 1))


def test_sigmoid_cross_entropy_loss():
    case = LayerCase("kSigmoidCrossEntropyLoss", (ROWS, ROWS), probabilities=1)
    against_torch(
        case,
        lambda _, sources: functional.binary_cross_entropy_with_logits(sources[0], sources[1], reduction="sum") / BATCH,
    )


@pytest.mark.parametrize("p", [1, 2])
def test_hinge_loss(p: int):
    case = LayerCase("kHingeLoss", (ROWS, ROWS), {"hingeloss_conf": {"norm": f"L{p}", "margin": 0.7}}, classes=12)
    against_torch(
        case, lambda _, sources: functional.multi_margin_loss(sources[0], sources[1], p=p, margin=0.7) * ROWS[1]
    )


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
