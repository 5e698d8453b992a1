"""Embeddings of numbers beside those of the package rtdl_num_embeddings, and beside their formulas, in float64."""

from typing import Any

import numpy as np
import pytest

from dsinga.layers import Layer
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import layer_context
from tests.support.refusals import refused

OPS = BACKENDS["numpy"]()
B, N, WIDTH, WAVES = 9, 3, 4, 5
RNG = np.random.default_rng(0)
BINS = [[-1.5, -0.5, 0.0, 2.0], [-0.5, 0.5], [-1.0, 0.0, 1.0]]  # float32, in which the package has them, has these
EDGES = {"edge": [edge for edges in BINS for edge in edges], "edges": [len(edges) for edges in BINS], "width": WIDTH}


def passes(layer: Layer, params: list[Any], x: Any, grad: Any) -> list[Any]:
    """Return the feature, the gradient for x, and those for the params."""
    ctx = layer_context(OPS, B)
    output = layer.compute_feature(params, [x], ctx)
    (for_x,), for_params = layer.compute_gradient(params, [x], output, grad, [True], ctx)
    return [output.feature, for_x, *for_params]


def assert_equal_to_torch(layer: Layer, params: list[Any], peer: Any, tensors: list[Any], to_ours: Any) -> None:
    """Compare feature and gradients with those of a module whose params, ``tensors``, are set to ours."""
    torch = pytest.importorskip("torch")
    x, grad = 2 * RNG.normal(size=(B, N)), RNG.normal(size=(B, N * WIDTH))
    found = passes(layer, params, x, grad)
    given = torch.tensor(x, requires_grad=True)
    y = peer(given).flatten(1)
    y.backward(torch.tensor(grad))
    expected = [y.detach(), given.grad, *(to_ours(tensor.grad, tensor) for tensor in tensors)]
    for array, tensor in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The 1-th feature has just two bin edges:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.row_stack` is deprecated:UserWarning")
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("version", ["A", "B"])
def test_a_piecewise_linear_embedding_is_that_of_the_package(version: str, rectified: bool) -> None:
    torch, rtdl = pytest.importorskip("torch"), pytest.importorskip("rtdl_num_embeddings")
    settings = {**EDGES, "linear": version == "B", "rectified": rectified}
    layer = LayerCase("kPiecewiseLinear", [(B, N)], {"piecewiselinear_conf": settings}).layer()
    params = [RNG.normal(size=spec.shape) for spec in layer.params]
    bins = [torch.tensor(edges, dtype=torch.float64) for edges in BINS]
    peer = rtdl.PiecewiseLinearEmbeddings(bins, WIDTH, activation=rectified, version=version).double()
    # The package has the last bin of each number in the last row of its weight, ours directly after the others.
    order = [[*range(len(edges) - 2), 2, *range(len(edges) - 2, 2)] for edges in BINS]
    there = [[len(edges) > 1 + place for place in range(3)] for edges in BINS]
    tensors = [
        peer.linear.weight,
        *([peer.linear.bias] if version == "A" else [peer.linear0.bias, peer.linear0.weight]),
    ]
    with torch.no_grad():
        for tensor, param in zip(tensors, params, strict=True):
            tensor.copy_(torch.tensor(param))
        for number, places in enumerate(order):
            peer.linear.weight[number, places] = torch.tensor(params[0][number])

    def to_ours(gradient: Any, tensor: Any) -> Any:
        if tensor is not peer.linear.weight:
            return gradient
        ordered = torch.stack([gradient[number, places] for number, places in enumerate(order)])
        return ordered * torch.tensor(there)[:, :, None]

    assert_equal_to_torch(layer, params, peer, tensors, to_ours)


@pytest.mark.parametrize("rectified", [False, True])
def test_a_periodic_embedding_is_that_of_the_package(rectified: bool) -> None:
    torch, rtdl = pytest.importorskip("torch"), pytest.importorskip("rtdl_num_embeddings")
    conf = {"waves": WAVES, "width": WIDTH, "phases": False, "rectified": rectified}
    layer = LayerCase("kPeriodic", [(B, N)], {"periodic_conf": conf}).layer()
    params = [RNG.normal(size=spec.shape) for spec in layer.params]
    peer = rtdl.PeriodicEmbeddings(N, WIDTH, n_frequencies=WAVES, activation=rectified, lite=False).double()
    tensors = [peer.periodic.weight, peer.linear.weight, peer.linear.bias]
    with torch.no_grad():
        for tensor, param in zip(tensors, params, strict=True):
            tensor.copy_(torch.tensor(param))
    assert_equal_to_torch(layer, params, peer, tensors, lambda gradient, _: gradient)


def test_cosines_with_phases_are_their_formula() -> None:
    torch = pytest.importorskip("torch")
    layer = LayerCase("kPeriodic", [(B, N)], {"periodic_conf": {"waves": WAVES, "width": WIDTH}}).layer()
    params = [RNG.normal(size=spec.shape) for spec in layer.params]
    tensors = [torch.tensor(param, requires_grad=True) for param in params]

    def peer(x: Any) -> Any:
        frequency, phase, weight, bias = tensors
        waves = torch.cos(2 * torch.pi * x[:, :, None] * frequency + phase)
        return torch.einsum("bnc,ncw->bnw", waves, weight) + bias

    assert_equal_to_torch(layer, params, peer, tensors, lambda gradient, _: gradient)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"edge": [0, 1, 2], "edges": [2, 2]}, "edge has 3 numbers, but edges has 4 in all"),
        ({"edge": [0, 1, 2], "edges": [2, 1]}, r"the edges of number 1 are \[2.0\]; give at least two, each above"),
        ({"edge": [0, 1, 2, 2], "edges": [2, 2]}, r"the edges of number 1 are \[2.0, 2.0\]; give at least two, each"),
        ({"edge": [0, 1], "edges": [2]}, "edges has 1 numbers, but 'source0' gives 2 numbers; give how many edges"),
    ],
)
def test_edges_that_are_no_bins_are_refused(settings: dict[str, Any], fault: str) -> None:
    refused(lambda: LayerCase("kPiecewiseLinear", [(B, 2)], {"piecewiselinear_conf": settings}).layer(), fault)
