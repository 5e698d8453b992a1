"""The contract of what computes on a GPU in this process: jobs, estimators, agents and LocalNet, without Dask.

What is right: a worker of a cluster on the same emulated device, whose iterations are captured as graphs.
"""

import json
import logging
import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import pytest

import dsinga
import dsinga.ops
from dsinga.addons.gpu import devices
from dsinga.api.runners import THIS_PROCESS
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier
from dsinga.extensions import EverySteps, Extension
from dsinga.job import Job, JobError, Phase, to_text
from dsinga.loop.local_run import open_local_job
from dsinga.nn import LocalNet
from dsinga.reading.batch_reader import WorkerBatches
from dsinga.reading.checked_job import CheckedJob
from tests.addons.gpu.test_gpu_captured_iterations import DENSE, LINEAR, X, Y, job_of
from tests.rl.test_loop_agents import VALUE, agent_job
from tests.support import emulated_cupy
from tests.support.device_array import StubOps, load_backends
from tests.support.device_worker import cudnn, device_worker
from tests.support.programs import python
from tests.support.refusals import refused
from tests.support.small_job import assert_same

STEPS = 5


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The emulated device as the GPU of this process."""
    load_backends(monkeypatch, cupy=emulated_cupy.load(cudnn()))
    emulated_cupy.log.clear()
    yield
    assert any(what == "graph" for _, what, _ in emulated_cupy.log)


def by_train(job: Job) -> ParamArrays:
    return dsinga.train(job, THIS_PROCESS, progress=False).params


def by_local_net(job: Job) -> ParamArrays:
    reader = open_local_job(CheckedJob(job)).readers[Phase.kTrain]
    net = LocalNet(job, X, Y)
    params, updater = net.initial_params(), net.updater()
    for step in range(STEPS):
        (batch,) = WorkerBatches(reader, {"data": reader.parts[0]})(step).values()
        updater.step(params, net.backward(params, batch.data, batch.labels).gradients)
    return params


def by_estimator(job: Job) -> ParamArrays:
    return Classifier(job).fit(X, Y).params_


FACES: dict[str, Callable[[Job], ParamArrays]] = {
    "train": by_train,
    "LocalNet": by_local_net,
    "estimator": by_estimator,
}


@pytest.mark.parametrize("face", FACES)
def test_a_face_trains_to_the_bits_of_a_worker(face: str, device: None) -> None:
    job = job_of(DENSE, train_steps=STEPS, gpu=[0])
    with device_worker(job) as worker:
        worker.thread.submit(worker.train, 0, STEPS).result(60)
        expected = worker.replica_state().values
    assert_same(FACES[face](job), expected)


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "averages": (LINEAR.replace("kSGD", "kAdam ema_conf { decay: 0.9 }"), {}),
    "clipped": (LINEAR.replace("kSGD", "kSGD clip_global_norm: 0.05"), {}), "in parts": (LINEAR, {"micro_batches": 2}),
    "bad batches": (LINEAR, {"skip_bad_batches": True}), "kTF32": (LINEAR, {"precision": "kTF32"}),
    "kBF16": (LINEAR, {"precision": "kBF16"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_trains_tests_and_predicts_as_a_worker_does(kind: str, device: None) -> None:
    text, fields = KINDS[kind]
    x = X.copy()
    x[20, 2] = np.nan if kind == "bad batches" else 0
    data = {"train": (x, Y), "test": (X[:20], Y[:20])}
    job = job_of(text, data=data, train_steps=8, test_freq=4, gpu=[0], **fields)
    with device_worker(job) as worker:
        metrics = worker.thread.submit(worker.train, 0, 8).result(60).metrics
        state = worker.replica_state()
    result = dsinga.train(job.replace(disp_freq=1), THIS_PROCESS, progress=False)
    averages = {
        name: slots["ema"].reshape(result.params[name].shape) for name, slots in state.state.items() if "ema" in slots
    }
    assert_same(result.params, averages or state.values)
    losses = {
        phase: [row["loss"] for row in result.history if row["phase"] == phase and "loss" in row]
        for phase in ("train", "test")
    }
    assert losses["train"] == [each["loss"][0] / each["loss"][1] for each in metrics if each]
    tested = dsinga.evaluate(job, result.params, client=THIS_PROCESS)
    assert tested["loss"] == pytest.approx(losses["test"][-1], rel=1e-12)
    here, there = (dsinga.predict(job.replace(gpu=gpu), result.params, "out", client=THIS_PROCESS) for gpu in ([0], []))
    np.testing.assert_allclose(here, there, rtol=0.03 if "precision" in fields else 1e-5, atol=1e-2)


def test_training_goes_on_from_cores_to_a_device_and_back(device: None, tmp_path: Path) -> None:
    job, options = job_of(DENSE), {"client": THIS_PROCESS, "progress": False}
    whole = dsinga.train(job.replace(train_steps=9), **options).params
    for steps, gpu in ((3, []), (6, [0]), (9, [])):
        result = dsinga.train(
            job.replace(train_steps=steps, gpu=gpu, checkpoint_freq=3), workspace=tmp_path, resume="auto", **options
        )
    for name, value in whole.items():
        np.testing.assert_allclose(result.params[name], value, rtol=1e-5, atol=1e-6)
    estimators = [Classifier(job.replace(gpu=gpu, train_steps=3), warm_start=True) for gpu in ([], [0])]
    for estimator in estimators:
        estimator.fit(X, Y).fit(X, Y)
        copied = pickle.loads(pickle.dumps(estimator)).fit(X, Y)
        assert_same(copied.params_, estimator.fit(X, Y).params_)
    for name, value in estimators[0].params_.items():
        np.testing.assert_allclose(estimators[1].params_[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["kA2C", "kDQN"])
def test_an_agent_learns_on_a_device(algorithm: str, device: None) -> None:
    if algorithm == "kA2C":
        job = agent_job("algorithm: kA2C", "policy", VALUE)
    else:
        job = agent_job("algorithm: kDQN replay_conf { learn_after: 4 batch_size: 4 }", "values")
    cores, gpu = (dsinga.train(job.replace(gpu=gpu), progress=False).params for gpu in ([], [0]))
    for name, value in cores.items():
        np.testing.assert_allclose(gpu[name], value, rtol=1e-4, atol=1e-5)


NO_DASK = """
import importlib.abc, sys


class Forbidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "distributed", "Dask's cluster is imported"


sys.meta_path.insert(0, Forbidden())
import numpy as np
import dsinga
import dsinga.ops
from dsinga.estimators import Classifier
from dsinga.nn import LocalNet
from tests.support import emulated_cupy
from tests.support.device_worker import cudnn

dsinga.ops._loaded["cupy"] = emulated_cupy.load(cudnn())
launched = lambda: sum(what in ("graph", "kernel") for _, what, _ in emulated_cupy.log)
x, y = np.eye(8, 6, dtype="f4"), np.array([0, 1] * 4)
job = dsinga.models.mlp([4], inputs=6, classes=2, batchsize=4, train_steps=4).replace(gpu=[0], test_freq=0)
agent = dsinga.loads(sys.argv[1])
counts = []
params = dsinga.train(job, data=(x, y), progress=False).params
counts.append(launched())
dsinga.evaluate(job, params, data=(x, y)), dsinga.predict(job, params, "ip", data=x)
counts.append(launched())
Classifier(job).fit(x, y).predict(x)
counts.append(launched())
net = LocalNet(job, x, y)
[net.updater().step(params, net.backward(params, x, y).gradients) for _ in range(3)]
counts.append(launched())
dsinga.train(agent, progress=False)
counts.append(launched())
print(counts)
"""


@pytest.mark.ci
def test_a_device_is_used_without_dask() -> None:
    job = agent_job("algorithm: kA2C", "policy", VALUE).replace(gpu=[0], train_steps=32)
    answer = python("-c", NO_DASK, to_text(job))
    counts = json.loads(answer.stdout.splitlines()[-1])
    assert counts[0] > 0
    assert all(before < after for before, after in pairwise(counts)), counts


@pytest.fixture(params=["no card", "no such number"])
def trouble(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], str]:
    """The lines of a job whose GPU there is not, and why."""
    monkeypatch.setattr(devices, "_reasons_said", set())
    if request.param == "no card":

        def none() -> Any:
            raise UserError("no GPU was found")

        monkeypatch.setitem(dsinga.ops.BACKENDS, "cupy", none)
        load_backends(monkeypatch, cupy=None)
        return [0], "no GPU was found"
    load_backends(monkeypatch, cupy=StubOps())
    return [7], "there is no GPU 7: its process sees 2, counted from 0"


def by_evaluate(job: Job) -> object:
    return dsinga.evaluate(job, LocalNet(job.replace(gpu=[]), X, Y).initial_params(), "train", THIS_PROCESS)


@pytest.mark.parametrize("face", [*FACES.values(), by_evaluate], ids=[*FACES, "evaluate"])
def test_a_device_that_there_is_not(
    face: Callable[[Job], Any], trouble: tuple[list[int], str], caplog: pytest.LogCaptureFixture
) -> None:
    lines, reason = trouble
    job = job_of(LINEAR, train_steps=STEPS)
    expected = face(job)
    with caplog.at_level(logging.WARNING, "dsinga"):
        assert_same(face(job.replace(gpu=lines)), expected)
    says = [record.getMessage() for record in caplog.records if "GPU" in record.getMessage()]
    assert says == [f"this process computes on CPU cores, not on the GPU of the job's gpu line: {reason}"]
    if lines == [0]:
        with dask.config.set({"dsinga.device": "gpu"}), pytest.raises(UserError) as error:
            face(job)
        assert str(error.value) == (
            f"this process cannot compute on a GPU: {reason}; to compute on CPU cores, leave out --device gpu, or set "
            "dsinga.device to auto"
        )
        if face in (by_train, FACES["LocalNet"]):
            refused(lambda: face(job.replace(precision="kTF32")), "kTF32", "on CPU cores", error=JobError)


class Halving(Extension):
    """Halves the params and the momentum at one step."""

    def __init__(self) -> None:
        self.trigger = EverySteps(100, after=3)

    def run(self, loop: Any) -> None:
        state = {name: {slot: a / 2 for slot, a in slots.items()} for name, slots in loop.updater_state().items()}
        loop.set_params({name: array / 2 for name, array in loop.params().items()}, state)


def test_params_that_an_extension_sets_are_those_of_the_next_graph(device: None) -> None:
    job = job_of(LINEAR, train_steps=6)
    job = job.replace(updater=job.updater.replace(momentum=0.9))
    expected, actual, other = (
        dsinga.train(job.replace(gpu=gpu), THIS_PROCESS, progress=False, extensions=extensions).params
        for gpu, extensions in (([], [Halving()]), ([0], [Halving()]), ([0], []))
    )
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, atol=1e-5)
        assert abs(other[name] - array).max() > 1e-2
