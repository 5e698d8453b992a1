"""Gradients of convolutions by oneDNN and by the implementations of its table, compared with numpy's."""

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.ops.compiled.compiler import is_available
from dsinga.ops.host_pass import HostPass
from dsinga.ops.interface import NumpyOps
from tests.support.cpu_instructions import AVX2_ALONE, AVX512

try:
    from dsinga.ops.onednn import convolution, kernel_gradient, winograd
    from dsinga.ops.onednn.choices import choose_kernel
    from dsinga.ops.onednn.onednn_ops import OnednnOps
    from dsinga.ops.onednn.thread import thread_state
except UserError as error:
    pytest.skip(str(error), allow_module_level=True)

onednn = OnednnOps()


GEOMETRIES = pytest.mark.parametrize(
    ("records", "kernel", "stride", "pad"),
    [
        (8, (3, 3), (1, 1), (1, 1)),
        (19, (5, 2), (1, 1), (2, 0)),
        (3, (1, 4), (2, 1), (0, 3)),
        (16, (3, 7), (1, 3), (0, 1)),
        (5, (5, 5), (2, 2), (2, 2)),
        (4, (3, 2), (4, 2), (0, 1)),
        (2, (2, 2), (1, 1), (3, 3)),  # outputs that overlap the border alone
        (2, (9, 11), (1, 1), (0, 0)),
        (1, (13, 13), (1, 1), (6, 6)),
        (2, (1, 1), (10, 12), (0, 0)),  # and rows that overlap no output
    ],
)


@GEOMETRIES
def test_products_compute_the_gradient_of_kernels(records, kernel, stride, pad, monkeypatch):
    monkeypatch.setattr(kernel_gradient, "DEPTH", 30)  # two to five records together, and a remainder
    x, w, dy = convolved(records, kernel, stride, pad)
    compute_gradient = kernel_gradient.KernelGradient(x.shape, w.shape, stride, pad)
    expected = NumpyOps().convolution_grad(x, w, dy, stride, pad, False, False)[1]
    for _ in range(2):  # nothing is left over from a previous call
        dw = compute_gradient(*(np.ascontiguousarray(array.transpose(0, 2, 3, 1)) for array in (x, dy)))
        np.testing.assert_allclose(dw, expected, atol=1e-5 * np.abs(expected).max())


@AVX512
@pytest.mark.skipif(not is_available(), reason="pip install numba")
@pytest.mark.parametrize(
    ("x", "filters", "pad"),
    [
        ((9, 16, 32, 32), 48, (1, 1)),  # three records of a share, several blocks of tiles
        ((2, 48, 9, 13), 32, (0, 2)),  # halves of tiles at the ends
        ((1, 32, 5, 130), 16, (2, 1)),
    ],
)
def test_winograds_loops_compute_convolutions_with_any_threads(x, filters, pad, monkeypatch):
    rng = np.random.default_rng(0)
    shapes = x, (filters, x[1], 3, 3), (1, 1), pad
    first = [make(*shapes) for make in (convolution.BackwardData, convolution.BackwardWeights)]
    first.insert(0, convolution.ConvolutionForward(*shapes, True))
    rows, dy = (rng.standard_normal((x[0], *each[2:], each[1]), np.float32) for each in (x, first[0].output_shape))
    w, bias = (rng.standard_normal(shape, np.float32) for shape in (shapes[1], filters))
    arguments = (rows, w, bias), (dy, w), (rows, dy)
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(thread_state.team, "size", threads)
        made = winograd.WinogradForward(*shapes, True), winograd.WinogradBackwardData(*shapes)
        kernels = *made, winograd.WinogradBackwardWeights(*shapes)
        thread_state.scratchpad.array.fill(0xFF)  # NaN, left over from another kernel
        results.append([kernel(*arrays) for kernel, arrays in zip(kernels, arguments, strict=True)])
        if threads == 1:
            results.append(replayed(kernels, arguments))
    for kernel, arrays, result, *others in zip(first, arguments, *results, strict=True):
        expected = kernel(*arrays)
        np.testing.assert_allclose(result, expected, atol=1e-5 * np.abs(expected).max())
        np.testing.assert_array_equal(others, [result] * 2)


def replayed(kernels, arguments):
    """What a recorded pass computes from arrays that it did not see when it was recorded."""
    recorded, results = HostPass(), []
    with recorded.recording(0):
        for number, (kernel, arrays) in enumerate(zip(kernels, arguments, strict=True)):
            held = [recorded.put(f"{number} {place}", np.ones_like(each)) for place, each in enumerate(arrays)]
            with recorded.capturing():
                results.append(kernel(*held))
    for number, arrays in enumerate(arguments):
        for place, each in enumerate(arrays):
            recorded.put(f"{number} {place}", each)
    recorded.launch(1)
    return recorded.results(results)


def convolved(records, kernel, stride, pad):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((records, 4, 9, 11), np.float32)
    w = rng.standard_normal((6, 4, *kernel), np.float32)
    return x, w, rng.standard_normal(NumpyOps().convolution(x, w, None, stride, pad).shape, np.float32)


@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "stride", "padded"),
    [
        (20, 6, 5, 1, True),  # the gradient of 24 channels is computed
        (5, 9, 3, 1, True),
        (24, 9, 3, 1, False),
        (25, 9, 3, 1, False),
        (16, 32, 1, 1, False),
        (7, 32, 1, 2, False),
        (16, 32, 3, 2, False),
        (8, 65, 4, 2, False),
    ],
)
class TestGradientOfImages:
    def test_is_exact(self, channels, filters, kernel, stride, padded):
        rng = np.random.default_rng(1)
        stride, pad = (stride, stride), (kernel // 2, kernel // 2)
        x = rng.standard_normal((3, 6, 8, channels), np.float32).transpose(0, 3, 1, 2)
        w = rng.standard_normal((filters, channels, kernel, kernel), np.float32)
        y = NumpyOps().convolution(x, w, None, stride, pad)
        np.testing.assert_allclose(onednn.convolution(x, w, None, stride, pad), y, atol=1e-5 * np.abs(y).max())
        for dy in (y, -y):  # nothing is left over from a previous call
            gradients = onednn.convolution_grad(x, w, dy, stride, pad, True, False)
            expected_gradients = NumpyOps().convolution_grad(x, w, dy, stride, pad, True, False)
            for gradient, expected in zip(gradients[:2], expected_gradients[:2], strict=True):
                np.testing.assert_allclose(gradient, expected, atol=1e-5 * np.abs(expected).max())

    @AVX2_ALONE
    def test_is_computed_by_the_implementation_of_the_table(self, channels, filters, kernel, stride, padded):
        x, w, pad = (3, channels, 6, 8), (filters, channels, kernel, kernel), (kernel // 2, kernel // 2)
        gradient = choose_kernel("convolution_grad_x", convolution.BackwardData, x, w, (stride, stride), pad)
        assert isinstance(gradient, convolution.PaddedBackwardData) == padded
