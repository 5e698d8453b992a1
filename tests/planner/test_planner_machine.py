"""What this machine takes for the layers of a net: in their places, what a walk through the net takes."""

from __future__ import annotations

import pytest

from dsinga.job import UpdaterConf
from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.net import NeuralNet, partition
from dsinga.ops import get_ops
from dsinga.planner.machine import Machine, describe, measured_machine, work_of
from dsinga.planner.store import Figures, RateStore
from dsinga.planner.strategies import by_features, by_layer, by_rows
from dsinga.planner.walk import walk
from dsinga.training import create_updater
from tests.support.planner_nets import dense, layer, mlp, net_of, small_convnet


class Told(RateStore):
    """Remembers what it was asked, by the text that tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Figures] = {}

    def get(self, what, measure):
        self.known[what] = super().get(what, measure)
        return self.known[what]


def machine_of(net: NeuralNet, crowd: int, store: RateStore) -> Machine:
    return measured_machine(net, create_updater(UpdaterConf(type="kSGD")), get_ops(), 1, crowd, crowd, store)


@pytest.mark.parametrize("crowd", [1, 2])
def test_layers_that_nobody_has_walked_through_are_scaled_to_a_walk(crowd: int) -> None:
    """As far as the walk through all by rows is longer than the sum of what its layers take alone, so are they."""
    net, store = mlp(8, 20, 10, inputs=12), Told()
    machine = machine_of(net, crowd, store)
    unseen = work_of(mlp(32, 20, 10, inputs=12).stages[1], crowd)
    time = machine.time(unseen)
    walked = next(figures for what, figures in store.known.items() if ": net " in what)
    stages = partition(net, crowd, cuts=by_rows(net, crowd)).locals[0].stages
    alone = {what.partition(": ")[2]: figures for what, figures in store.known.items()}
    together = sum(sum(alone[describe(work_of(stage))][:2]) for stage in stages)
    scale = (sum(walked[0::4]) + sum(walked[1::4])) / together
    assert (time.forward, time.backward) == pytest.approx([scale * one for one in alone[describe(unseen)][:2]])
    assert all(rate > 0 for rate in machine.rates)


def test_a_layer_takes_what_it_took_in_its_place() -> None:
    net = small_convnet()
    local = partition(net, 2, cuts=by_features(net, 2)).locals[0]
    store = Told()
    machine = machine_of(net, 1, store)
    times = machine.walk(local)
    by_name = {stage.layer.name: (stage, time) for stage, time in zip(local.stages, times, strict=True)}
    stage, time = by_name["fc3"]
    assert machine.time(work_of(stage)) == time
    assert machine.walk(local) == times
    assert sum(": net " in what for what in store.known) == 1


@pytest.mark.parametrize("strategy", [by_rows, by_features, by_layer])
def test_walks_through_the_net_of_each_worker_alone(strategy) -> None:
    """Nobody is there to send what bridges receive, labels among it."""
    net = small_convnet()
    for local in partition(net, 3, cuts=strategy(net, 3)).locals:
        times = walk(local, get_ops(), 1, 1)
        for stage, time in zip(local.stages, times, strict=True):
            assert time.forward > 0
            bridge = isinstance(stage.layer, (BridgeSrc, BridgeDst))
            assert time.sums_forward == int(stage.layer.name == "bn")
            assert bridge or (time.backward > 0) == stage.backward


def test_codes_and_labels_of_steps_cross_bridges() -> None:
    """What an embedding looks up is no random number."""
    net = net_of(
        layer("embedding", "kEmbedding", "data", embedding_conf={"vocab_size": 10, "feature_dim": 4}),
        layer("cell", "kGRU", "embedding", gru_conf={"dim_hidden": 6}),
        dense("out", "cell", 10),
        layer("loss", "kSoftmaxLoss", "out", "data"),
        batch=4,
        shape=(5,),
    )
    for local in partition(net, 2, cuts=by_layer(net, 2)).locals:
        assert all(time.forward > 0 for time in walk(local, get_ops(), 1, 1))
