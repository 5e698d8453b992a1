"""What every layer has: settings, declarations, shapes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsinga.base.errors import UserError
from dsinga.job import LayerConf
from dsinga.layers import Connection, Cut, Keeps, LabelFormat, Labels, Layer, Output, Rows, SourceKind
from dsinga.layers.dense.innerproduct import InnerProduct
from dsinga.layers.interface.contract import make_layer
from dsinga.layers.interface.declarations import DECLARED
from dsinga.ops import BACKENDS, get_ops
from dsinga.ops.factored_gradient import to_dense
from dsinga.testing import LayerCase
from tests.support.layer_cases import context

CONTEXT = context(BACKENDS["numpy"]())


@given(cut=st.integers(0, 20), columns=st.integers(1, 40))
def test_a_row_has_the_same_numbers_in_every_part(cut: int, columns: int):
    whole, first, second = (
        replace(CONTEXT, rows=Rows(start, stop, 20)).uniform("drop", columns)
        for start, stop in ((0, 20), (0, cut), (cut, 20))
    )
    assert whole.shape == (20, columns)
    assert np.array_equal(whole, np.concatenate([first, second]))


def test_random_numbers_are_uniform_and_differ_by_seed_step_layer_and_row():
    rows = Rows(0, 200, 200)
    contexts = [replace(CONTEXT, rows=rows, seed=seed, step=step) for seed in (0, 1) for step in (0, 1)]
    samples = np.stack([ctx.uniform(layer, 50) for ctx in contexts for layer in ("a", "b")])
    assert samples.dtype == np.float32
    assert 0 <= samples.min() < samples.max() < 1
    assert np.abs(np.quantile(samples, [0.25, 0.5, 0.75]) - [0.25, 0.5, 0.75]).max() < 0.01
    apart = np.corrcoef(samples.reshape(-1, 50 * 200)) - np.eye(8)
    assert np.abs(apart).max() < 0.05
    assert np.unique(samples).size > 0.99 * samples.size


WORDS = {kind.__name__: kind for kind in (Connection, Cut, Keeps, LabelFormat, Labels, SourceKind)}


class Same(Layer):
    """Passes on its source; its constructor sets the attributes ``late``."""

    late: dict[str, object] = {}

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        vars(self).update(self.late)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0])


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("labels", 1, r"labels = Labels\(source=1\)"),
        ("keeps", None, r"keeps = Keeps\(feature=False\)"),
        ("cut", Connection.kOneToOne, r"cut = Cut\(Connection.kOneToOne\)"),
        ("new_labels", True, r"new_labels = LabelFormat\(\)"),
        ("source_kind", "vectors", r"source_kind = SourceKind.kVectors"),
    ],
)
def test_a_declaration_of_another_type_is_refused(name: str, value: object, instead: str):
    with pytest.raises(UserError, match=rf"^the layer class Wrong sets {name} to .*{value}.*; write {instead}$"):
        type("Wrong", (Same,), {name: value})
    late = type("Late", (Same,), {"late": {name: value}})
    with pytest.raises(UserError, match=rf"layer 'a': Late sets {name} to .*; write {instead}$"):
        make_layer(late, LayerConf(name="a", srclayers=["data"]), [(4, 2)], None)


@pytest.mark.parametrize(("name", "declared"), DECLARED.items())
def test_the_example_in_the_message_is_a_declaration(name: str, declared: tuple[object, str]):
    value = eval(declared[1].removeprefix(f"{name} = "), WORDS)
    assert getattr(type("New", (Same,), {name: value}), name) is value


class Scaled:
    """Changes gradients of a layer; a mixin, so a plain class."""

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        assert sources[0].sum() + output.feature.sum() != 0, "what a new gradient may read is kept"
        of_sources, (weight, bias) = super().compute_gradient(params, sources, output, grad, needs, ctx)
        return of_sources, (weight * np.float32(0.5), bias)


def test_a_gradient_of_the_user_gets_all_that_it_may_read_and_arrays():
    cls = type("Own", (Scaled, InnerProduct), {"__module__": "__main__"})
    assert cls.keeps == Keeps() != InnerProduct.keeps
    rng = np.random.default_rng(0)
    x, weight, dy = (rng.normal(size=shape).astype(np.float32) for shape in ((32, 1024), (1100, 1024), (32, 1100)))
    conf = LayerConf(name="a", srclayers=["data"], innerproduct_conf={"num_output": 1100})
    gradients = []
    for kind in (cls, InnerProduct):
        layer = make_layer(kind, conf, [x.shape], None)
        ctx = context(get_ops(), rows=Rows(0, 32, 64)).changed(adds_later=True)
        params = [weight, np.zeros(1100, np.float32)]
        output = layer.compute_feature(params, [x], ctx)
        gradients.append(to_dense(layer.compute_gradient(params, [x], output, dy, [True], ctx)[1][0]))
    np.testing.assert_array_equal(gradients[0], 0.5 * gradients[1])


small = st.integers(1, 5)


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(small, small),
    stride=st.tuples(small, small),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    pooling=st.booleans(),
)
def test_any_window_gives_the_declared_shape(size, kernel, stride, pad, pooling):
    assume(all(k <= s + 2 * p and p < k for k, s, p in zip(kernel, size, pad, strict=True)))
    names = ("kernel_y", "kernel_x", "stride_y", "stride_x", "pad_y", "pad_x")
    window = dict(zip(names, kernel + stride + pad, strict=True))
    kind = "kPooling" if pooling else "kConvolution"
    conf = {"pooling_conf": window, "convolution_conf": {"num_filters": 4, **window}}
    layer = LayerCase(kind, [(2, 3, *size)], conf).layer()
    params = [np.zeros(spec.shape, np.float32) for spec in layer.params]
    ctx = context(BACKENDS["numpy"](), rows=Rows(0, 2, 2))
    assert layer.compute_feature(params, [np.zeros((2, 3, *size), np.float32)], ctx).feature.shape == layer.shape
