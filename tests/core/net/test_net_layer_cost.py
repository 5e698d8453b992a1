"""Operations and bytes, compared with the paper's figures for AlexNet (5.4.1) and with numbers worked out by hand."""

import pytest

from dsinga.net.layer_cost import LayerCost, layer_cost
from tests.support.plain_nets import alexnet, conv, layer, mlp, net_of


def test_a_fully_connected_layer() -> None:
    """16 x 20 -> 16 x 10: 2·16·20·10 operations forward, twice as many backward; 10·20 weights and 10 biases."""
    net = mlp(16, 10, inputs=20)
    assert layer_cost(net.layer("out")) == LayerCost(6400, 12800, 4 * 160, 4 * 210)


def test_a_convolution() -> None:
    """2 x 3 x 8 x 8 by 5 filters of 3 x 3 x 3: each of 2·5·8·8 numbers takes 27 products."""
    net = net_of(
        conv("conv", "data", 5, 3, pad=1), layer("loss", "kSoftmaxLoss", "conv", "data"), batch=2, shape=(3, 8, 8)
    )
    assert layer_cost(net.layer("conv")) == LayerCost(2 * 640 * 27, 4 * 640 * 27, 4 * 640, 4 * (135 + 5))


def test_a_filter_of_a_group_takes_its_channels_alone() -> None:
    settings = {"num_filters": 6, "group": 3, "dilation": 2, "pad": 2}
    grouped = layer("conv", "kConvolution", "data", convolution_conf=settings)
    net = net_of(grouped, layer("loss", "kSoftmaxLoss", "conv", "data"), batch=2, shape=(3, 8, 8))
    assert layer_cost(net.layer("conv")) == LayerCost(2 * 768 * 9, 4 * 768 * 9, 4 * 768, 4 * (54 + 6))


def test_a_transposed_weight_takes_as_many_operations() -> None:
    conf = {"num_output": 10, "transpose": True}
    net = net_of(layer("ip", "kInnerProduct", "data", innerproduct_conf=conf), batch=16, shape=(20,))
    assert layer_cost(net.layer("ip")).forward == 6400


@pytest.mark.parametrize(("cell", "conf", "gates"), [("kGRU", "gru_conf", 3), ("kLSTM", "lstm_conf", 4)])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_layer_multiplies_by_its_weights_at_each_step(cell, conf, gates, directions):
    """4 sequences of 5 steps, 6 inputs, 8 units: each gate, in each direction, has weights of 8·6 and of 8·8."""
    settings = {"dim_hidden": 8, "bidirectional": directions == 2}
    net = net_of(layer("cell", cell, "data", **{conf: settings}), batch=4, shape=(5, 6))
    assert layer_cost(net.layer("cell")).forward == 2 * 4 * 5 * gates * directions * (8 * 6 + 8 * 8)


def test_a_layer_without_weights_takes_an_operation_a_number() -> None:
    net = net_of(layer("relu", "kReLU", "data"), batch=4, shape=(6,))
    assert layer_cost(net.layer("relu")) == LayerCost(24, 24, 96, 0)


def test_alexnet_has_the_shares_that_the_paper_gives() -> None:
    """Convolutions: 5 % of the params and 90 to 95 % of the operations; fully connected layers the rest."""
    net = alexnet()
    costs = {node.layer.name: layer_cost(node.layer) for node in net.nodes}
    convolutions = [cost for name, cost in costs.items() if name.startswith("conv")]
    assert 0.04 < sum(cost.params for cost in convolutions) / sum(cost.params for cost in costs.values()) < 0.07
    assert 0.90 < sum(cost.forward for cost in convolutions) / sum(cost.forward for cost in costs.values()) < 0.96
