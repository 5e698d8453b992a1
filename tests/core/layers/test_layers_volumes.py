"""Convolution and pooling of volumes (B, C, D, H, W) against PyTorch, on each backend, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.ops import Ops, get_ops
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import layer_context
from tests.support.later_import import functional, torch
from tests.support.refusals import refused

THREE = st.tuples(*[st.integers(1, 3)] * 3)
SHARED = settings(deadline=None, derandomize=True, database=None, max_examples=15)


def volume(seed: int, shape: tuple[int, ...], ops: Ops) -> Any:
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return ops.unflatten(ops.asarray(numbers.reshape(len(numbers), -1)), shape)


def assert_like_torch(case: LayerCase, peer: Any, tolerance: float = 2e-5) -> None:
    """Compare feature and gradients on this machine's backend with those of torch."""
    ops, layer = get_ops(), case.layer()
    x, dy = volume(0, case.shapes[0], ops), volume(1, layer.shape, ops)
    params = [volume(2, (1, 1, *spec.shape), ops).reshape(spec.shape) for spec in layer.params]
    ctx = layer_context(ops, len(x))
    output = layer.compute_feature(params, [x], ctx)
    (dx,), for_params = layer.compute_gradient(params, [x], output, dy, [True], ctx)
    tensors = [torch.tensor(np.ascontiguousarray(array), requires_grad=True) for array in (x, *params)]
    theirs = peer(*tensors)
    theirs.backward(torch.tensor(np.ascontiguousarray(dy)))
    assert output.feature.shape == layer.shape
    np.testing.assert_allclose(output.feature, theirs.detach().numpy(), rtol=tolerance, atol=tolerance)
    for gradient, tensor in zip((dx, *for_params), tensors, strict=True):
        limit = tolerance * max(1, np.abs(tensor.grad.numpy()).max())
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=tolerance, atol=limit)


@st.composite
def windows(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], list[int], list[int], list[int]]:
    """Draw the settings of a window, the volume, kernel, stride and pad; a pad is at most half the kernel."""
    kernel, stride, size = [*draw(THREE)], [*draw(THREE)], draw(st.tuples(*[st.integers(3, 6)] * 3))
    pad = [draw(st.integers(0, length // 2)) for length in kernel]
    sizes = {"kernel": kernel, "stride": stride, "pad": pad}
    window = {f"{name}_{axis}": numbers[at] for name, numbers in sizes.items() for at, axis in enumerate("zyx")}
    return window, (draw(st.integers(1, 3)), draw(st.integers(1, 9)), *size), kernel, stride, pad


@SHARED
@given(window=windows(), filters=st.sampled_from([1, 3, 8, 16]), bias=st.booleans())
def test_convolution_of_volumes_is_that_of_torch(window: Any, filters: int, bias: bool) -> None:
    fields, shape, kernel, stride, pad = window
    conf = {"num_filters": filters, "bias_term": bias, **fields}

    def peer(x: Any, w: Any, b: Any = None) -> Any:
        return functional.conv3d(x, w.reshape(filters, shape[1], *kernel), b, stride, pad)

    assert_like_torch(LayerCase("kConvolution", [shape], {"convolution_conf": conf}), peer)


@SHARED
@given(window=windows(), maximum=st.booleans(), counted=st.booleans())
def test_pooling_of_volumes_is_that_of_torch(window: Any, maximum: bool, counted: bool) -> None:
    fields, shape, kernel, stride, pad = window
    conf = {"pool": "MAX" if maximum else "AVG", "count_include_pad": counted, **fields}

    def peer(x: Any) -> Any:
        if maximum:
            return functional.max_pool3d(x, kernel, stride, pad)
        return functional.avg_pool3d(x, kernel, stride, pad, count_include_pad=counted)

    assert_like_torch(LayerCase("kPooling", [shape], {"pooling_conf": conf}), peer)


def test_transposed_convolution_of_volumes_is_that_of_torch() -> None:
    conf = {"num_filters": 3, "kernel": 3, "stride_z": 2, "stride_x": 3, "pad": 1, "output_pad_x": 2}
    case = LayerCase("kTransposedConvolution", [(2, 4, 3, 4, 5)], {"transposedconvolution_conf": conf})
    stride, more = (2, 1, 3), (0, 0, 2)
    assert_like_torch(
        case, lambda x, w, b: functional.conv_transpose3d(x, w.reshape(4, 3, 3, 3, 3), b, stride, (1, 1, 1), more)
    )


@pytest.mark.skipif(get_ops().name != "onednn" or bool(get_ops().lacks_bf16()), reason="there is no bfloat16")
def test_volumes_are_bfloat16_between_layers() -> None:
    """In a job with kBF16 a convolution of volumes makes bfloat16 features, as one of images does."""
    ops = get_ops().for_worker(precision="bf16")
    layer = LayerCase("kConvolution", [(2, 16, 4, 5, 6)], {"convolution_conf": {"num_filters": 16}}).layer()
    params = [volume(0, (1, 1, *spec.shape), ops).reshape(spec.shape) for spec in layer.params]
    x = volume(1, (2, 16, 4, 5, 6), ops)
    ctx = layer_context(ops, 2)
    output = layer.compute_feature(params, [x], ctx)
    exact = layer.compute_feature(params, [x], layer_context(get_ops(), 2)).feature
    assert output.feature.dtype == "bfloat16"
    np.testing.assert_allclose(output.feature.astype(np.float32), exact, rtol=0.02, atol=0.5)
    (dx,), (dw, _) = layer.compute_gradient(params, [x], output, output.feature, [True], ctx)
    assert (dx.dtype, dw.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize(
    ("kind", "shape", "conf", "says"),
    [
        ("kConvolution", (2, 3, 4, 5), {"convolution_conf": {"num_filters": 1, "kernel_z": 2}}, "leave kernel_z out"),
        ("kPooling", (2, 3, 4, 5), {"pooling_conf": {"stride_z": 2}}, "images, which have no depth"),
        ("kPooling", (2, 3, 4, 5, 2), {"pooling_conf": {}}, "does not fit volumes of 4 x 5 x 2"),
        ("kPooling", (2, 3, 4, 5, 4), {"pooling_conf": {"pad_z": 3}}, "nothing but padding of 3 x 0 x 0"),
        ("kConvolution", (2, 3), {"convolution_conf": {"num_filters": 1}}, "or volumes with a depth"),
    ],
)
def test_windows_that_do_not_fit_are_refused(kind: str, shape: tuple[int, ...], conf: Any, says: str) -> None:
    refused(lambda: LayerCase(kind, [shape], conf).layer(), says)


@pytest.mark.parametrize(
    ("shape", "layers", "says"),
    [
        ((2, 6, 8), [nn.Conv3D(4, 3)], "takes volumes"),
        ((1, 6, 8, 8), [nn.Conv3D(4, (3, 3))], "takes a number or .depth, rows, columns. where it gets"),
        ((1, 6, 8), [nn.MaxPooling2D((2, 2, 2))], "takes a number or .rows, columns. where it gets"),
        ((1, 6, 8, 8), [nn.Conv3D(4, 7)], "7 x 7 x 7 is larger than the volumes, 1 channels of 6 x 8 x 8"),
        ((6, 8), [nn.GlobalMaxPooling3D()], "takes volumes"),
    ],
)
def test_functions_of_volumes_refuse_other_shapes(shape: tuple[int, ...], layers: list[Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        nn.Sequential([nn.Input(shape), *layers, nn.Flatten(), nn.Dense(2)]).job(train_steps=1, batch_size=2)


def test_a_net_may_make_volumes_larger_again() -> None:
    """Sizes and padding by axis, beside those of PyTorch's functions for volumes."""
    x = nn.Input((2, 4, 6, 6))
    down = nn.MaxPooling3D(2)(nn.Conv3D(4, 3, name="conv")(nn.Padding3D(1, ("edge", "zero", "periodic"))(x)))
    up = [nn.Conv3DTranspose(4, 2, 2, name="up")(down), nn.UpSampling3D((2, 2, 2), "trilinear")(down)]
    y = nn.Cropping3D(((1, 1), (0, 1), (0, 0)))(nn.Concatenate(axis=1)(up))
    model = nn.Model(x, nn.ZeroPadding3D((0, 0, 1), name="wide")(y))
    model.compile("sgd", "mse")
    records = np.random.default_rng(0).normal(size=(3, 2, 4, 6, 6)).astype(np.float32)
    labels = np.zeros((3, 8 * 2 * 5 * 8), np.float32)
    net = nn.LocalNet(model.job(records, labels, train_steps=1), records, labels)
    params = net.initial_params()
    theirs = {name: torch.tensor(value) for name, value in params.items()}
    t = torch.tensor(records)
    t = functional.pad(t, (1, 1, 0, 0, 0, 0), "circular")
    t = functional.pad(functional.pad(t, (0, 0, 0, 0, 1, 1), "replicate"), (0, 0, 1, 1, 0, 0))
    t = functional.conv3d(t, theirs["conv_weight"].reshape(4, 2, 3, 3, 3), theirs["conv_bias"])
    t = functional.max_pool3d(t, 2)
    grown = functional.conv_transpose3d(t, theirs["up_weight"].reshape(4, 4, 2, 2, 2), theirs["up_bias"], 2)
    t = torch.cat([grown, functional.interpolate(t, scale_factor=2, mode="trilinear")], 1)[:, :, 1:-1, :-1]
    found = net.predict(params, records, "wide").reshape(3, 8, 2, 5, 8)
    np.testing.assert_allclose(found, functional.pad(t, (1, 1)).numpy(), atol=1e-5)
