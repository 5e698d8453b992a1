"""Runs in this process: which jobs they train, without Dask, to the bits of a cluster."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga.api.jobs_with_data import job_with_data
from dsinga.api.runners import THIS_PROCESS
from dsinga.extensions import EverySteps, Extension, LoopView
from dsinga.extensions.extension import RescuedParams
from dsinga.job import ClusterConf, Job, LayerConf, LRGenConf, Phase, UpdaterConf
from dsinga.layers import Context, Output
from dsinga.loop.initial_state import RunOptions
from dsinga.loop.local_run import continue_locally, trains_locally
from dsinga.testing import EngineContract
from tests.support.observers import Silent
from tests.support.programs import python
from tests.support.refusals import refused
from tests.support.small_job import linear
from tests.support.user_layers import Identity

X = np.random.default_rng(3).normal(size=(50, 6)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int32)
DATA = {"train": (X, Y), "test": (X[:20], Y[:20])}


def small_job(**fields: object) -> Job:
    steps = {"train_steps": 30, "disp_freq": 10, "test_freq": 15, "checkpoint_freq": 10}
    return linear("shape=6", "batchsize=16").replace(**{"cluster": ClusterConf(), **steps, **fields})


class TestThisProcess(EngineContract):
    runner = THIS_PROCESS


@pytest.mark.ci
def test_distributed_is_not_imported_by_training_nor_by_commands_that_use_a_trained_net(tmp_path: Path) -> None:
    code = (
        "import sys; from dsinga.commands.cli import main_group; path = sys.argv[1]; "
        "main_group(['example', 'digits', path], standalone_mode=False); "
        "job, run = f'{path}/job.conf', f'{path}/run'; "
        "main_group(['train', job, '--workspace', run, '--set', 'train_steps=2'], standalone_mode=False); "
        "given = [job, '--checkpoint', f'{run}/checkpoint/step2']; "
        "main_group(['test', *given], standalone_mode=False); "
        "main_group(['predict', *given, '--layer', 'conv1', '--out', f'{path}/out'], standalone_mode=False); "
        "import numpy, dsinga; data = numpy.eye(8, 6, dtype='f4'), [0, 1] * 4; "
        "from tests.support.small_job import linear; "
        "job = linear('shape=6', 'batchsize=8', '=train_steps=3'); "
        "dsinga.train(job, data={'train': data, 'test': data}, progress=False); "
        "print('distributed' in sys.modules)"
    )
    answer = python("-c", code, tmp_path / "digits")
    assert answer.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "conf",
    [
        ClusterConf(nworkers_per_group=2),
        ClusterConf(nworker_groups=2),
        ClusterConf(server_worker_separate=True),
        ClusterConf(nservers_per_group=2),
    ],
)
def test_jobs_that_ask_for_a_cluster_get_one(conf: ClusterConf) -> None:
    assert trains_locally(small_job())
    assert not trains_locally(small_job(cluster=conf))


def test_an_updater_that_is_refused_leaves_an_earlier_run_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    rate = LRGenConf(user_type="Unknown")
    job = small_job(updater=UpdaterConf(type="kSGD", learning_rate=rate))
    refused(lambda: dsinga.train(job, data=DATA, workspace=tmp_path, progress=False), "'Unknown'", "is registered as")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_run_whose_step_fails_saves_the_steps_before(tmp_path: Path) -> None:
    faults = [dsinga.RunError("a device is lost")]

    @dsinga.register("layer", "FailsOnce")
    class FailsOnce(Identity):
        """Passes on its source, except in step 13 of training, the first time."""

        def compute_feature(self, params: Any, sources: Any, ctx: Context) -> Output:
            if ctx.training and ctx.step == 13 and faults:
                raise faults.pop()
            return super().compute_feature(params, sources, ctx)

    job = small_job(disp_freq=1)
    *layers, loss = job.neuralnet.layer
    once = LayerConf(name="once", type="kUserLayer", user_type="FailsOnce", srclayers=loss.srclayers[:1])
    loss = loss.replace(srclayers=["once", *loss.srclayers[1:]])
    job = job.replace(neuralnet=job.neuralnet.replace(layer=[*layers, once, loss]))
    options: dict[str, Any] = {"data": DATA, "progress": False, "workspace": tmp_path / "failing"}
    refused(lambda: dsinga.train(job, **options), "a device is lost", "13 steps were", error=dsinga.RunError)
    resumed = dsinga.train(job, resume=True, **options)
    whole = dsinga.train(job, **{**options, "workspace": tmp_path / "whole"})
    for name, value in whole.params.items():
        assert np.array_equal(value, resumed.params[name])
    rows = [json.loads(line) for line in (tmp_path / "failing" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["phase"] == "train"] == [*range(1, 31)]


class Failing(Extension):
    """Remembers, weakly, the view of the run that it lets fail."""

    trigger = EverySteps(10)

    def run(self, loop: LoopView) -> None:
        self.loop = weakref.ref(loop)
        del loop  # variables of a user's functions stay, for a debugger
        raise ZeroDivisionError("here")


def test_an_error_that_is_kept_keeps_no_memory_of_the_run() -> None:
    failing = Failing()
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError) as raised:
            dsinga.train(small_job(), data=DATA, progress=False, extensions=[failing])
        assert failing.loop() is None, raised.value
    finally:
        gc.enable()


class Freezing(Extension):
    """Sets the rate to 0 from step 12 on, and notes the rates that hold."""

    trigger = EverySteps(5)

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}

    def run(self, loop: LoopView) -> None:
        self.rates[loop.step] = loop.learning_rate
        if loop.step == 10:
            loop.set_rate_factor(12, 0.0)


def trained(job: Job) -> RescuedParams:
    continue_locally(job, Silent(), RunOptions(extensions=[rescued := RescuedParams("the test")]))
    return rescued


def test_rates_are_those_of_the_updater_whose_training_goes_on() -> None:
    rate = LRGenConf(type="kStep", base_lr=0.1, step_conf={"change_freq": 10, "gamma": 0.5})
    updater_conf = UpdaterConf(type="kSGD", learning_rate=rate)
    job = job_with_data(small_job(test_freq=0, updater=updater_conf), DATA, Phase.kTrain, None)
    freezing, outcomes = Freezing(), []
    for steps, extensions in zip((12, 20), ([], [freezing]), strict=True):
        first = trained(job.replace(train_steps=20))
        options = RunOptions(params=first.params, extensions=extensions)
        earlier = first.slots, first.step
        outcomes.append(continue_locally(job.replace(train_steps=steps), Silent(), options, earlier=earlier))
    for name, value in outcomes[0].params.items():
        assert np.array_equal(value, outcomes[1].params[name])
    assert freezing.rates == pytest.approx({5: 0.025, 10: 0.0125, 15: 0.0, 20: 0.0})


def test_a_run_that_fails_leaves_the_state_with_which_it_went_on() -> None:
    updater_conf = UpdaterConf(type="kSGD", momentum=0.9, learning_rate=LRGenConf(type="kFixed", base_lr=0.1))
    job = job_with_data(small_job(test_freq=0, updater=updater_conf), DATA, Phase.kTrain, None)
    first = trained(job.replace(train_steps=5))
    histories = {name: slots["history"].copy() for name, slots in first.slots.items()}
    options = RunOptions(params=first.params, extensions=[Failing()])
    with pytest.raises(ZeroDivisionError):
        continue_locally(job, Silent(), options, earlier=(first.slots, 5))
    for name, history in histories.items():
        np.testing.assert_array_equal(first.slots[name]["history"], history)
