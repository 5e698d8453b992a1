"""The shapes of SINGA's example nets; declared shapes are right for any window."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsinga.job import LayerConf
from dsinga.layers import Layer, Rows
from dsinga.ops import BACKENDS
from dsinga.registry import lookup
from tests.support.layer_cases import context

OPS = BACKENDS["numpy"]()


def make(kind: str, shape: tuple[int, ...], **conf: Any) -> Layer:
    return lookup("layer", kind)(LayerConf(name="layer", type=kind, **conf), [shape])


def conv(filters: int, kernel: int, pad: int = 0, stride: int = 1) -> tuple[str, dict[str, Any]]:
    window = {"num_filters": filters, "kernel": kernel, "pad": pad, "stride": stride}
    return "kConvolution", {"convolution_conf": window}


def pool(kernel: int, stride: int) -> tuple[str, dict[str, Any]]:
    return "kPooling", {"pooling_conf": {"kernel": kernel, "stride": stride}}


NETS = {
    "cifar10": ((3, 32, 32), [conv(32, 5, 2), pool(3, 2), conv(32, 5, 2), pool(3, 2), conv(64, 5, 2), pool(3, 2)]),
    "mnist": ((1, 28, 28), [conv(20, 5), pool(2, 2), conv(50, 5), pool(2, 2)]),
    "alexnet": (
        (3, 227, 227),
        [conv(96, 11, 0, 4), pool(3, 2), conv(256, 5, 2), pool(3, 2), conv(384, 3, 1), conv(256, 3, 1), pool(3, 2)],
    ),
}
SIDES = {
    "cifar10": ([32, 15, 15, 7, 7, 3], 576),
    "mnist": ([24, 12, 8, 4], 800),
    "alexnet": ([55, 27, 27, 13, 13, 13, 6], 9216),
}


@pytest.mark.parametrize("net", NETS)
def test_the_example_nets_have_singas_shapes(net: str):
    record, layers = NETS[net]
    shape, sides = (64, *record), []
    for kind, conf in layers:
        shape = make(kind, shape, **conf).shape
        sides.append(shape[-1])
    assert (sides, math.prod(shape[1:])) == SIDES[net]
    weight = make("kInnerProduct", shape, innerproduct_conf={"num_output": 10}).params[0]
    assert weight.shape == (10, SIDES[net][1])


def test_params_have_singas_shapes_and_are_cut_with_the_features():
    convolution = make("kConvolution", (8, 3, 32, 32), convolution_conf={"num_filters": 32, "kernel": 5})
    assert [spec.shape for spec in convolution.params] == [(32, 75), (32,)]
    for transpose, weight, axis in ((False, (10, 75), 0), (True, (75, 10), 1)):
        product = make("kInnerProduct", (8, 3, 5, 5), innerproduct_conf={"num_output": 10, "transpose": transpose})
        assert [spec.shape for spec in product.params] == [weight, (10,)]
        assert [spec.cut_axis for spec in product.params] == [axis, 0]
    norm = make("kBM", (8, 6, 5, 5))
    assert [spec.shape for spec in norm.params] == [(6,)] * 4
    assert [spec.trainable for spec in norm.params] == [True, True, False, False]
    assert [spec.initial for spec in norm.params] == [1, 0, 0, 1]


small = st.integers(1, 5)


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(small, small),
    stride=st.tuples(small, small),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    pooling=st.booleans(),
)
def test_any_window_gives_the_declared_shape(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int], pooling: bool
):
    assume(all(k <= s + 2 * p and p < k for k, s, p in zip(kernel, size, pad, strict=True)))
    names = ("kernel_y", "kernel_x", "stride_y", "stride_x", "pad_y", "pad_x")
    window = dict(zip(names, kernel + stride + pad, strict=True))
    if pooling:
        layer = make("kPooling", (2, 3, *size), pooling_conf=window)
    else:
        layer = make("kConvolution", (2, 3, *size), convolution_conf={"num_filters": 4, **window})
    params = [np.zeros(spec.shape, np.float32) for spec in layer.params]
    ctx = context(OPS, rows=Rows(0, 2, 2))
    assert layer.compute_feature(params, [np.zeros((2, 3, *size), np.float32)], ctx).feature.shape == layer.shape
