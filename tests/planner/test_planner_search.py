"""The search finds what is known to be best."""

from __future__ import annotations

import pytest

from dsinga.job import loads
from dsinga.net import NeuralNet, choose_cuts
from dsinga.net.cut import WHOLE_LAYER
from dsinga.planner.forecast import Forecast
from dsinga.planner.hosts import hosts
from dsinga.planner.link import Link, Links
from dsinga.planner.search import Search, changes, cut_as, own_layers, runs, segments
from tests.support.planner_nets import GIGABIT, LOCAL, MACHINE, alexnet, conv, dense, layer, mlp, net_of, small_convnet


def forecast(net: NeuralNet, links: Links = GIGABIT) -> Forecast:
    return Forecast(net, lambda workers: MACHINE, links, lambda workers: hosts(workers, 1, workers))


def dims(net: NeuralNet, workers: int, links: Links = GIGABIT, fixed: tuple[str, ...] = ()) -> dict[str, int]:
    cuts = Search(net, forecast(net, links).price, fixed).cuts(workers)
    return {name: cut.dim for name, cut in cuts.items()}


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_alexnet_is_cut_as_the_paper_cuts_it(workers: int) -> None:
    """5.4.1: data parallelism below the first fully connected layer, model parallelism from there on."""
    found = dims(alexnet(128), workers)
    above = ("fc6", "relu6", "drop6", "fc7", "relu7", "drop7", "fc8")
    assert found == {name: int(name in above) for name in found}


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
    found = dims(small_convnet(), 4, links)
    assert set(found.values()) == {WHOLE_LAYER}


def test_what_is_found_is_no_dearer_than_any_pattern_of_two_runs() -> None:
    net = mlp(64, 2000, 2000, 10)
    one = forecast(net, LOCAL)
    inputs, parts = segments(net)
    found = one.price(Search(net, one.price).cuts(4), 4)
    for pattern in runs(len(parts)):
        wishes = {name: dim for names, dim in zip(parts, pattern, strict=True) for name in names}
        assert found <= one.price(cut_as(net, 4, {**wishes, **dict.fromkeys(inputs, 0)}), 4) / 0.98


def test_the_same_prices_give_the_same_cuts() -> None:
    assert dims(alexnet(64), 4) == dims(alexnet(64), 4)


def test_layers_that_say_their_own_keep_it() -> None:
    net = alexnet(128)
    found = dims(net, 4, fixed=("fc7", "relu7", "drop7"))
    assert (found["fc7"], found["relu7"], found["drop7"]) == (0, 0, 0)
    assert found["fc6"] == 1


def test_one_worker_has_nothing_to_choose() -> None:
    net = small_convnet()
    assert Search(net, forecast(net).price).cuts(1) == choose_cuts(net, 1)


def test_more_workers_than_features_or_rows() -> None:
    """fc3 has 12 features, the batch 24 rows: what cannot be cut is not."""
    found = dims(small_convnet(24), 16)
    assert found["fc3"] != 1
    found = dims(mlp(4, 64, 10), 8)
    assert found["data"] == WHOLE_LAYER


def test_a_net_all_of_whose_layers_are_fixed() -> None:
    net = mlp(16, 32, 10)
    names = tuple(node.layer.name for node in net.nodes)
    assert set(dims(net, 2, fixed=names).values()) == {0}


def test_segments_follow_layers_with_params() -> None:
    inputs, found = segments(mlp(8, 4, 3))
    assert inputs == ["data"]
    assert found == [["fc0", "tanh0"], ["out", "loss"]]


def test_patterns() -> None:
    assert list(runs(1)) == [(0,), (1,), (-1,)]
    assert len(set(runs(4))) == 3 + 3 * 6
    assert set(changes((0, 1))) == {(1, 1), (-1, 1), (0, 0), (0, -1)}


def test_own_layers_are_told_by_the_job() -> None:
    job = loads(
        """neuralnet { partition_dim: 1
        layer { name: "a" type: kReLU partition_dim: 0 } layer { name: "b" type: kReLU location: 1 }
        layer { name: "c" type: kReLU } }"""
    )
    assert own_layers(job.neuralnet) == {"a", "b"}
