"""Lasting state and shared params in partitioned nets have one value, as on one worker."""

import numpy as np
import pytest

from dsinga.base.registry import register
from dsinga.cutting.partitioned import FEATURES, ROWS, SPACE, WHOLE_LAYER, LayerCut, PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.job import Phase
from dsinga.layers import Connection, Cut, Layer, Output, ParamSpec
from dsinga.layers.dense.innerproduct import InnerProduct
from dsinga.net import NeuralNet
from tests.support.partitioned_run import assert_equal_runs, batches_of, initial, run_partitioned, run_whole
from tests.support.random_nets import CLASSES
from tests.support.training_cases import build, dense, layer

STATE = [{}, {}, {"share_from": "one_mean"}, {"share_from": "one_variance"}]


@register("layer", "Level")
class Level(Layer):
    """Keeps the mean of all its numbers as lasting state, one number for all features; passes on its source."""

    cut = Cut(Connection.kOneToOne)

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("mean", (1,), cut_axis=None, trainable=False),)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0], state={"mean": sources[0].mean(keepdims=True)[0]})

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        return (grad,), (None,)


@register("layer", "Halved")
class Halved(InnerProduct):
    """Overrides the gradient, with half the gradient for its params."""

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        dx, dw, db = ctx.ops.inner_product_grad(sources[0], params[0], grad, False, needs[0], True)
        return (dx,), (dw / 2, db / 2)


def check(net: NeuralNet, cut: PartitionedNet) -> None:
    values, batches = initial(net, np.float64), batches_of(net, 3, CLASSES, np.float64)
    assert_equal_runs(run_partitioned(cut, values, batches), run_whole(net, values, batches), 1e-12)


def test_a_state_of_all_features_is_not_counted_once_for_each_part_of_them():
    by_features = {"partition_dim": FEATURES}
    net = build(
        dense("a", "data", 6), layer("level", "Level", "a", **by_features), dense("b", "level", 4),
        layer("loss", "kSoftmaxLoss", "b", "data"),
    )  # fmt: skip
    cut = partition(net, 2)
    assert cut.cuts["level"] == LayerCut(ROWS, 0, "keeps a state of all features")
    check(net, cut)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ({"location": 1}, {"location": 0}, (WHOLE_LAYER, 1)),
        ({"partition_dim": ROWS}, {"location": 1}, (WHOLE_LAYER, 1)),
        ({"partition_dim": FEATURES}, {"location": 1}, (WHOLE_LAYER, 1)),
        ({"partition_dim": FEATURES}, {"partition_dim": ROWS}, (ROWS, 0)),
        ({"partition_dim": FEATURES}, {"partition_dim": FEATURES}, (FEATURES, 0)),
    ],
)
def test_a_state_that_two_layers_share_is_counted_once(one: dict, other: dict, together: tuple[int, int]):
    net = build(
        dense("a", "data", 6), layer("one", "kBM", "a", **one), dense("b", "one", 6),
        layer("two", "kBM", "b", param=STATE, **other), dense("c", "two", 4),
        layer("loss", "kSoftmaxLoss", "c", "data"),
    )  # fmt: skip
    cut = partition(net, 2)
    assert [cut.cuts[name][:2] for name in ("one", "two")] == [together, together]
    check(net, cut)


def test_without_synchronized_running_statistics_are_the_means_of_the_workers():
    norm = layer("norm", "kBM", "data", bm_conf={"synchronized": False})
    net = build(norm, layer("loss", "kSoftmaxLoss", "norm", "data"), rows=7)
    batches = batches_of(net, 1, CLASSES)
    run = run_partitioned(partition(net, 2), initial(net), batches)
    x = batches[0]["data"].data
    variance = (4 * x[:4].var(axis=0, ddof=1) + 3 * x[4:].var(axis=0, ddof=1)) / 7
    np.testing.assert_allclose(run.params["norm_mean"], x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(run.params["norm_variance"], variance, rtol=1e-12)


def test_without_synchronized_a_layer_cut_by_space_has_the_statistics_of_the_batch():
    conv = layer("conv", "kConvolution", "data", convolution_conf={"num_filters": 2, "kernel": 3, "pad": 1})
    norm = layer("norm", "kBM", "conv", bm_conf={"synchronized": False}, partition_dim=2)
    net = build(
        conv.replace(partition_dim=2),
        norm,
        dense("ip", "norm", CLASSES),
        layer("loss", "kSoftmaxLoss", "ip", "data"),
        shape=(2, 6, 4),
    )
    cut = partition(net, 2)
    assert cut.cuts["norm"].dim == SPACE
    check(net, cut)


def test_another_phase_does_not_cut_layers_that_training_does_not_cut():
    a = dense("a", "data", 6).replace(partition_dim=FEATURES)
    rows, features = (dense("b", "a", 6).replace(partition_dim=dim) for dim in (ROWS, FEATURES))
    train = partition(build(a, rows), 2)
    axes = {part.param: part.axis for part in train.parts.values()}
    cut = partition(build(a, features, phase=Phase.kTest), 2, axes=axes)
    assert cut.cuts["b"] == LayerCut(ROWS, 0, "training leaves its param 'b_weight' whole")
    assert cut.parts.keys() == train.parts.keys()


def test_a_subclass_with_its_own_gradient_gathers_no_activations():
    net = build(dense("a", "data", 40), layer("b", "Halved", "a", innerproduct_conf={"num_output": 50}),
                layer("loss", "kSoftmaxLoss", "b", "data"), shape=(60,), rows=6)  # fmt: skip
    cut = partition(net, 2, gather=True)
    assert [part.name for part in cut.parts.values() if part.gathered] == ["a_weight", "a_bias"]
    check(net, cut)
