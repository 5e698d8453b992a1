"""Operations and bytes, compared with the paper's figures for AlexNet (5.4.1) and with numbers worked out by hand.

The traffic of a partitioning by the formulas of the paper is compared with simulated bytes.
"""

from __future__ import annotations

import pytest

from dsinga.layers.base import Connection
from dsinga.net import NeuralNet, choose_cuts
from dsinga.net.cut import WHOLE_LAYER, LayerCut
from dsinga.net.layer_cost import FLOAT_BYTES, LayerCost, layer_cost
from dsinga.planner.approximate_program import NetParts, approximate_program
from dsinga.planner.processes import ProcessMap, process_map
from dsinga.planner.simulate import simulate
from tests.support.planner_nets import GIGABIT, MACHINE, alexnet, conv, dense, layer, mlp, net_of, size_of_params

ROWS, FEATURES, WHOLE = LayerCut(0), LayerCut(1), LayerCut(-1)


def param_traffic(size: int, cut: LayerCut, workers: int) -> float:
    """Return the bytes that a worker sends, which equal those that it receives, for params of ``size`` bytes.

    With a layer cut on dimension 0, every worker sends the whole gradient and gets the whole value: 2p of 5.4.1.
    Otherwise each param has one user, whose process runs the server of that param.
    """
    return size if cut.dim == 0 and workers > 1 else 0


def feature_traffic(size: int, source: LayerCut, cut: LayerCut, connection: Connection | None, workers: int) -> float:
    """Return the bytes that the busiest worker sends of a feature of ``size`` bytes, in the forward pass.

    The gradient goes the same way back. With b rows of d numbers over K workers (5.4.1):

    - a layer cut on dimension 1 that needs all features of its source gathers it: each worker sends its b·d/K to
      K - 1 others (Figure 13b);
    - for any other change between dimension 0 and dimension 1, each worker keeps 1/K of its b·d/K and sends the rest;
    - to or from a layer that is whole on one worker, b·d·(K - 1)/K numbers are sent.
    """
    others = workers - 1
    if source.dim == WHOLE_LAYER and cut.dim == WHOLE_LAYER:
        return 0 if source.location == cut.location else size
    if WHOLE_LAYER in (source.dim, cut.dim):
        gathers = cut.dim == 1 and connection is not Connection.kOneToOne
        return size * others if gathers else size * others / workers
    if cut.dim == 1 and connection is not Connection.kOneToOne:
        return size * others / workers
    if source.dim != cut.dim:
        return size * others / workers**2
    return 0


def net_traffic(net: NeuralNet, cuts: dict[str, LayerCut], workers: int) -> float:
    """Return the bytes that a worker sends in an iteration by the formulas above; it receives as many."""
    total = 0.0
    for node, stage in zip(net.nodes, net.stages, strict=True):
        cut = cuts[node.layer.name]
        size = FLOAT_BYTES * sum(net.params[name].size for name in stage.completes)
        total += param_traffic(size, cut, workers)
        for edge, needs in zip(stage.edges, stage.needs, strict=True):
            if edge.labels:
                continue
            source = net.nodes[edge.node].layer
            forward = feature_traffic(
                layer_cost(source).feature, cuts[source.name], cut, node.layer.connection, workers
            )
            total += 2 * forward if needs else forward
    return total


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


def test_a_transposed_weight_takes_as_many_operations() -> None:
    conf = {"num_output": 10, "transpose": True}
    net = net_of(layer("ip", "kInnerProduct", "data", innerproduct_conf=conf), batch=16, shape=(20,))
    assert layer_cost(net.layer("ip")).forward == 6400


@pytest.mark.parametrize(("cell", "conf", "gates"), [("kGRU", "gru_conf", 3), ("kLSTM", "lstm_conf", 4)])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_layer_multiplies_by_its_weights_at_each_step(
    cell: str, conf: str, gates: int, directions: int
) -> None:
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


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_data_parallel_workers_send_every_gradient_and_get_every_value(workers: int) -> None:
    """Each worker sends p bytes and receives p bytes, with the server in a process of its own."""
    net = alexnet(64)
    processes = ProcessMap(tuple(range(workers)), (workers,))
    cuts = choose_cuts(net, workers)
    prediction = simulate(approximate_program(NetParts(net, workers), cuts, processes, MACHINE), GIGABIT)
    assert prediction.sent == prediction.received == 4 * size_of_params(net)
    assert net_traffic(net, cuts, workers) == 4 * size_of_params(net)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_model_parallel_workers_exchange_features(workers: int) -> None:
    """For fc7 of AlexNet each worker sends b·d/K numbers to K - 1 others, and as many gradients back (Figure 13b)."""
    batch, width = 64, 4096
    net = net_of(
        dense("fc6", "data", width),
        dense("fc7", "fc6", width),
        layer("loss", "kEuclideanLoss", "fc7", "data"),
        batch=batch,
        shape=(width,),
    )
    assert feature_traffic(4 * batch * width, FEATURES, FEATURES, Connection.kOneToAll, workers) == pytest.approx(
        4 * batch * width * (workers - 1) / workers
    )
    cuts = choose_cuts(net, workers, {"fc6": 1, "fc7": 1, "loss": 0})
    prediction = simulate(
        approximate_program(NetParts(net, workers), cuts, process_map(workers, 1, workers), MACHINE), GIGABIT
    )
    gathered = 4 * batch * width * (workers - 1) // workers  # of the data and of fc6, whose gradient goes back
    back_to_rows = 2 * 4 * batch * width * (workers - 1) // workers**2
    assert prediction.sent == prediction.received == 3 * gathered + back_to_rows
    assert net_traffic(net, cuts, workers) == pytest.approx(prediction.sent)


def test_model_parallelism_pays_for_alexnets_fully_connected_layers() -> None:
    """The size of the params is far above b·d, so by rows costs more, for batches up to thousands (5.4.1)."""
    fc6 = layer_cost(alexnet(512).layer("fc6"))
    for workers in (2, 4, 8):
        by_rows = 2 * param_traffic(fc6.params, ROWS, workers)
        by_features = 2 * 2 * feature_traffic(4 * 512 * 9216, ROWS, FEATURES, Connection.kOneToAll, workers)
        assert by_rows > 3 * by_features


def test_params_with_one_user_are_not_sent() -> None:
    assert param_traffic(100, ROWS, 1) == 0
    assert param_traffic(100, FEATURES, 4) == param_traffic(100, WHOLE, 4) == 0


@pytest.mark.parametrize(
    ("source", "cut", "connection", "bytes_"),
    [
        (ROWS, ROWS, Connection.kOneToAll, 0),
        (FEATURES, FEATURES, Connection.kOneToOne, 0),
        (FEATURES, FEATURES, Connection.kOneToAll, 750),
        (ROWS, FEATURES, Connection.kOneToAll, 750),
        (ROWS, FEATURES, Connection.kOneToOne, 187.5),
        (FEATURES, ROWS, Connection.kOneToAll, 187.5),
        (WHOLE, ROWS, Connection.kOneToAll, 750),
        (ROWS, WHOLE, Connection.kOneToAll, 750),
        (WHOLE, FEATURES, Connection.kOneToAll, 3000),
        (WHOLE, WHOLE, Connection.kOneToAll, 0),
        (WHOLE, LayerCut(-1, 2), Connection.kOneToAll, 1000),
    ],
)
def test_a_thousand_bytes_between_four_workers(
    source: LayerCut, cut: LayerCut, connection: Connection, bytes_: float
) -> None:
    assert feature_traffic(1000, source, cut, connection, 4) == bytes_
