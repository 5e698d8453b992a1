"""kConvLSTM against the same recurrence in PyTorch, with its automatic gradients, and a forecast that it learns."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.ops import Ops, get_ops
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import layer_context
from tests.support.later_import import torch
from tests.support.refusals import check_refusal, refusal
from tests.support.torch_convlstm import conv_lstm

SHARED = settings(deadline=None, derandomize=True, database=None, max_examples=15)


def case_of(shape: tuple[int, ...], **conf: Any) -> LayerCase:
    return LayerCase("kConvLSTM", [shape], {"convlstm_conf": conf})


def assert_like_torch(case: LayerCase, ops: Ops, stride: int, pad: Any, tolerance: float = 1e-5) -> None:
    layer, rng = case.layer(), np.random.default_rng(1)
    filters, kernel = layer.settings.num_filters, layer.window.kernel
    x, *params = (
        rng.normal(0, 0.4, shape).astype(np.float32)
        for shape in (case.shapes[0], *(spec.shape for spec in layer.params))
    )
    dy = rng.normal(size=layer.shape).astype(np.float32)
    ctx = layer_context(ops, len(x))
    sources, placed = [ops.asarray(x)], [ops.asarray(param) for param in params]
    output = layer.compute_feature(placed, sources, ctx)
    (dx,), for_params = layer.compute_gradient(placed, sources, output, ops.asarray(dy), [True], ctx)
    shapes = [x.shape, (4 * filters, x.shape[2], *kernel), (4 * filters, filters, *kernel), (4 * filters,)]
    arrays = zip((x, *params), shapes, strict=False)
    tensors = [torch.tensor(array.reshape(shape), requires_grad=True) for array, shape in arrays]
    theirs = conv_lstm(*tensors, *([None] if len(tensors) < 4 else []), stride, pad, layer.settings.last)
    theirs.backward(torch.tensor(dy))
    assert output.feature.shape == layer.shape
    np.testing.assert_allclose(ops.to_numpy(output.feature), theirs.detach().numpy(), atol=tolerance)
    for gradient, tensor in zip((dx, *for_params), tensors, strict=True):
        expected = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()  # of hh with one step
        found = ops.to_numpy(gradient).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=tolerance * max(1, np.abs(expected).max()))


@SHARED
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(4, 6), st.integers(4, 6)),
    filters=st.sampled_from([1, 3, 8, 16]),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 2),
    pad=st.integers(0, 1),
    last=st.booleans(),
    bias=st.booleans(),
)
def test_a_convolutional_lstm_is_that_of_torch(shape, filters, kernel, stride, pad, last, bias):
    window = {"kernel_y": kernel[0], "kernel_x": kernel[1], "stride": stride, "pad": pad}
    case = case_of(shape, num_filters=filters, last=last, bias_term=bias, **window)
    assert_like_torch(case, get_ops(), stride, [pad] * 4)


def test_it_keeps_the_size_of_images_with_the_padding_of_keras() -> None:
    case = case_of((2, 3, 2, 5, 6), num_filters=4, kernel=4, same=True)
    assert case.layer().shape == (2, 3, 4, 5, 6)
    assert_like_torch(case, get_ops(), 1, [1, 2, 1, 2])


def test_what_it_saves_is_as_large_as_it_says() -> None:
    layer = (case := case_of((2, 3, 2, 5, 6), num_filters=8)).layer()
    params, sources = case.inputs(get_ops(), np.float32)
    images, steps = layer.compute_feature(params, sources, layer_context(get_ops(), 2)).saved
    assert sum(array.nbytes for array in (images, *(array for step in steps for array in step))) == sum(
        layer.saved_sizes(2)
    )


MISTAKES = [
    refusal(lambda: case_of((2, 3, 5, 6), num_filters=2).layer(), "batch, steps, channels, height", "width"),
    refusal(lambda: case_of((2, 3, 1, 2, 6), num_filters=2).layer(), "a kernel of 3 x"),
    refusal(lambda: case_of((2, 3, 1, 5, 6), num_filters=2, kernel_z=3).layer(), "leave kernel_z out"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
