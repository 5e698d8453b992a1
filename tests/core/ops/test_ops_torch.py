"""Kernels compared with PyTorch's at the sizes of a real net, where PyTorch is installed."""

import numpy as np
import pytest

from dsinga.ops import BACKENDS
from dsinga.testing.kernel_backend import KernelBackend
from dsinga.testing.kernel_formulas import assert_close
from tests.support.later_import import functional as F
from tests.support.later_import import torch

PARAMS = [("onednn", np.float32), ("numpy", np.float32), ("numpy", np.float64)]


@pytest.fixture(scope="module", params=PARAMS, ids=lambda param: f"{param[0]}-{param[1].__name__}")
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    """One backend in one dtype."""
    name, dtype = request.param
    return KernelBackend(BACKENDS[name], dtype)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def leaf(values: np.ndarray):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


IMAGE_NETS = [(3, 32, 32), (32, 15, 32), (32, 7, 64), (20, 12, 50)]  # channels, size, filters


@pytest.mark.parametrize(
    ("x", "w", "spacing"),
    [
        *(((8, n, size, size), (filters, n, 5, 5), ((1, 1), (2, 2))) for n, size, filters in IMAGE_NETS),
        ((4, 32, 14, 13), (32, 1, 3, 3), ((2, 2), (1, 1), (1, 1), 32)),  # MobileNet's
        ((4, 12, 14, 13), (24, 1, 3, 3), ((1, 1), (1, 2), (1, 2), 12)),  # with two filters a channel
        ((4, 32, 14, 13), (48, 4, 3, 3), ((1, 2), (1, 0), (1, 1), 8)),  # ResNeXt's
        ((4, 16, 14, 13), (20, 16, 3, 3), ((1, 1), (4, 4), (4, 4), 1)),  # DeepLab's
        ((4, 6, 14, 13), (9, 2, 3, 3), ((3, 2), (0, 3), (2, 3), 3)),
    ],
)
def test_convolutions_of_image_nets(backend: KernelBackend, x, w, spacing):
    kernel = "convolution" if len(spacing) == 2 else "grouped_convolution"
    x, w, b = normal(1, *x), normal(2, *w), normal(3, w[0])
    leaves = leaf(x), leaf(w), leaf(b)
    expected = F.conv2d(*leaves, *spacing)
    x_placed = backend.place(x, "channels last")
    # Sums of n products of values about 1: their rounding grows as n while the sum grows as its root.
    y = backend.run(kernel, x_placed, w, b, *spacing)
    assert_close(y, expected.detach().numpy(), backend.dtype)
    dy = normal(4, *y.shape)
    expected.backward(torch.tensor(dy))
    grads = backend.run(f"{kernel}_grad", x_placed, w, backend.place(dy, "channels last"), *spacing, True, True)
    for grad, peer in zip(grads, leaves, strict=True):
        assert_close(grad, peer.grad.numpy(), backend.dtype, scale=2 * np.abs(peer.grad.numpy()).max())


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(3, 2, 0), (2, 2, 0), (3, 1, 1)])
def test_pooling_and_normalisation_of_image_nets(backend: KernelBackend, kernel, stride, pad):
    x = normal(1, 4, 32, 15, 15).astype(np.float32).astype(np.float64)  # the same maxima in both precisions
    window = (kernel, kernel), (stride, stride), (pad, pad)
    x_placed = backend.place(x, "channels last")
    peaks, winners = backend.run("max_pool", x_placed, *window, True)
    means = backend.run("avg_pool", x_placed, *window)
    normed, norms = backend.run("lrn", x_placed, 5, 0.1, 0.75, 2.0, True)
    dy = normal(2, *peaks.shape)
    for result, gradient, peer in [
        (peaks, backend.run("max_pool_grad", x_placed, winners, dy, *window), lambda x: F.max_pool2d(x, *window)),
        (means, backend.run("avg_pool_grad", x_placed, dy, *window), lambda x: F.avg_pool2d(x, *window)),
        (
            normed,
            backend.run("lrn_grad", x_placed, norms, x, 5, 0.1, 0.75, 2.0),
            lambda x: F.local_response_norm(x, 5, 0.1, 0.75, 2.0),
        ),
    ]:
        at = leaf(x)
        expected = peer(at)
        assert_close(result, expected.detach().numpy(), backend.dtype)
        expected.backward(torch.tensor(x if result is normed else dy))
        assert_close(gradient, at.grad.numpy(), backend.dtype)


def test_sums_over_many_rows_are_as_exact_as_pytorchs(backend: KernelBackend):
    """The gradient of a scale in float32 is at most twice as far from float64's as PyTorch's float32 is."""
    x, scale, dy = (normal(seed, *shape) for seed, shape in enumerate([(4096, 64), (64,), (4096, 64)]))
    grads = []
    for dtype in (torch.float32, torch.float64):
        arrays = (torch.tensor(array.astype(np.float32)).to(dtype) for array in (x, scale, dy))
        at, weight, gradient = (array.requires_grad_() for array in arrays)
        F.rms_norm(at, weight.shape, weight, eps=1e-5).backward(gradient)
        grads.append(weight.grad.double().numpy())
    _, workspace = backend.run("rms_norm", x, scale, 1e-5, True)
    _, grad = backend.run("rms_norm_grad", x, workspace, dy, scale)
    theirs, exact = grads
    if backend.dtype == np.float32:
        assert np.linalg.norm(grad - exact) <= 2 * np.linalg.norm(theirs - exact)
    else:
        np.testing.assert_allclose(grad, exact, rtol=1e-4)
