"""The sketch of a partitioning against the partitioning itself."""

from __future__ import annotations

import math
import time

import pytest

from dsinga.net import NeuralNet, choose_cuts, partition
from dsinga.planner.hosts import hosts
from dsinga.planner.program import Exchange, Group, Send
from dsinga.planner.simulate import simulate
from dsinga.planner.sketch import sketch
from dsinga.planner.translate import translate
from tests.support.planner_nets import GIGABIT, LOCAL, MACHINE, alexnet, mlp, small_convnet

WISHES: dict[str, dict[str, int]] = {
    "rows": {},
    "features": {"conv1": 1, "conv2": 1, "relu2": 1, "fc1": 1, "fc2": 1, "both": 1, "drop": 1, "fc3": 1},
    "hybrid": {"fc1": 1, "fc2": 1, "drop": 1, "fc3": 1},
    "one worker": {"fc1": -1, "fc2": -1, "both": -1, "drop": -1, "fc3": -1, "loss": -1},
    "there and back": {"conv2": -1, "relu2": 1, "drop": 1},
}


def groups_of(net: NeuralNet, workers: int, wishes: dict[str, int], per_process: int = 1) -> tuple[Group, Group]:
    cuts = choose_cuts(net, workers, wishes)
    homes = hosts(workers, per_process, -(-workers // per_process))
    return translate(partition(net, workers, cuts=cuts), homes, MACHINE), sketch(net, cuts, homes, MACHINE)


def sent(group: Group) -> list[int]:
    """Return the bytes that each worker sends to others: those of a sum, and labels, are beside the point."""
    return [
        sum(
            operation.bytes * (len(group.programs) - 1 if isinstance(operation, Exchange) else 1)
            for operation in program.operations
            if isinstance(operation, (Send, Exchange))
        )
        for program in group.programs
    ]


@pytest.mark.parametrize("wishes", WISHES)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_sends_and_computes_what_partitioning_would(workers: int, wishes: str) -> None:
    exact, rough = groups_of(small_convnet(), workers, WISHES[wishes])
    labels = 8 * 24
    for one, other in zip(sent(exact), sent(rough), strict=True):
        assert one == pytest.approx(other, rel=0.01, abs=2 * labels * workers)
    assert exact.pieces == rough.pieces
    for one, other in zip(exact.programs, rough.programs, strict=True):
        assert one.packets == other.packets


@pytest.mark.parametrize("wishes", WISHES)
@pytest.mark.parametrize("links", [LOCAL, GIGABIT], ids=["local", "gigabit"])
def test_takes_as_long_as_the_partitioned_net(links, wishes: str) -> None:
    exact, rough = groups_of(small_convnet(96), 4, WISHES[wishes])
    one, other = simulate(exact, links), simulate(rough, links)
    assert other.seconds == pytest.approx(one.seconds, rel=0.15)


def test_uneven_parts() -> None:
    exact, rough = groups_of(mlp(10, 100, 50, inputs=30), 3, {"fc0": 1, "tanh0": 1, "out": 1})
    for one, other in zip(sent(exact), sent(rough), strict=True):
        assert one == pytest.approx(other, rel=0.15)


def test_several_workers_in_a_process() -> None:
    exact, rough = groups_of(small_convnet(), 4, WISHES["hybrid"], per_process=2)
    one, other = simulate(exact, GIGABIT), simulate(rough, GIGABIT)
    assert other.sent == pytest.approx(one.sent, rel=0.05)
    assert other.seconds == pytest.approx(one.seconds, rel=0.25)


def test_params_of_one_user_cost_no_bytes() -> None:
    net = mlp(64, 400, 200)
    _, group = groups_of(net, 2, {"fc0": -1, "tanh0": -1, "out": -1, "loss": -1})
    prediction = simulate(group, GIGABIT)
    rows = 4 * 32 * math.prod(net.nodes[0].layer.shape[1:])
    assert prediction.sent == prediction.received == rows  # the other worker's half of the batch, once


def test_many_workers_take_little_time() -> None:
    net = alexnet(512)
    wishes = dict.fromkeys(("fc6", "relu6", "drop6", "fc7", "relu7", "drop7", "fc8"), 1)
    started = time.perf_counter()
    homes = hosts(128, 4, 32)
    group = sketch(net, choose_cuts(net, 128, wishes), homes, MACHINE)
    assert simulate(group, GIGABIT).seconds > 0
    assert time.perf_counter() - started < 20
