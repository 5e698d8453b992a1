"""Connection layers: missing gradients, uneven cuts, and inverse layers."""

import math
from itertools import accumulate

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from dsinga.job import LayerConf
from dsinga.layers import Rows
from dsinga.layers.connection import SliceLayer
from dsinga.ops import BACKENDS
from tests.support.layer_cases import context, layer_of

N, M = 10, 20
OPS = BACKENDS["numpy"]()
WHOLE = context(OPS, rows=Rows(0, N, N))
BLOB = np.arange(N * M, dtype=np.float32).reshape(N, M)


def test_a_destination_without_a_gradient_counts_as_zero():
    split = layer_of("kSplit", (N, M), split_conf={"num_splits": 3})
    output = split.compute_feature([], [BLOB], WHOLE)
    (grad,), _ = split.compute_gradient([], [BLOB], output, [None, BLOB, None], [True], WHOLE)
    assert np.array_equal(grad, BLOB)
    cut = layer_of("kSlice", (N, M), slice_conf={"slice_dim": 1, "num_slices": 2})
    output = cut.compute_feature([], [BLOB], WHOLE)
    (grad,), _ = cut.compute_gradient([], [BLOB], output, [None, output.feature[1]], [True], WHOLE)
    assert np.array_equal(grad, np.where(np.arange(M) < 10, 0, BLOB))


@given(length=st.integers(1, 40), data=st.data())
def test_uneven_slices_follow_array_split(length: int, data: st.DataObject):
    parts = data.draw(st.integers(1, length))
    layer = layer_of("kSlice", (2, length, 3), slice_conf={"slice_dim": 1, "num_slices": parts})
    blob = np.arange(2 * length * 3).reshape(2, length, 3)
    expected = np.array_split(blob, parts, axis=1)
    assert list(layer.part_shapes) == [part.shape for part in expected]
    feature = layer.compute_feature([], [blob], context(OPS)).feature
    assert all(np.array_equal(part, array) for part, array in zip(feature, expected, strict=True))


@given(
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    axis=st.sampled_from([0, 1]),
)
@example(batch=1, size=(2, 3), lengths=[1, 1], axis=1)
def test_slicing_and_joining_keep_the_layout_of_images(batch, size, lengths, axis):
    bounds = [0, *accumulate(lengths)]
    rows, channels = (bounds[-1], batch) if axis == 0 else (batch, bounds[-1])
    image = np.arange(rows * channels * math.prod(size), dtype=np.float32).reshape(rows, *size, channels)
    image = image.transpose(0, 3, 1, 2)
    conf = LayerConf(name="slice", type="kSlice", srclayers=["image"])
    cut, ctx = SliceLayer.of(conf, image.shape, axis, bounds), context(OPS, rows=Rows(0, rows, rows))
    output = cut.compute_feature([], [image], ctx)
    assert [part.shape for part in output.feature] == list(cut.part_shapes)
    parts = [np.array(part) for part in output.feature]  # contiguous, as bridges receive them
    layer = layer_of("kConcate", *cut.part_shapes, concate_conf={"concate_dim": axis})
    joined = layer.compute_feature([], parts, ctx).feature
    (back,), _ = cut.compute_gradient([], [image], output, [None, *parts[1:]], [True], ctx)
    for given_back in (joined, back):
        assert given_back.transpose(0, 2, 3, 1).flags.c_contiguous
    assert np.array_equal(joined, image)
    assert np.array_equal(without_first(back, axis, lengths[0]), without_first(image, axis, lengths[0]))


def without_first(image: np.ndarray, axis: int, length: int) -> np.ndarray:
    return np.delete(image, np.s_[:length], axis)
