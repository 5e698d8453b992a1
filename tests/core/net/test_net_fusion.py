"""Which layers back-propagation fuses."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsinga.base.registry import register
from dsinga.job import LayerConf, Phase
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.layers.dense.batchnorm import BatchNorm, RectifiedBatchNorm
from dsinga.net import NeuralNet
from dsinga.net.fusion import fuse
from dsinga.ops import get_ops
from dsinga.training.bp import back_propagate
from tests.support.net_cases import IMAGES, layer, names
from tests.support.net_cases import build as build_net

DATA = layer("data", "kRecordInput")
CONV = layer("conv", "kConvolution", "data", convolution_conf={"num_filters": 2, "kernel": 3, "pad": 1})
RELU = layer("relu", "kReLU", "bn")
ENDING = (
    layer("ip", "kInnerProduct", "relu", innerproduct_conf={"num_output": 3}),
    layer("loss", "kSoftmaxLoss", "ip", "data"),
)


@register("layer", "OwnBatchNorm")
class OwnBatchNorm(BatchNorm):
    """A user's own."""


def build(*layers: LayerConf) -> NeuralNet:
    return build_net(DATA, *layers, *ENDING, data=IMAGES)


def norm(source: str = "conv") -> LayerConf:
    return layer("bn", "kBM", source)


def block(*between: LayerConf, add: tuple[str, ...] = ("bn", "low")) -> list[LayerConf]:
    """Return layers that add a normalised convolution of ``low`` to what else ``add`` names."""
    low = layer("low", "kConvolution", "data", convolution_conf={"num_filters": 2, "kernel": 1})
    conv = CONV.replace(srclayers=["low"])
    sum_ = layer("add", "kAdd", *add)
    return [low, conv, norm(), *between, sum_, layer("relu", "kReLU", "add")]


def test_a_relu_is_fused_with_the_normalisation_before_it():
    net = build(CONV, norm(), RELU)
    assert names(net) == ["data", "conv", "bn", "relu", "ip", "loss"]
    assert names(net.fused) == ["data", "conv", "bn", "ip", "loss"]
    node = net.fused.nodes[2]
    assert isinstance(node.layer, RectifiedBatchNorm)
    assert (node.sources, node.params) == (net.nodes[2].sources, net.nodes[2].params)
    assert net.fused.nodes[3].sources == (2,)
    assert net.fused.params is net.params


@pytest.mark.parametrize("add", [("bn", "low"), ("low", "bn")])
def test_an_add_between_them_is_fused_for_either_order_of_sources(add):
    net = build(*block(add=add))
    assert names(net.fused) == ["data", "low", "split(low)", "conv", "bn", "ip", "loss"]
    stage = net.fused.stages[4]
    assert [(net.fused.nodes[e.node].layer.name, e.part) for e in stage.edges] == [("conv", -1), ("split(low)", 1)]
    assert stage.needs == (True, True)
    assert len(stage.layer.source_shapes) == 2


@pytest.mark.parametrize("kind", ["kActivation", "kCudnnActivation"])
def test_a_relu_activation_is_fused_like_a_relu_layer(kind):
    for function, fused in ("RELU", True), ("TANH", False):
        relu = layer("relu", kind, "bn", activation_conf={"type": function})
        net = build(CONV, norm(), relu)
        assert (net.fused is not net) == fused


DENSE = layer("dense", "kInnerProduct", "data", innerproduct_conf={"num_output": 5})


@pytest.mark.parametrize("backend", ["numpy", "onednn"])
@pytest.mark.parametrize("product", [CONV, DENSE], ids=lambda product: product.name)
def test_a_product_and_its_rectifier_are_fused_without_changing_a_bit(product, backend):
    net, leaky = (
        build(product, layer("relu", "kReLU", product.name, relu_conf={"negative_slope": slope})) for slope in (0, 0.1)
    )
    fused, ops = net.fused_for(SimpleNamespace(fuses_rectifiers=True)), get_ops(backend)
    assert names(fused) == ["data", product.name, "ip", "loss"]
    assert net.fused_for(ops) is net
    assert leaky.fused_for(SimpleNamespace(fuses_rectifiers=True)) is leaky
    rng, runs = np.random.default_rng(0), []
    values = {name: rng.normal(size=param.shape).astype(np.float32) for name, param in net.params.items()}
    records = {"data": Records(rng.normal(size=(4, *IMAGES.shape)).astype(np.float32), np.array([0, 1, 2, 0]))}
    for each in (net, fused):
        pushed: dict[str, Any] = {}
        ctx = Context(ops, Phase.kTrain, Rows(0, 4, 4))
        metrics = back_propagate(each, values, records, ctx, pushed.__setitem__)
        runs.append((metrics, {name: array.tobytes() for name, array in pushed.items()}))
    assert runs[0] == runs[1]


SUM = layer("relu", "kReLU", "add")


@pytest.mark.parametrize(
    "layers",
    [
        [CONV, layer("relu", "kReLU", "conv")],
        [CONV, norm(), layer("relu", "kReLU", "bn", relu_conf={"negative_slope": 0.1})],
        [CONV, norm(), layer("low", "kReLU", "bn"), layer("high", "kReLU", "bn"), layer("relu", "kAdd", "low", "high")],
        [CONV, norm(), RELU, layer("see", "kArgSort", "bn")],
        [CONV, layer("bn", "kUserLayer", "conv", user_type="OwnBatchNorm"), RELU],
        [CONV, norm(), layer("add", "kAdd", "bn"), SUM],
        [CONV, norm(), layer("add", "kAdd", "bn", "bn"), SUM],
        [CONV, norm(), layer("add", "kMultiply", "bn", "conv"), SUM],
        block(add=("bn", "low", "low")),
        block(layer("tanh", "kSTanh", "low"), add=("bn", "tanh")),
    ],
    ids=lambda layers: " ".join(layer.type_name for layer in layers),
)
def test_other_layers_are_not_fused(layers):
    net = build(*layers)
    assert net.fused is net


STEPS = RecordInfo((5,), 4, label_shape=(5,))
TAGGER = (
    layer("words", "kRecordInput"),
    layer("embed", "kEmbedding", "words", embedding_conf={"vocab_size": 9, "feature_dim": 4}),
    layer("scores", "kInnerProduct", "embed", innerproduct_conf={"num_output": 6}, per_step=True),
    layer("loss", "kSoftmaxLoss", "scores", "words", per_step=True, softmaxloss_conf={"label_smoothing": 0.1}),
)


def test_the_scores_and_the_loss_of_each_step_are_fused_without_changing_a_gradient():
    net, rng = build_net(*TAGGER, words=STEPS), np.random.default_rng(0)
    assert names(net.fused) == ["words", "embed", "loss"]
    assert net.fused.nodes[2].params == ("scores_weight", "scores_bias")
    beyond = np.arange(5) >= np.array([5, 1, 3, 2])[:, None]
    words, labels = (np.where(beyond, -1, rng.integers(0, 6, (4, 5))) for _ in range(2))
    values = {name: rng.normal(size=param.shape) for name, param in net.params.items()}
    ctx = Context(get_ops("numpy"), Phase.kTrain, Rows(0, 4, 4))
    runs = []
    for each in (net, net.fused):
        pushed: dict[str, Any] = {}
        metrics = back_propagate(each, values, {"words": Records(words, labels)}, ctx, pushed.__setitem__)
        runs.append((metrics, pushed))
    (metrics, pushed), (fused_metrics, fused_pushed) = runs
    assert metrics.keys() == fused_metrics.keys()
    assert all(metrics[name] == pytest.approx(fused_metrics[name]) for name in metrics)
    for name in ("scores_weight", "scores_bias"):
        np.testing.assert_allclose(pushed[name], fused_pushed[name], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(pushed["embed_weight"].values, fused_pushed["embed_weight"].values, atol=1e-15)


@pytest.mark.parametrize(
    "more",
    [layer("best", "kArgSort", "scores", per_step=True), layer("most", "kArgSort", "loss", per_step=True)],
    ids=lambda more: more.name,
)
def test_scores_and_losses_that_other_layers_take_are_not_fused(more):
    net = build_net(*TAGGER, more, words=STEPS)
    assert net.fused is net


def test_layers_on_other_rows_are_not_fused():
    data, conv, bn, relu, *rest = build(CONV, norm(), RELU).nodes
    elsewhere = relu._replace(rows=Rows(0, 2, 4))
    assert len(fuse([data, conv, bn, elsewhere, *rest])) == 6
