"""Gradual unfreezing: a run with it is that of one that freezes layers by hand; resumed, replayed, on workers."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.extensions import Unfreeze
from dsinga.job import Job, Phase
from dsinga.reading.checked_job import check_job
from dsinga.testing import ExtensionContract
from tests.support.device_worker import device_worker, params
from tests.support.refusals import refused
from tests.support.train_in_threads import train_in_threads

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(24, 5)).astype("float32"), RNG.integers(3, size=24)
ADAM = nn.AdamW(0.01, weight_decay=0.1)


class TestUnfreeze(ExtensionContract):
    def create(self) -> Unfreeze:
        return Unfreeze(steps=3)


def net(optimizer: Any = ADAM) -> nn.Sequential:
    layers = [nn.Dense(7, activation="relu", name="first"), nn.Dense(6, activation="tanh", name="second")]
    model = nn.Sequential([nn.Input(5), *layers, nn.Dense(3, name="top")])
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def small_job(**fields: Any) -> Job:
    return net().job(X, Y, batch_size=8, train_steps=9, **fields)


def unfrozen(job: Job, extension: Unfreeze) -> Job:
    """Return the job that is trained."""
    return extension.change_job(check_job(job))


def assert_equal(actual: Any, expected: Any) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


@pytest.mark.parametrize("optimizer", [ADAM, nn.SGD(0.1, momentum=0.9, weight_decay=0.01)], ids=["AdamW", "SGD"])
def test_a_run_is_that_of_fits_with_layers_frozen_by_hand(optimizer: Any) -> None:
    model, by_hand = net(optimizer), net(optimizer)
    by_hand.params = begin = model.params
    options: dict[str, Any] = {"batch_size": 8, "progress": False, "shuffle": False}
    model.fit(X, Y, epochs=6, callbacks=Unfreeze(["top", "sec*", "first"], epochs=2), **options)
    by_hand.trainable = False
    for name in ("top", "second", "first"):
        by_hand.get_layer(name).trainable = True
        by_hand.fit(X, Y, epochs=2, **options)
        assert (name == "first") == (by_hand.params["first_weight"] != begin["first_weight"]).any()
    assert_equal(model.params, by_hand.params)
    state, expected = model.trained, by_hand.trained
    assert state.steps == expected.steps
    for name, slots in expected.slots.items():
        assert_equal(state.slots[name], slots)
    assert "first_step" not in str(model)


def test_no_gradient_is_computed_and_no_state_moves_before_the_first_step() -> None:
    job = unfrozen(small_job(), Unfreeze(steps=3))
    local = nn.LocalNet(job)
    begin = local.initial_params()
    trained = {step: set(local.backward(begin, X[:8], Y[:8], step=step).gradients) for step in (0, 2, 3, 5, 6, 100)}
    top, second = {"top_weight", "top_bias"}, {"second_weight", "second_bias"}
    assert trained[0] == trained[2] == top
    assert trained[3] == trained[5] == top | second
    assert trained[6] == trained[100] == begin.keys()
    assert local.net.by_step[0][1].stages[1].backward is False
    updater = local.updater()
    updater.put(begin)
    updater.push("first_weight", np.ones((7, 5), np.float32))
    updater.finish()
    assert_equal(updater.values, begin)
    assert not any(array.any() for slots in updater.state.values() for array in slots.values())


def test_workers_keep_what_is_not_trained_yet() -> None:
    for update in ("kServer", "kWorker"):
        job = unfrozen(small_job(cluster=nn.Cluster(workers=2, update=update)), Unfreeze(steps=100))
        begin = nn.LocalNet(small_job()).initial_params()
        end = train_in_threads(job).params
        assert [name for name in begin if (end[name] == begin[name]).all()] == [
            f"{layer}_{role}" for layer in ("first", "second") for role in ("weight", "bias")
        ]


@pytest.mark.parametrize("workers", [1, 2])
def test_both_grains_of_a_cluster_have_the_stages(threads: Client, workers: int) -> None:
    options: dict[str, Any] = {"extensions": [Unfreeze(steps=3)], "progress": False, "workers": workers}
    alone = dsinga.train(small_job(), extensions=[Unfreeze(steps=3)], progress=False).params
    rounds = dsinga.train(small_job(), threads, **options).params
    assert_equal(dsinga.train(small_job(), threads, grain="graph", **options).params, rounds)
    for name, value in alone.items():
        np.testing.assert_allclose(rounds[name], value, atol=0 if workers == 1 else 1e-5, err_msg=name)


def test_a_device_computes_what_cores_do(caplog: pytest.LogCaptureFixture) -> None:
    job = unfrozen(small_job(), Unfreeze(steps=2))
    with caplog.at_level(logging.INFO, "dsinga"), device_worker(job.replace(gpu=[0])) as worker:
        worker.thread.submit(worker.train, 0, 9).result(60)
        values = params(worker)
    assert (
        "training iterations are not captured as CUDA graphs: the net that is trained depends on the step"
        in caplog.text
    )
    for name, value in train_in_threads(job).params.items():
        np.testing.assert_allclose(np.reshape(values[name], value.shape), value, atol=1e-5, err_msg=name)


def test_a_run_that_is_resumed_is_that_of_an_unbroken_one(tmp_path: Path) -> None:
    job = small_job(checkpoint_freq=2, extension=[{"type": "kUnfreeze", "groups": ["top second", "first"], "steps": 5}])
    unbroken = dsinga.train(job, workspace=tmp_path / "run", progress=False)
    for step in (2, 4, 6):
        start = tmp_path / "run" / "checkpoint" / f"step{step}"
        resumed = dsinga.train(job, workspace=tmp_path / f"from{step}", resume=start, progress=False)
        assert_equal(resumed.params, unbroken.params)


def test_a_layer_with_a_shared_weight_begins_with_the_first_that_has_it() -> None:
    x = nn.Input(5)
    twice = nn.Dense(5, activation="tanh", name="twice")
    model = nn.Model(x, nn.Dense(3, name="top")(twice(nn.Dense(5, name="below")(twice(x)))))
    model.compile("sgd", "sparse_categorical_crossentropy")
    job = unfrozen(model.job(X, Y, batch_size=8, train_steps=9), Unfreeze(["top", "below", "twice"], steps=2))
    net = check_job(job).net(Phase.kTrain)
    assert {name: param.first_step for name, param in net.params.items()} == {
        "twice_weight": 4, "twice_bias": 4, "below_weight": 2, "below_bias": 2, "top_weight": 0, "top_bias": 0,
    }  # fmt: skip
    groups = Unfreeze(["top", "twice_1", "below", "twice"], steps=2)
    assert check_job(unfrozen(job, groups)).net(Phase.kTrain).params["twice_weight"].first_step == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "kUnfreeze needs either epochs, as in epochs: 1, or steps"),
        ({"epochs": 1, "steps": 2}, "kUnfreeze needs either epochs, as in epochs: 1, or steps"),
        ({"steps": 0}, "steps"),
        ({"steps": 2, "groups": ["tip"]}, r"no layer is called 'tip'; did you mean 'top'\?"),
        ({"steps": 2, "groups": ["top", "sec* third"]}, "no layer is called 'third'; "),
    ],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    refused(lambda: net().fit(X, Y, epochs=1, progress=False, callbacks=[Unfreeze(**settings)]), message)
