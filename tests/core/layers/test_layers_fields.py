"""Layers of fields (padding, cropping, upsampling, transposed convolution, group norm) against PyTorch and numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.job import Phase
from dsinga.ops import BACKENDS, get_ops
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import layer_context
from tests.support.later_import import functional, torch
from tests.support.refusals import refused_with

NUMPY = BACKENDS["numpy"]()
MODES = {"kZero": "constant", "kEdge": "edge", "kReflect": "reflect", "kPeriodic": "wrap"}  # numpy's
SHARED = settings(deadline=None, derandomize=True, database=None, max_examples=15)
SIZES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))


def passes(case: LayerCase, seed: int = 0) -> tuple[Any, ...]:
    """Return source, params, feature, a random gradient, and those for source and params, all in float64."""
    layer = case.layer()
    rng = np.random.default_rng(seed)
    x, params = rng.normal(size=case.shapes[0]), [rng.normal(size=spec.shape) for spec in layer.params]
    ctx = layer_context(NUMPY, len(x), Phase.kTrain)
    output = layer.compute_feature(params, [x], ctx)
    assert output.feature.shape == layer.shape
    grad = rng.normal(size=layer.shape)
    (dx,), for_params = layer.compute_gradient(params, [x], output, grad, [True], ctx)
    return x, params, output.feature, grad, dx, for_params


def against_torch(case: LayerCase, peer: Callable[..., Any]) -> None:
    x, params, y, grad, dx, for_params = passes(case)
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, *params)]
    theirs = peer(*tensors)
    theirs.backward(torch.tensor(grad))
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-9, atol=1e-10)
    for gradient, tensor in zip((dx, *for_params), tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-8, atol=1e-9)


@SHARED
@given(shape=SIZES, mode=st.tuples(*[st.sampled_from([*MODES])] * 2), sides=st.tuples(*[st.integers(0, 5)] * 4))
def test_padding_is_that_of_numpy_along_each_axis_and_its_gradient_the_transpose(shape, mode, sides):
    most = [{"kReflect": n - 1, "kPeriodic": n}.get(m, 5) for n, m in zip(shape[2:], mode, strict=True)]
    before, after = [min(*pair) for pair in zip(sides[:2], most, strict=True)], [*map(min, sides[2:], most)]
    case = LayerCase("kPadding", [shape], {"padding_conf": {"before": before, "after": after, "mode": [*mode]}})
    x, _, y, grad, dx, _ = passes(case)
    expected = x
    for axis in (0, 1):
        width = [(0, 0)] * 4
        width[axis + 2] = before[axis], after[axis]
        expected = np.pad(expected, width, MODES[mode[axis]])  # type: ignore[call-overload]
    np.testing.assert_array_equal(y, expected)
    # Padding copies points, so its gradient is the transpose: both products are equal, whatever is padded.
    other = np.random.default_rng(9).normal(size=x.shape)
    padded = case.layer().compute_feature([], [other], layer_context(NUMPY, len(x))).feature
    assert (padded * grad).sum() == pytest.approx((other * dx).sum(), rel=1e-9, abs=1e-9)


@SHARED
@given(
    shape=SIZES, factor=st.tuples(st.integers(1, 4), st.integers(1, 4)), method=st.sampled_from(["kNearest", "kLinear"])
)
def test_upsampling_is_that_of_torch(shape: tuple[int, ...], factor: tuple[int, int], method: str) -> None:
    case = LayerCase("kUpsampling", [shape], {"upsampling_conf": {"factor": [*factor], "method": method}})
    linear = {"mode": "bilinear", "align_corners": False} if method == "kLinear" else {"mode": "nearest"}
    against_torch(case, lambda x: functional.interpolate(x, scale_factor=tuple(map(float, factor)), **linear))


@SHARED
@given(
    shape=SIZES,
    filters=st.integers(1, 4),
    kernel=st.tuples(*[st.integers(1, 4)] * 2),
    stride=st.tuples(*[st.integers(1, 3)] * 2),
    data=st.data(),
)
def test_transposed_convolution_is_that_of_torch(shape, filters, kernel, stride, data):
    pad = [data.draw(st.integers(0, (kernel[axis] - 1) // 2)) for axis in (0, 1)]
    more = [data.draw(st.integers(0, stride[axis] - 1)) for axis in (0, 1)]
    settings_of = {"kernel": kernel, "stride": stride, "pad": pad, "output_pad": more}
    window = {f"{name}_{side}": pair[axis] for name, pair in settings_of.items() for axis, side in enumerate("yx")}
    case = LayerCase(
        "kTransposedConvolution", [shape], {"transposedconvolution_conf": {"num_filters": filters, **window}}
    )
    against_torch(
        case,
        lambda x, w, b: functional.conv_transpose2d(x, w.reshape(shape[1], filters, *kernel), b, stride, pad, more),
    )


@pytest.mark.parametrize("size", [(), (5,), (12, 11), (2, 3, 4)])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm_is_that_of_torch(size: tuple[int, ...], groups: int) -> None:
    case = LayerCase("kGroupNorm", [(3, 12, *size)], {"groupnorm_conf": {"groups": groups}})
    against_torch(case, lambda x, scale, bias: functional.group_norm(x, groups, scale, bias, eps=1e-5))


def test_group_norm_of_large_images_is_that_of_numpy_in_float64() -> None:
    case = LayerCase("kGroupNorm", [(3, 16, 20, 12)], {"groupnorm_conf": {"groups": 4}})
    x, params, y, grad, dx, for_params = passes(case)
    ops, layer = get_ops(), case.layer()
    placed = [ops.asarray(array.astype(np.float32)) for array in params]
    image, slope = (ops.unflatten(array.reshape(3, -1).astype(np.float32), layer.shape) for array in (x, grad))
    ctx = layer_context(ops, 3)
    output = layer.compute_feature(placed, [image], ctx)
    (dx32,), for_params32 = layer.compute_gradient(placed, [image], output, slope, [True], ctx)
    for single, exact in zip((output.feature, dx32, *for_params32), (y, dx, *for_params), strict=True):
        np.testing.assert_allclose(ops.to_numpy(single), exact, rtol=1e-5, atol=2e-5)


IMAGE = (2, 4, 3, 5)


@pytest.mark.parametrize(
    ("kind", "shape", "conf", "says"),
    [
        ("kPadding", (2, 5), {}, "give the shape of a record"),
        ("kPadding", IMAGE, {"before": [1, 1, 1]}, "before has 3 numbers, but 2 axes"),
        ("kPadding", IMAGE, {"before": [3], "mode": ["kReflect"]}, "has at most 2 to copy"),
        ("kPadding", IMAGE, {"after": [4], "mode": ["kPeriodic"]}, "has at most 3 to copy"),
        ("kCropping", IMAGE, {"before": [2], "after": [1]}, "leaves nothing of fields of 3 x 5"),
        ("kGroupNorm", IMAGE, {"groups": 3}, "cannot divide 4 channels into 3 equal groups"),
        ("kUpsampling", IMAGE, {"factor": [2, 2, 2]}, "factor has 3 numbers, but 2 axes"),
        ("kTransposedConvolution", IMAGE, {"num_filters": 1, "stride": 2, "output_pad": 2}, "than the stride, 2 x 2"),
        ("kTransposedConvolution", IMAGE, {"num_filters": 1, "pad": 3}, "make pad smaller"),
        ("kTransposedConvolution", IMAGE, {"num_filters": 1, "pad": 1, "same": True}, "has both pad and same"),
    ],
)
def test_settings_that_do_not_fit_are_refused(kind: str, shape: tuple[int, ...], conf: Any, says: str) -> None:
    refused_with(lambda: LayerCase(kind, [shape], {f"{kind[1:].lower()}_conf": conf}).layer(), says)
