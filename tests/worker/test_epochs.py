"""Epochs: how many steps they are, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.errors import UserError
from dsinga.job import ClusterConf, Job, Phase, loads, to_text, training_phases
from dsinga.worker.batch_reader import epoch_at, resolve_epochs


@pytest.mark.parametrize(("epochs", "groups", "steps"), [(1, 1, 10), (3, 1, 30), (1, 3, 4), (2, 3, 7)])
def test_steps_of_epochs(job: Job, stores: Path, epochs: int, groups: int, steps: int):
    counted = job.replace(train_steps=0, epochs=epochs, cluster=ClusterConf(nworker_groups=groups))  # 1000 records
    resolved = resolve_epochs(counted, [str(stores)])
    assert resolved.train_steps == steps
    assert resolve_epochs(resolved, [str(stores)]).train_steps == steps, "both given, but they agree"


def test_steps_of_uneven_batches(job: Job, stores: Path):
    net = loads(to_text(job).replace("batchsize: 100", "batchsize: [50, 30, 17]")).neuralnet
    assert resolve_epochs(job.replace(train_steps=0, epochs=1, neuralnet=net), [str(stores)]).train_steps == 11


def test_steps_and_epochs_that_disagree_are_refused(job: Job, stores: Path):
    with pytest.raises(UserError, match="has train_steps: 50 and epochs: 3, which are 30 steps of these records; give"):
        resolve_epochs(job.replace(epochs=3), [str(stores)])


def test_a_job_without_epochs_is_left_alone(job: Job):
    assert resolve_epochs(job) is job


@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 300))
def test_epoch_at_a_step(records: int, batchsize: int, step: int):
    epoch = Fraction(records, batchsize)
    value = epoch_at(step, epoch)
    assert abs(value - step * batchsize / records) <= max(0.006, batchsize / records)
    if any(math.ceil(number * epoch) == step for number in range(1, step * batchsize + 1)):
        assert value == int(value) == max(n for n in range(1, step * batchsize + 1) if math.ceil(n * epoch) == step)


LAYER = 'layer {{ name: "data" type: kRecordInput {} store_conf {{ path: "x" batchsize: 1 }} }}'


@pytest.mark.parametrize(
    ("layers", "phases"),
    [
        (["include: kTrain", "include: kTest"], [Phase.kTest]),
        (["include: kTrain", "include: kVal", "include: kTest"], [Phase.kVal, Phase.kTest]),
        (["include: kTrain", "include: [kVal, kTest]"], [Phase.kTest]),  # the same records twice
        (["exclude: kTest", "exclude: kTrain"], [Phase.kTest]),  # SINGA's way: kVal has both
        (["include: kTrain"], []),
        ([""], []),
    ],
)
def test_phases_of_a_job_with_epochs(layers: list[str], phases: list[Phase]):
    job = loads("epochs: 2 neuralnet {" + " ".join(LAYER.format(where) for where in layers) + "}")
    assert training_phases(job) == [Phase.kTrain, *phases]
    assert training_phases(job.replace(epochs=0, train_steps=9)) == [Phase.kTrain]
