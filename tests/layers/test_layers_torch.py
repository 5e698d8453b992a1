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


def test_label_smoothing():
    case = LayerCase("kSoftmaxLoss", (ROWS, (5,)), {"softmaxloss_conf": {"label_smoothing": 0.1}}, classes=12)
    against_torch(case, lambda _, sources: functional.cross_entropy(*sources, label_smoothing=0.1))


def test_euclidean_loss():
    against_torch(
        LayerCase("kEuclideanLoss", (ROWS, ROWS)),
        lambda _, sources: (sources[0] - sources[1]).square().sum() / BATCH,
    )


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
