"""A net cut by space, along the axes of its fields, trains as on one worker: to 1e-12 in float64."""

import numpy as np
import pytest

from dsinga.cutting.partitioned import LayerCut
from dsinga.cutting.partitioning import partition
from dsinga.job import NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from tests.support.partition_nets import net_of
from tests.support.partitioned_run import (
    assert_equal_runs,
    batches_of,
    forward_partitioned,
    forward_whole,
    initial,
    run_partitioned,
    run_whole,
)
from tests.support.random_fields import random_net
from tests.support.refusals import refused

CUTS = [("stripes", 2), ("stripes", 3), ("columns", 2), ("blocks", 4)]


@pytest.mark.parametrize(("cut", "workers"), CUTS)
@pytest.mark.parametrize("name", ["fields", "convnet", "volumes", "targets"])
def test_a_net_cut_by_space_trains_as_on_one_worker(name: str, cut: str, workers: int):
    check(net_of(name, cut, workers), workers)


@pytest.mark.parametrize("name", ["zoo", "residual"])
def test_layers_that_cannot_be_cut_by_space_are_cut_by_rows(name: str):
    check(net_of(name, "blocks", 4), 4, steps=2)


@pytest.mark.parametrize("seed", range(20))
def test_random_nets_of_fields_train_as_on_one_worker(seed: int):
    net, workers = random_net(seed)
    check(net, workers, steps=2)


@pytest.mark.parametrize("name", ["fields", "convnet"])
def test_float32_rounds_to_1e_6(name: str):
    net = net_of(name, "blocks", 4)
    values, batches = initial(net, np.float32), batches_of(net, 1, 4, np.float32)
    assert_equal_runs(run_partitioned(partition(net, 4), values, batches), run_whole(net, values, batches), 2e-6)


def test_the_test_phase_has_the_metrics_of_one_worker():
    net = net_of("convnet", "stripes", 3, phase=Phase.kTest)
    values, (batch,) = initial(net), batches_of(net, 1, 4)
    found, expected = forward_partitioned(partition(net, 3), values, batch), forward_whole(net, values, batch)
    assert {name: pytest.approx(metric) for name, metric in expected.items()} == found


def check(net: NeuralNet, workers: int, steps: int = 3) -> None:
    """Assert that a net trains alike whole and cut, and that some of its layers are cut by space."""
    cut = partition(net, workers)
    assert any(layer_cut.grid for layer_cut in cut.cuts.values())
    values, batches = initial(net), batches_of(net, steps, 4)
    assert_equal_runs(run_partitioned(cut, values, batches), run_whole(net, values, batches), 1e-12)


def small_net(rows: int, **cut) -> NeuralNet:
    """Return the net of a convolution with batch normalisation, dropout and a dense layer, for 6 x 6 points."""
    layers = [
        {"name": "data", "type": "kRecordInput", "store_conf": {"path": "x", "batchsize": [rows]}},
        {"name": "conv", "type": "kConvolution", "srclayers": ["data"], "convolution_conf": {"num_filters": 2}},
        {"name": "norm", "type": "kBM", "srclayers": ["conv"]},
        {"name": "drop", "type": "kDropout", "srclayers": ["norm"]},
        {"name": "dense", "type": "kInnerProduct", "srclayers": ["drop"], "innerproduct_conf": {"num_output": 4}},
        {"name": "loss", "type": "kSoftmaxLoss", "srclayers": ["dense", "data"]},
    ]
    return create_net(NetConf(layer=layers, **cut), Phase.kTrain, {"data": RecordInfo((1, 6, 6), rows)})


def test_a_batch_of_one_row_is_cut_by_space():
    net = small_net(1, partition_dim=2)
    cut = partition(net, 2)
    assert cut.cuts["norm"] == LayerCut(2, grid=(2,))
    assert cut.cuts["dense"] == LayerCut(-1, reason="needs all points of a row, and the batch has too few rows")
    check(net, 2)


def test_a_grid_for_another_number_of_workers_is_refused():
    net = small_net(4, partition_dim=2, partition_grid=[2, 2])
    refused(lambda: partition(net, 3), "'data'", "group has 3", error=Exception)
    partition(net, 1)


def test_halos_alone_cross_between_two_convolutions():
    """A convolution of 3 x 3 needs a row of points of each neighbour, no more."""
    net = small_net(4, partition_dim=2)
    bridges = [node.layer for node in partition(net, 2).nodes if node.layer.name.startswith("receive(data:conv")]
    assert [bridge.shape for bridge in bridges] == [(4, 1, 1, 6)] * 2


def test_losses_metrics_and_labels_of_fields_are_cut_by_space():
    """All but the weights of records, which each worker has whole."""
    cut = partition(net_of("targets", "blocks", 4), 4)
    assert {name for name, layer_cut in cut.cuts.items() if not layer_cut.grid} == {"share"}
    inputs = {node.layer.name: node.layer for node in cut.locals[3].nodes if node.layer.is_input}
    regions = {name: str(layer.label_region) for name, layer in inputs.items() if layer.label_region}
    assert regions == {"grid": "points 3-5 x 3-4", "map": "points 3-5 x 3-4"}
