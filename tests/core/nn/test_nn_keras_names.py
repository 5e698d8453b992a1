"""Names and arguments of Keras that ``nn`` lacks are answered by what to write instead."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from dsinga import extensions, nn
from dsinga.base.errors import UserError
from dsinga.extensions.extension import CALLBACKS
from dsinga.nn.words.keras_arguments import LAYER_ATTRIBUTES, LOSS_NAMES, MODEL_ATTRIBUTES, NAMES, OPTIMIZERS
from dsinga.nn.words.losses import NAMES as LOSSES
from tests.support.installed import is_installed
from tests.support.refusals import refused
from tests.support.registries import restored_registry
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = RNG.integers(3, size=60)


def model(**arguments) -> nn.Sequential:
    made = nn.Sequential([nn.Input(4), nn.Dense(3)])
    made.compile(**{"optimizer": "sgd", "loss": "sparse_categorical_crossentropy", **arguments})
    return made


def test_the_tables_have_no_name_that_is_there():
    assert not NAMES.keys() & set(nn.__all__)
    assert OPTIMIZERS.keys() | CALLBACKS.keys() <= NAMES.keys()
    assert not LOSS_NAMES.keys() & LOSSES.keys()
    assert not [name for name in MODEL_ATTRIBUTES if name in dir(nn.Sequential)]
    assert not [name for name in LAYER_ATTRIBUTES if name in dir(nn.Dense(3))]


def test_the_names_of_keras_are_answered():
    with restored_registry(without_users=True):
        answer_names()


def answer_names():
    for name, remedy in NAMES.items():
        if not is_installed("layer", f"k{name}"):  # whose add-on is named
            continue
        for statement in (f"nn.{name}", f"from dsinga.nn import {name}"):
            with pytest.raises(UserError, match=f"^dsinga.nn has no '{name}'; ") as error:
                exec(statement, {"nn": nn})
            assert remedy in str(error.value)
        assert not hasattr(nn, name)


def test_models_and_layers_are_copied_in_spite_of_unknown_names():
    made = model()
    for again in (copy.copy(made), pickle.loads(pickle.dumps(made))):
        np.testing.assert_array_equal(again.predict(X), made.predict(X))
    assert copy.deepcopy(nn.Dense(3)).settings == {"units": 3}
    assert not hasattr(made, "_ipython_display_")


def test_early_stopping_restores_the_best_params_as_keep_best_does():
    rate = nn.SGD(0.5, momentum=0.9)  # too high: the loss of validation rises soon
    fits = []
    for rules in (
        [extensions.EarlyStopping(patience=2, restore_best_weights=True)],
        [extensions.EarlyStopping("val/loss", patience=2), extensions.KeepBest("val/loss")],
    ):
        made = model(optimizer=rate)
        made.fit(X, Y, epochs=30, validation_data=(X[:20], Y[:20][::-1]), callbacks=rules, progress=False)
        fits.append(made)
    assert fits[0].result.stopped
    assert fits[0].result.remarks == fits[1].result.remarks != []
    assert_same(fits[0].params, fits[1].params)


def test_a_function_ends_training_at_the_step_whose_row_it_returns_true_for():
    seen = []

    def stop(step, metrics):
        seen.append(step)
        return step >= 12 and "val/loss" in metrics

    made = model()
    history = made.fit(X, Y, epochs=50, batch_size=20, validation_data=(X, Y), callbacks=[stop], progress=False)
    assert made.result.step == 12  # of 3 steps an epoch
    assert seen == [3, 3, 6, 6, 9, 9, 12, 12]
    assert len(history.history["loss"]) == 4
    assert made.result.stopped == "training stopped after 12 of 150 steps: the function stop has returned True"
    other = model()
    other.fit(X, Y, epochs=2, batch_size=20, callbacks=[lambda *_: 1], progress=False)
    assert other.result.step == 6
    other.fit(X, Y, epochs=2, batch_size=20, callbacks=lambda *_: np.True_, progress=False)
    assert other.result.step == 3


def test_values_are_numbers_and_arrays_as_in_keras(tmp_path: Path) -> None:
    x = np.ones((4, 3), np.float32)
    model = nn.Sequential([nn.Input((3,)), nn.Dense(1)])
    model.compile(nn.Adam(0.01), "mse")
    loss = model.train_on_batch(x, x[:, 0])
    assert loss.item() == loss
    assert model(x).detach().cpu().numpy().tolist() == model.predict(x).tolist()
    assert type(model(x).numpy()) is np.ndarray
    assert f"{model.evaluate(x, x[:, 0]):.3f}" == f"{float(model.evaluate(x, x[:, 0])):.3f}"
    assert float(model.optimizer.learning_rate) == 0.01
    checkpoint = extensions.ModelCheckpoint(tmp_path / "new/{epoch}.weights.h5", save_weights_only=True)
    model.fit(x, x[:, 0], progress=False, callbacks=[checkpoint])
    assert (tmp_path / "new/1.weights.h5").exists()
    model.compile(nn.SGD(nn.ExponentialDecay(0.1, 5, 0.5)), "mse", metrics=["mae"])
    model.fit(x, x[:, 0], progress=False)
    for call, message in (
        (lambda: float(model.optimizer.learning_rate), "is a schedule, k.*, no number"),
        (lambda: model.optimizer.learning_rate.assign(0.1), "has no 'assign'; write model.optimizer.learning_rate"),
        (lambda: model.optimizer.get_config(), "has no 'get_config'; print"),
        (lambda: float(model.evaluate(x, x[:, 0])), "evaluate returns several figures: loss, .*mae"),
        (lambda: extensions.ModelCheckpoint(dirpath="a"), "no argument 'dirpath'; use filepath"),
        (lambda: extensions.LearningRateScheduler(lambda epoch: 1.0, rate=1), "has no argument 'rate'"),
        (lambda: nn.Trainer, "has no 'Trainer'; compile and fit of a model train"),
    ):
        refused(call, message)


def test_an_optimizer_of_pytorch_is_refused_by_its_name() -> None:
    torch = pytest.importorskip("torch")
    for optimizer in (torch.optim.Adam, torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])):
        with pytest.raises(UserError, match=r"^the optimizer is Adam of PyTorch, .* write one as nn.Adam\(0.001\)$"):
            nn.Sequential([nn.Dense(1)]).compile(optimizer, "mse")
