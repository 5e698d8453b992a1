"""Features that are computed again give the bits of those that are kept, on one worker and in cut nets."""

from typing import Any

import numpy as np
import pytest

from dsinga.base.registry import register
from dsinga.cutting.partitioning import partition
from dsinga.job import JobError, NetConf, Phase, loads
from dsinga.layers import Context, Output, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.net.build import choose_ends, narrow_places
from dsinga.training import bp
from tests.support.partition_nets import INFOS, NETS, PAIRS, net_of
from tests.support.partitioned_run import Run, batches_of, initial, kernels, run_partitioned, run_whole
from tests.support.random_nets import CLASSES
from tests.support.small_job import assert_same
from tests.support.training_cases import build, dense, layer, records_of, values_of
from tests.support.user_layers import Identity

MARKS = [(1, 0), (2, 0), (2, 1), (3, 1)]  # one of so many layers, from which one on


def marked(net: NeuralNet, every: int = 1, first: int = 0) -> NeuralNet:
    """Return the net with ``recompute`` in the layers at these positions."""
    for position, node in enumerate(net.nodes):
        node.layer.conf = node.layer.conf.replace(recompute=position % every == first)
    return NeuralNet(net.nodes, net.params, net.phase)


def assert_same_bits(first: Run, second: Run) -> None:
    for actual, expected in zip([first.params, *first.gradients], [second.params, *second.gradients], strict=True):
        assert_same(actual, expected)
    assert first.metrics == second.metrics


@pytest.mark.parametrize("name", NETS)
def test_a_net_has_the_bits_of_one_that_keeps_its_features(name: str):
    kept = net_of(name)
    values, batches = initial(kept, np.float32), batches_of(kept, 2, CLASSES, np.float32)
    expected = run_whole(kept, values, batches)
    for marks in MARKS:
        assert_same_bits(run_whole(marked(net_of(name), *marks), values, batches), expected)


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_a_cut_net_does_so_too(name: str, strategy: str):
    kept, again = net_of(name, strategy, 3), marked(net_of(name, strategy, 3))
    values, batches = initial(kept, np.float32), batches_of(kept, 2, CLASSES, np.float32)
    assert_same_bits(
        run_partitioned(partition(again, 3), values, batches), run_partitioned(partition(kept, 3), values, batches)
    )


@register("layer", "CountedPasses")
class Counted(Identity):
    """Passes on its source, and notes its passes."""

    passes: list[str] = []

    def compute_feature(self, params: Any, sources: Any, ctx: Context) -> Output:
        self.passes.append(self.name)
        return Output(sources[0] + 0)

    def compute_gradient(self, params: Any, sources: Any, output: Output, *given: Any) -> Any:
        assert output.feature is not None
        assert sources[0] is not None
        return super().compute_gradient(params, sources, output, *given)


def test_each_layer_is_computed_twice_at_most():
    Counted.passes.clear()
    net = build(
        dense("ip", "data"), layer("a", "CountedPasses", "ip", recompute=True),
        layer("b", "CountedPasses", "a", recompute=True),
        layer("c", "CountedPasses", "b"), layer("d", "CountedPasses", "c", recompute=True), dense("top", "d"),
        layer("loss", "kSoftmaxLoss", "top", "data"),
    )  # fmt: skip
    values = values_of(net)
    bp(net, values, records_of(net), Context(kernels(values), net.phase, Rows(0, 4, 4)), lambda name, gradient: None)
    assert Counted.passes == ["a", "b", "c", "d", "d", "a", "b"]


CHAIN = """
layer { name: "data" type: kRecordInput store_conf { path: "x" batchsize: 10 shape: [3, 9, 9] } }
layer { name: "conv1" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
layer { name: "relu1" type: kReLU srclayers: "conv1" }
layer { name: "conv2" type: kConvolution srclayers: "relu1" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
layer { name: "relu2" type: kReLU srclayers: "conv2" }
layer { name: "sum" type: kAdd srclayers: ["relu1", "relu2"] }
layer { name: "conv3" type: kConvolution srclayers: "sum" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
layer { name: "relu3" type: kReLU srclayers: "conv3" }
layer { name: "scores" type: kInnerProduct srclayers: "relu3" innerproduct_conf { num_output: 10 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: ["scores", "data"] }
"""


def chain(stretches: int) -> NeuralNet:
    conf: NetConf = loads(f"neuralnet {{ recompute: {stretches} {CHAIN} }}", "chain.conf").neuralnet
    return create_net(conf, Phase.kTrain, {"data": INFOS["data"]})


def test_stretches_end_where_one_feature_is_all_that_goes_on():
    net = chain(0)
    names = [node.layer.name for node in net.nodes]
    assert [names[k] for k in sorted(narrow_places(net.nodes))] == ["conv1", "relu1", "sum", "conv3", "relu3", "scores"]
    assert [names[k] for k in choose_ends(net.nodes, 3)] == ["sum", "conv3"]
    assert choose_ends(net.nodes, 1) == []


@pytest.mark.parametrize("stretches", [2, 3, 10])
def test_stretches_give_the_same_bits(stretches: int):
    kept, again = chain(0), chain(stretches)
    assert any(stage.recompute for stage in again.stages)
    assert not any(stage.recompute for stage in kept.stages)
    values, batches = initial(kept, np.float32), batches_of(kept, 2, CLASSES, np.float32)
    assert_same_bits(run_whole(again, values, batches), run_whole(kept, values, batches))


def test_a_loss_is_not_computed_again() -> None:
    chain = CHAIN.replace('name: "loss"', 'name: "loss" recompute: true')
    conf = loads(f"neuralnet {{ {chain} }}", "chain.conf").neuralnet
    with pytest.raises(JobError, match="chain.conf:.*recompute saves nothing in a loss, with which the backward pass"):
        create_net(conf, Phase.kTrain, {"data": INFOS["data"]})
