"""Names and arguments of Keras that ``nn`` lacks are answered by what to write instead."""

import copy
import pickle

import numpy as np
import pytest

import dsinga
from dsinga import extensions, nn
from dsinga.errors import UserError
from dsinga.extensions.keras_names import CALLBACKS
from dsinga.nn.keras_arguments import LAYER_ATTRIBUTES, MODEL_ATTRIBUTES
from dsinga.nn.keras_names import LOSS_NAMES, NAMES, OPTIMIZERS
from dsinga.nn.losses import NAMES as LOSSES
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
    assert not LOSS_NAMES.keys() & LOSSES.keys()
    assert not [name for name in MODEL_ATTRIBUTES if name in dir(nn.Sequential)]
    assert not [name for name in LAYER_ATTRIBUTES if name in dir(nn.Dense(3))]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_keras_is_answered(name):
    with pytest.raises(UserError, match=f"^dsinga.nn has no '{name}'; ") as error:
        getattr(nn, name)
    assert NAMES[name] in str(error.value)
    assert not hasattr(nn, name)
    with pytest.raises(UserError, match=f"^dsinga.nn has no '{name}'; "):
        exec(f"from dsinga.nn import {name}", {})


STATEMENTS = {
    "nn.Dens": "dsinga.nn has no 'Dens'; did you mean 'Dense'?",
    "nn.losses.Huber": "dsinga.nn.losses has no 'Huber'; there is no such loss; register a loss layer of your own",
    "nn.optimizers.AdamW": "write nn.Adam(weight_decay=...)",
    "from dsinga.nn.losses import MeanSquaredError": 'write loss="mse", or nn.EuclideanLoss()',
    "from dsinga.extensions import ModelCheckpoint": 'write dsinga.extensions.KeepBest("val_loss")',
    "from dsinga.extensions import KeepBst": "dsinga.extensions has no 'KeepBst'; did you mean 'KeepBest'?",
    "nn.Dense(3).units": "a layer Dense has no 'units'; layer.settings has",
    "nn.Dense(3)(nn.Input(3), training=True)": "call of Dense has no argument 'training'; fit trains",
    "nn.Embedding(3, 4, mask_zero=True)": "Embedding has no argument 'mask_zero'; sequences of lengths",
    "nn.BatchNormalization(axis=-1)": "BatchNormalization has no argument 'axis'; channels are axis 1",
    "nn.Conv2D(3, 3, strides=2, dilation_rate=2)": "Conv2D has no argument 'dilation_rate'; there is none",
    "nn.LSTM(3, recurrent_regularizer='l2')": "give the optimizer weight_decay, and the layer wd_scale",
    "nn.RandomNormal(seed=3)": "the job's seed determines all random numbers",
    "nn.Bidirectional(nn.GRU(3), merge_mode='sum')": "the features of both directions are joined",
    "nn.Adam(amsgrad=True)": "Adam has no argument 'amsgrad'; there is none",
    "nn.Sequential(layers=[], trainable=False)": "Sequential has no argument 'trainable'; it has layers, name",
    "nn.Sequential(nn.Dense(3))": "nn.Sequential takes a list, as in nn.Sequential([nn.Dense(10)])",
    "nn.Input((3,), batch_size=3)": "write shape=, that of one record; fit has batch_size",
    "nn.Input((None,))": "Input: shape is that of one record, a whole number above 0 for each axis, not (None,)",
    "nn.Input(True)": "above 0 for each axis, not True",
    "nn.Input(0)": "above 0 for each axis, not 0",
    "nn.Rescaling(0)": "Rescaling: scale is a number other than 0 and offset a number, not 0 and 0.0",
    "nn.Normalization(variance=0)": "Normalization: mean is a number and variance a number above 0, not None and 0",
    "nn.LocalNet(model())": "LocalNet takes a Job, not Sequential; of a model of dsinga.nn, write LocalNet(model.job(",
    "dsinga.load(5)": "a job is read from the path of a file, not from int",
    "model()(X)": "a model is no layer; write model.predict(x)",
    "model().train_on_batch(X, Y)": "a model has no 'train_on_batch'; write dsinga.nn.LocalNet(model.job(",
    "model().summry()": "a model has no 'summry'; did you mean 'summary'?",
    "model().summary(line_length=80)": "summary has no argument 'line_length'; leave it out",
    "model().fit(X, Y, validation_split=0.1)": "give validation_data=(x, y)",
    "model().evaluate(X, Y, verbose=0)": "evaluate has no argument 'verbose'; leave it out",
    "setattr(model(), 'stop_training', True)": "ends training by returning True",
    "model(loss='huber')": "there is no loss 'huber'; register a loss layer of your own",
    "model(loss='cross_entropy')": "there is no loss 'cross_entropy'; did you mean",
    "model(loss=lambda y, p: 0)": "a loss is a name or a layer, not a function",
    "model(metrics=['mae'])": "there is no metric 'mae': the layers report accuracy, loss; compute others",
    "model(metrics=[model])": 'metrics are names, as in metrics=["accuracy"], not model',
    "model(optimizer=nn.Adam)": "the optimizer Adam is a function; call it: nn.Adam()",
    "model(loss=nn.CRF)": "CRF is a function; call it: nn.CRF()",
    "nn.Sequential([nn.ReLU])": "nn.Sequential takes layers, as in nn.Dense(10), not ReLU",
    "model(metrics={'dense': ['auc']})": "there is no metric 'auc'",
    "model(optimizer='nadam')": "there is no optimizer 'nadam'; nn.Adam, nn.RMSprop",
    "extensions.EarlyStopping(baseline=1)": "EarlyStopping has no argument 'baseline'; there is none; write a function",
    "extensions.TensorBoard('a', log_dir='b')": "folder and log_dir are one argument",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_habit_of_keras_is_answered_in_one_sentence(statement):
    names = {"dsinga": dsinga, "nn": nn, "extensions": extensions, "model": model, "X": X, "Y": Y}
    with pytest.raises(UserError) as error:
        exec(statement, names)
    assert STATEMENTS[statement] in str(error.value)
    assert len(str(error.value)) < 300


def test_models_and_layers_are_copied_in_spite_of_unknown_names():
    made = model()
    for again in (copy.copy(made), pickle.loads(pickle.dumps(made))):
        np.testing.assert_array_equal(again.predict(X), made.predict(X))
    assert copy.deepcopy(nn.Dense(3)).settings == {"units": 3}
    assert not hasattr(made, "_ipython_display_")


def test_names_of_optimizers_and_callbacks_are_those_of_the_modules():
    assert OPTIMIZERS.keys() <= NAMES.keys()
    assert CALLBACKS.keys() <= NAMES.keys()


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


def test_tensorboard_takes_its_folder_by_the_name_of_keras(tmp_path):
    pytest.importorskip("tensorboardX")
    model().fit(X, Y, callbacks=[extensions.TensorBoard(log_dir=tmp_path / "logs")], progress=False)
    assert list((tmp_path / "logs" / "train").iterdir())


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
