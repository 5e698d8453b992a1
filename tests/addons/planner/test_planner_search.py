"""The search finds the partitionings that are known to be best."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.addons.planner.cost_model import CostModel, named_strategies
from dsinga.addons.planner.group_programs import NetParts, WorkerShare, find_transfers
from dsinga.addons.planner.link import Link, Links
from dsinga.addons.planner.processes import process_map
from dsinga.addons.planner.search import (
    MAX_BOUNDARIES,
    Search,
    alike_blocks,
    boundaries,
    cuts_for_dims,
    describe_cuts,
    explicitly_cut_layers,
    layer_blocks,
    layers_with_whole_params,
    patterns_of_two_runs,
)
from dsinga.cutting.partitioned import SPACE, WHOLE_LAYER, LayerCut
from dsinga.cutting.strategy import choose_cuts
from dsinga.job import Job, Phase, loads
from dsinga.net import NeuralNet
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import create_updater
from tests.support.plain_nets import alexnet, conv, dense, layer, mlp, net_of, small_convnet
from tests.support.planner_nets import GIGABIT, LOCAL, MACHINE
from tests.support.refusals import refused


def cost_model(net: NeuralNet, links: Links = GIGABIT) -> CostModel:
    return CostModel(net, lambda workers: MACHINE, links, lambda workers: process_map(workers, 1, workers))


def dims(net: NeuralNet, workers: int, links: Links = GIGABIT, fixed: tuple[str, ...] = ()) -> dict[str, int]:
    cuts = Search(net, cost_model(net, links).price, fixed).cuts(workers)
    return {name: cut.dim for name, cut in cuts.items()}


@pytest.mark.ci
def test_alexnet_is_cut_as_the_paper_cuts_it() -> None:
    """5.4.1: data parallelism below the first fully connected layer, model parallelism from there on."""
    result = dims(alexnet(128), 8)
    upper = ("fc6", "relu6", "drop6", "fc7", "relu7", "drop7", "fc8")
    assert result == {name: int(name in upper) for name in result}


def test_a_net_of_large_images_and_few_params_is_cut_by_rows() -> None:
    net = net_of(
        conv("conv1", "data", 32, 5, pad=2),
        conv("conv2", "conv1", 32, 5, pad=2),
        layer("pool", "kPooling", "conv2", pooling_conf={"kernel": 32, "stride": 32}),
        dense("fc", "pool", 10),
        layer("loss", "kSoftmaxLoss", "fc", "data"),
        batch=256,
        shape=(3, 32, 32),
    )
    assert set(dims(net, 4).values()) == {0}


def test_a_small_net_on_a_slow_network_stays_on_one_worker() -> None:
    links = GIGABIT._replace(wire=Link(10e-3, 1e6))
    result = dims(small_convnet(), 4, links)
    assert set(result.values()) == {WHOLE_LAYER}


def test_no_pattern_of_two_runs_is_cheaper_than_the_result() -> None:
    net = mlp(64, 2000, 2000, 10)
    model = cost_model(net, LOCAL)
    inputs, blocks = layer_blocks(net)
    price = model.price(Search(net, model.price).cuts(4), 4)
    for pattern in patterns_of_two_runs(len(blocks), boundaries(len(blocks), 16)):
        requested = {name: dim for names, dim in zip(blocks, pattern, strict=True) for name in names}
        assert price <= model.price(cuts_for_dims(net, 4, {**requested, **dict.fromkeys(inputs, 0)}), 4) / 0.98


def test_fixed_layers_keep_their_cut() -> None:
    net = alexnet(128)
    result = dims(net, 4, fixed=("fc7", "relu7", "drop7"))
    assert (result["fc7"], result["relu7"], result["drop7"]) == (0, 0, 0)
    assert result["fc6"] == 1


def test_one_worker_computes_the_whole_net() -> None:
    net = small_convnet()
    assert Search(net, cost_model(net).price).cuts(1) == choose_cuts(net, 1)


def test_more_workers_than_features_or_rows() -> None:
    """fc3 has 12 features and the batch has 24 rows, so fc3 cannot be cut by features."""
    result = dims(small_convnet(24), 16)
    assert result["fc3"] != 1
    result = dims(mlp(4, 64, 10), 8)
    assert result["data"] == WHOLE_LAYER


@pytest.mark.parametrize(("workers", "dim"), [(2, 1), (3, 0)])
def test_heads_are_cut_where_the_workers_divide_them(workers: int, dim: int) -> None:
    project = {"per_step": True, "innerproduct_conf": {"num_output": 8}}
    net = net_of(
        layer("query", "kInnerProduct", "data", **project),
        layer("key", "kInnerProduct", "data", **project),
        layer("heads", "kAttention", "query", "key", attention_conf={"num_heads": 4}),
        layer("loss", "kEuclideanLoss", "heads", "query"),
        batch=12,
        shape=(5, 8),
    )
    cuts = cuts_for_dims(net, workers, {"query": 1, "key": 1, "heads": 1})
    assert [cuts[name].dim for name in ("query", "key", "heads")] == [1, 1, dim]
    assert cost_model(net).price(cuts, workers) > 0


def test_a_net_in_which_all_layers_are_fixed() -> None:
    net = mlp(16, 32, 10)
    names = tuple(node.layer.name for node in net.nodes)
    assert set(dims(net, 2, fixed=names).values()) == {0}


def test_the_number_of_prices_does_not_grow_with_the_depth() -> None:
    """Every other layer of a deep net is cheaper by features: these are alike, and change together."""
    net = mlp(32, *[16, 24] * 20, 10)
    _, blocks = layer_blocks(net)
    assert alike_blocks(net, blocks)[1:3] == [list(range(1, 40, 2)), list(range(2, 40, 2))]
    expected = {name: number % 2 for number, names in enumerate(blocks) for name in names}
    prices: list[int] = []

    def price(cuts: Mapping[str, LayerCut], workers: int) -> float:
        prices.append(10 + sum(cuts[name].dim != dim for name, dim in expected.items()))
        return prices[-1]

    found = Search(net, price).cuts(4)
    assert {name: found[name].dim for names in blocks[1:-1] for name in names} == {
        name: expected[name] for names in blocks[1:-1] for name in names
    }
    assert len(prices) < 3 + 6 * MAX_BOUNDARIES + 40


def test_explicitly_cut_layers_have_a_partition_dim_or_a_location() -> None:
    job = loads(
        """neuralnet { partition_dim: 1
        layer { name: "a" type: kReLU partition_dim: 0 } layer { name: "b" type: kReLU location: 1 }
        layer { name: "c" type: kReLU } }"""
    )
    assert explicitly_cut_layers(job.neuralnet) == {"a", "b"}


@pytest.mark.ci
def test_layers_whose_params_an_updater_needs_whole_are_not_cut_by_features() -> None:
    """Muon leaves biases and some matrices to AdamW, which may be cut."""
    net = alexnet(128)
    assert layers_with_whole_params(net, create_updater(nn.SGD())) == set()
    matrices = layers_with_whole_params(net, create_updater(nn.Muon(adamw_match=["fc8*"])))
    assert {"fc6", "fc7"} <= matrices
    assert "fc8" not in matrices
    assert layers_with_whole_params(net, create_updater(nn.Lamb())) == {n.layer.name for n in net.nodes if n.params}
    result = dims(net, 8, fixed=tuple(matrices))
    assert {result[name] for name in matrices if name in result} <= {0}


# The planner prices cuts by space of nets whose targets are fields.
def field_job(loss: Any, y: np.ndarray, *head: nn.Layer, batch_size: int = 4) -> Job:
    """Return the job of a convolution of fields of 8 x 8 points, and the layers of ``head``."""
    x = np.random.default_rng(0).normal(size=(8, 2, 8, 8)).astype(np.float32)
    model = nn.Sequential([nn.Conv2D(4, 3, padding=1, name="conv"), *head])
    model.compile("sgd", loss)
    return model.job(x, y, train_steps=1, batch_size=batch_size)


def test_a_net_with_fields_as_targets_is_cut_by_space() -> None:
    job = field_job("mse", np.zeros((8, 1, 8, 8), np.float32), nn.Conv2D(1, 1, name="output"))
    net = CheckedJob(job).net(Phase.kTrain)
    cuts = named_strategies(net, 2)["space"]
    assert {cut.dim for cut in cuts.values()} == {SPACE}
    assert describe_cuts(net, cuts).startswith("space: data to ")
    plan = dsinga.plan(job, workers=2)
    space = next(row for row in plan.alternatives if row.name == "space")
    whole = next(row for row in plan.alternatives if row.name == "one worker")
    assert space.memory is not None
    assert whole.memory is not None
    assert space.memory.features <= whole.memory.features / 2
    assert space.prediction.seconds > 0


def test_a_net_with_classes_as_targets_is_not() -> None:
    job = field_job("sparse_categorical_crossentropy", np.zeros(8, int), nn.Flatten(), nn.Dense(3))
    assert "space" not in named_strategies(CheckedJob(job).net(Phase.kTrain), 2)


@pytest.mark.parametrize("workers", [2, 3])
def test_many_workers_are_priced_without_cutting_the_net(workers: int) -> None:
    job = field_job("mse", np.zeros((8, 1, 8, 8), np.float32), nn.Conv2D(1, 1))
    net = CheckedJob(job).net(Phase.kTrain)
    cuts = named_strategies(net, workers)["space"]
    shares = [WorkerShare(NetParts(net, workers), cuts, worker) for worker in range(workers)]
    assert sum(share.works[1].layer.shape[2] for share in shares) == 8
    halos = [transfer.numbers * (workers - 1) for transfer in find_transfers(net, cuts, workers)]
    assert halos == [4 * 2 * 8 * (workers - 1)], "rows, channels, a row of points of each neighbour"


def test_a_batch_of_one_field_is_cut_by_space() -> None:
    job = field_job("mse", np.zeros((8, 1, 8, 8), np.float32), nn.Conv2D(1, 1), batch_size=1)
    job = job.replace(net=job.net.replace(partition="auto"))
    plan = dsinga.plan(job, workers=2)
    names = {row.name for row in plan.alternatives}
    assert names >= {"one worker", "space", "auto"}
    assert not names & {"data", "hybrid"}
    assert [row.workers for row in plan.curve if row.name == "space"] == [2, 4, 8]
    refused(lambda: dsinga.plan(job, workers=9), "of 1 can be", "workers, not 9")
