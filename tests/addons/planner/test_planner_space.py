"""The planner prices cuts by space of nets whose targets are fields."""

from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.addons.planner.cost_model import named_strategies
from dsinga.addons.planner.group_programs import NetParts, WorkerShare, find_transfers
from dsinga.addons.planner.search import describe_cuts
from dsinga.cutting.partitioned import SPACE
from dsinga.job import Job, Phase
from dsinga.reading.checked_job import CheckedJob
from tests.support.refusals import refused


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
