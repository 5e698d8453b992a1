"""Declared shapes are right for any window."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from dsinga.layers import Rows
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from tests.support.layer_cases import context

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
    kind = "kPooling" if pooling else "kConvolution"
    conf = {"pooling_conf": window, "convolution_conf": {"num_filters": 4, **window}}
    layer = LayerCase(kind, [(2, 3, *size)], conf).layer()
    params = [np.zeros(spec.shape, np.float32) for spec in layer.params]
    ctx = context(BACKENDS["numpy"](), rows=Rows(0, 2, 2))
    assert layer.compute_feature(params, [np.zeros((2, 3, *size), np.float32)], ctx).feature.shape == layer.shape
