"""Loops of Keras: single batches, rates that are functions, callbacks with its events, backups."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import RunError, nn
from dsinga import extensions as callbacks
from dsinga.api.workspaces import remove_checkpoints
from tests.support.refusals import refused_with
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype(np.float32)
Y = RNG.normal(size=(96, 3)).astype(np.float32)


def net(optimizer: Any = "adam", **more: Any) -> nn.Sequential:
    made = nn.Sequential([nn.Input(6), nn.Dense(8, "tanh"), nn.Dense(3)])
    made.compile(optimizer, "mse", **more)
    return made


def assert_near(first: nn.Model, second: nn.Model) -> None:
    for name, array in first.params.items():
        np.testing.assert_allclose(array, second.params[name], atol=2e-6)


@pytest.mark.parametrize("weights", [None, np.linspace(0, 2, 96)])
@pytest.mark.parametrize("optimizer", [nn.SGD(0.1, momentum=0.9), nn.Adam(0.01)])
def test_batches_one_by_one_train_as_fit_does_and_either_goes_on_from_the_other(optimizer: Any, weights: Any):
    fitted, stepped, mixed = net(optimizer), net(optimizer), net(optimizer)
    fitted.fit(X, Y, sample_weight=weights, batch_size=96, epochs=4, progress=False)
    losses = [stepped.train_on_batch(X, Y, sample_weight=weights) for _ in range(4)]
    assert_near(fitted, stepped)
    np.testing.assert_allclose(fitted.history.history["loss"], losses, rtol=1e-5)
    mixed.train_on_batch(X, Y, weights)
    mixed.fit(X, Y, sample_weight=weights, batch_size=96, epochs=2, progress=False)
    mixed.train_on_batch(X, Y, weights)
    assert_near(fitted, mixed)


def test_what_methods_of_batches_return():
    model = net(metrics=["r2"])
    loss, r2 = model.test_on_batch(X.tolist(), Y)
    assert {"loss": loss, "r2": r2}.items() <= model.test_on_batch(X, Y, return_dict=True).items()
    assert model.train_on_batch(X, Y, return_dict=True)["loss"] == pytest.approx(loss)
    np.testing.assert_array_equal(model.predict_on_batch(X[:4]), model.predict(X[:4]))
    assert net().train_on_batch(X, Y, class_weight=None) == pytest.approx(loss)
    machine = nn.Sequential([nn.Input(X.shape[1:]), nn.RBM(4)])
    machine.compile("sgd")
    units = (X > 0).astype(np.float32)
    error, named = machine.train_on_batch(units), machine.test_on_batch(units, return_dict=True)
    assert 0 < named["reconstruction_error"] < 2 * error


def test_steps_on_batches_leave_the_params_that_users_keep_and_those_of_frozen_layers():
    model = net()
    model.train_on_batch(X, Y)
    encoder = nn.Model(model.inputs, model.layers[0].output)  # which shares the first layer
    kept, shared, copies = model.params, encoder.params, model.get_weights()
    expected = model.predict(X)
    model.train_on_batch(X, Y)
    model.layers[0].trainable = False
    frozen = model.get_weights()
    for _ in range(3):
        model.train_on_batch(X, Y)
    for name, copy in zip(model.params, copies, strict=True):
        np.testing.assert_array_equal(kept[name], copy)
        np.testing.assert_array_equal(shared.get(name, copy), copy)
    is_kept = [np.array_equal(*pair) for pair in zip(frozen, model.get_weights(), strict=True)]
    assert is_kept == [True, True, False, False]
    model.params = kept
    np.testing.assert_array_equal(model.predict(X), expected)


def halved(step: int) -> float:
    return 0.1 * 0.5 ** (step // 3)


class Halved(nn.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return np.float32(0.1) * 0.5 ** (step // 3)


def test_rates_that_are_functions_of_steps_and_epochs():
    same = nn.ExponentialDecay(0.1, decay_steps=3, decay_rate=0.5, staircase=True)
    models = [net(nn.SGD(rate)) for rate in (same, halved, Halved(), 0.1)]
    for number, model in enumerate(models):
        rate = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)
        model.fit(X, Y, epochs=3, callbacks=[rate] if number == 3 else [], progress=False)
        assert_near(models[0], model)
    assert f'function_conf {{ function: "{__name__}:halved" }}' in str(models[1])


class Events(callbacks.Callback):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.events.append(self.params)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.events.append(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.events.append((batch, *logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.events.append((*logs, self.model.evaluate(X, Y)["loss"] == pytest.approx(logs["val_loss"])))
        self.model.stop_training = epoch == 1

    def on_train_end(self, logs: Any = None) -> None:
        self.events.append("end")


def test_a_callback_gets_the_events_of_keras_and_stops_training():
    model, events, ends = net(), Events(), []
    history = model.fit(
        X, Y, epochs=5, batch_size=48, validation_data=(X, Y), progress=False,
        callbacks=[events, callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(epoch))],
    )  # fmt: skip
    steps = [(0, "loss"), (1, "loss"), ("loss", "val_loss", True)]
    assert events.events == [{"epochs": 5, "steps": 2, "verbose": 0}, 0, *steps, 1, *steps, "end"]
    assert history.epoch == ends == [0, 1]
    assert model.history is history


def test_models_and_weights_are_saved_after_epochs(tmp_path: Path):
    model = net()
    saving = [
        callbacks.ModelCheckpoint(tmp_path / "{epoch}-{loss:.2f}.keras"),
        callbacks.ModelCheckpoint(tmp_path / "best", "loss", save_best_only=True, save_weights_only=True),
    ]
    history = model.fit(X, Y, epochs=2, callbacks=saving, progress=False)
    last = tmp_path / f"2-{history[-1, 'loss']:.2f}.keras"
    np.testing.assert_array_equal(nn.load_model(last).predict(X), model.predict(X))
    other = net()
    other.load_weights(tmp_path / "best")
    np.testing.assert_array_equal(other.predict(X), model.predict(X))


@pytest.mark.parametrize("monitor", ["loss", "train/loss", "val_loss", "r2"])
def test_names_of_metrics_mean_those_of_training_as_in_keras(monitor: str, tmp_path: Path):
    """A learning rate of 0: no value is better than the first, and the rate stays 0."""
    validation = {"validation_data": (X, Y)} if monitor == "val_loss" else {}
    above_0 = {"initial_value_threshold": 0.0, "mode": "max"}
    chosen = [
        callbacks.EarlyStopping(monitor, patience=2, min_delta=1e-4, verbose=1),
        callbacks.ReduceLROnPlateau(monitor, patience=1, min_lr=0.05, verbose=0),
        callbacks.ModelCheckpoint(tmp_path / "best", monitor, save_best_only=True, **above_0),
    ]
    model = net(nn.SGD(0.0), metrics=["r2"])
    history = model.fit(X, Y, epochs=9, batch_size=96, callbacks=chosen, progress=False, **validation)
    assert history.epoch == [0, 1, 2]
    assert (tmp_path / "best" / "job.conf").exists() == (monitor != "r2")  # the first r2 is below 0


def test_a_resumed_fit_calls_the_events_before_its_first_step(tmp_path: Path):
    def noting(name: str) -> Any:
        return lambda number, logs: events.append(f"{name} {number}")

    def run(folder: Path, last: list[Any]) -> Any:
        model, events[:] = net(), []
        noted = {name: noting(name) for name in ("on_epoch_begin", "on_train_batch_begin", "on_epoch_end")}
        rates = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        begin = [callbacks.BackupAndRestore(folder), callbacks.LambdaCallback(**noted), *last, rates]
        model.fit(X, Y, epochs=4, callbacks=begin, progress=False)
        return model

    events: list[str] = []
    unbroken = run(tmp_path / "whole", [])
    expected = events[:]
    for event, step, begun in (("on_epoch_begin", 2, 1), ("on_train_batch_begin", 1, 2)):

        def crash(number: int, logs: Any, step: int = step) -> None:
            if events.count("on_epoch_begin 2") and number == step:
                raise RuntimeError("power")

        with pytest.raises(RuntimeError, match="power"):
            run(tmp_path / event, [callbacks.LambdaCallback(**{event: crash})])
        again = run(tmp_path / event, [])
        assert events == expected[expected.index("on_epoch_begin 2") + begun :]
        assert_same(unbroken.params, again.params)


@pytest.mark.parametrize("place", ["folder", "memory://backup"])
def test_a_fit_with_a_backup_trains_as_one_without_each_time(place: str, tmp_path: Path):
    plain, backed = net(), net()
    backup = callbacks.BackupAndRestore(place if "://" in place else tmp_path / place)
    for number in range(1, 4):
        plain.fit(X, Y, epochs=2, progress=False)
        backed.fit(X, Y, epochs=2, callbacks=[backup], progress=False)
        assert_same(plain.params, backed.params)
        assert backed.train_on_batch(X, Y) == plain.train_on_batch(X, Y), number


def test_backups_that_cannot_be_removed_are_named(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoint").symlink_to("elsewhere")
    with pytest.raises(RunError, match="checkpoint cannot be removed: OSError: .*; remove it, or the next run there"):
        remove_checkpoints(tmp_path)


REFUSED = {
    "callbacks.BackupAndRestore('x', save_freq='batch')": "save_freq is 'batch'; give a whole number of at least 1",
    "net().fit(X, Y, workspace='y', callbacks=callbacks.BackupAndRestore('x'))": "stands for workspace; leave out",
    "net().fit(X, Y, checkpoint_freq=2, callbacks=callbacks.BackupAndRestore('x'))": "stands for checkpoint_freq",
    "net(nn.SGD(lambda step: -1)).fit(X, Y)": "gives -1 at step 0; a rate is at least 0 and finite",
    "callbacks.LearningRateScheduler(0.1)": "takes a function of (epoch, rate), not 0.1",
    "net().fit(X, Y, callbacks=callbacks.LearningRateScheduler(lambda epoch: None))": "the learning rate of epoch 0 is",
    "callbacks.LambdaCallback(on_epoch=print)": "LambdaCallback has no event 'on_epoch'; its events are on_train_begin",
    "callbacks.ModelCheckpoint('a', save_freq=10)": "give fit checkpoint_freq= for a number of steps",
    "net().fit(X, Y, callbacks=callbacks.ModelCheckpoint('{val_loss}'))": "('val_loss'); there are {epoch}, {loss}",
    "net().fit(X, Y, callbacks=callbacks.ModelCheckpoint('{}'))": "there are {epoch}, {loss}",
    "net().fit(X, Y, callbacks=callbacks.ModelCheckpoint('{loss:d}'))": "there are {epoch}, {loss}",
    "callbacks.EarlyStopping(verbose='yes')": "EarlyStopping has no argument 'verbose'",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_what_is_refused(statement: str):
    refused_with(lambda: eval(statement), REFUSED[statement])
