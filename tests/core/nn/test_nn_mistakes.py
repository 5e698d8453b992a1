"""What a beginner does wrong with nn is answered in the words of nn, with the line to write."""

import logging
import re

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dsinga
from dsinga import nn
from dsinga.extensions import Extension
from dsinga.monitor import read_metrics
from tests.support.refusals import refused

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def model(outputs=2, loss="sparse_categorical_crossentropy"):
    made = nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(outputs)])
    made.compile("sgd", loss)
    return made


def fit(x=X, y=Y, outputs=2, loss="sparse_categorical_crossentropy", **arguments):
    return model(outputs, loss).fit(x, y, progress=False, **arguments)


def fit_of(*layers):
    made = nn.Sequential(layers)
    made.compile("sgd", "sparse_categorical_crossentropy")
    return made.fit(X, Y, progress=False)


def fit_of_images(*layers):
    made, images = nn.Sequential([nn.Input((1, 8, 8)), *layers]), np.zeros((4, 1, 8, 8), np.float32)
    made.compile("sgd", "mse")
    return made.fit(images, images, progress=False)


def fitted_steps():
    made, steps = nn.Sequential([nn.LSTM(2), nn.Dense(2)]), np.zeros((8, 5, 3), np.float32)
    made.compile("sgd", "sparse_categorical_crossentropy")
    made.fit(steps, Y[:8], progress=False)
    return made


class WithoutLogs(nn.callbacks.Callback):
    def on_epoch_end(self, epoch):
        pass


class WithoutTrigger(Extension):
    def run(self, loop):
        pass


FRAME = pd.DataFrame(X).assign(y=Y)
MISTAKES = {
    "PyTorch's arguments": (lambda: nn.Dense(in_features=4, out_features=2), "out_features.* units"),
    "labels from 1": (lambda: fit(y=Y + 1), "labels begin at 0"),
    "one output": (lambda: fit(outputs=1), "binary_crossentropy"),
    "no validation": (lambda: fit(callbacks=[nn.callbacks.EarlyStopping("val_loss")]), "val_loss.* validation_data="),
    "batchsize": (lambda: fit(batchsize=3), "batch_size"),
    "no labels": (lambda: fit(y=None), r"no labels.* fit\(x, y\)"),
    "no labels to validate": (lambda: fit(validation_data=X), r"validation_data=\(x_val, y_val\)"),
    "other records to validate": (lambda: fit(validation_data=(X[:, :3], Y)), r"validation_data .*\(3,\).*\(4,\)"),
    "a number as text": (lambda: nn.Dense("10"), "Dense: units .*whole number"),
    "a layer as activation": (lambda: nn.Dense(3, activation=nn.ReLU), "activation='relu'"),
    "PyTorch's initialiser": (lambda: fit_of(nn.Dense(2, kernel_initializer="xavier")), "glorot_uniform"),
    "evaluate before compile": (lambda: nn.Sequential([nn.Dense(2)]).evaluate(X, Y), "compile"),
    "codes that are numbers": (lambda: fit_of(nn.Embedding(10, 4), nn.Flatten(), nn.Dense(2)), "whole numbers"),
    "a backup of the best": (
        lambda: fit(callbacks=[nn.callbacks.ModelCheckpoint("b.h5", "val_loss", save_best_only=True)]),
        "ModelCheckpoint watches val_loss.* validation_data=",
    ),
    "shuffle": (lambda: fit(shuffle="batch"), "shuffle .*True or False"),
    "PyTorch's betas": (lambda: nn.Adam(betas=(0.9, 0.99)), "beta_1="),
    "no metrics": (lambda: read_metrics("nowhere"), "workspace of a run"),
    "gpu=True": (lambda: fit(gpu=True), r"gpu=\[0\]"),
    "float16": (lambda: fit(precision="float16"), "precision 'float16'", "bf16"),
    "learning_rate of compile": (lambda: model().compile("adam", "mse", learning_rate=0.1), r"nn.Adam\(0.1\)"),
    "a column as labels": (lambda: fit(FRAME, "y"), r"'y' is a column", r"dsinga.table\(x, label='y'\)"),
    "a column that is missing": (lambda: fit(FRAME, "z"), "no column 'z'", "0, 1, 2, 3, y"),
    "a dict of records and labels": (lambda: fit({"x": X, "label": Y}, None), r"fit\(x\['x'\], x\['label'\]\)"),
    "four parts to validate": (lambda: fit(validation_data=[X, Y, None, 3]), r"4 parts.* \(x, y\)"),
    "one unit with softmax": (lambda: fit_of(nn.Dense(1, activation="softmax")), "one unit", "sigmoid"),
    "labels -1 and 1": (lambda: fit(y=Y * 2 - 1), "label -1", r"\(y \+ 1\) // 2"),
    "a class that is missing": (lambda: fit(class_weight={"a": 1}), "'a'.* the classes are 0, 1"),
    "crossentropy": (lambda: fit(loss="crossentropy"), "'crossentropy'", "sparse_categorical_crossentropy"),
    "a callback of epochs": (lambda: fit(callbacks=[lambda epoch: None]), r"\(epoch\).* \(step, metrics\)"),
    "many by position": (lambda: model().fit(X, Y, 10), "fit takes x and y by position", "epochs"),
    "the batch in a shape": (lambda: fit_of(nn.Input((64, 4)), nn.Dense(2)), r"\(64, 4\)", r"nn.Input\(\(4,\)\)"),
    "smaller images": (lambda: fit_of_images(nn.Conv2D(1, 3)), r"\(1, 6, 6\).*\(1, 8, 8\)", "padding=.same"),
    "no file": (lambda: nn.load_model("nowhere"), "nowhere was not found", r"model.save\(folder\)"),
    "inputs of two shapes": (lambda: nn.Add()([nn.Input(3), nn.Input(4)]), "'data', 1 x 3, with 'data_1', 1 x 4"),
    "an Adam of PyTorch": (lambda: nn.Adam(max_norm=1.0), "max_norm.* clip_norm"),
    "swapped axes": (
        lambda: fitted_steps().predict(np.zeros((4, 3, 5))),
        r"\(5, 3\).* x.transpose\(0, 2, 1\)",
    ),
    "an event without logs": (
        lambda: fit(callbacks=WithoutLogs()),
        r"WithoutLogs.*\(self, epoch, logs=None\)",
    ),
    "an extension that never runs": (lambda: fit(callbacks=WithoutTrigger()), "WithoutTrigger.* trigger = EverySteps"),
    "a model in place of a job": (lambda: dsinga.evaluate(model(), X, Y), r"takes a job.* model.evaluate\(x, y\)"),
    "a model as a job": (lambda: dsinga.generate(model(), "a"), r"not from Sequential.* model.job\(\)"),
    "images of vectors": (lambda: nn.MaxPooling2D(2)(nn.Input(20)), r"nn.Input\(\(channels"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_in_the_words_of_nn(name):
    refused(*MISTAKES[name])


@pytest.mark.parametrize(
    ("owner", "name", "remedy"),
    [
        (model(), "score", "model.evaluate"),
        (model(), "partial_fit", "model.fit"),
        (nn.schedules, "StepLR", "nn.schedules.PiecewiseConstantDecay"),
    ],
)
def test_a_name_of_another_library_has_a_remedy(owner, name, remedy):
    refused(lambda: getattr(owner, name), name, remedy, error=AttributeError)


def test_a_missing_metric_of_a_history_is_named():
    history = fit()
    refused(lambda: history["loss"], "history.history", error=KeyError)
    refused(lambda: history.history["acc"], "'acc'.* loss, accuracy", error=KeyError)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("n.pt", "from_torch"), ("n.keras", "set_weights"), ("n.onnx", "load_onnx"), ("workspace", "load_weights")],
)
def test_what_load_model_does_not_read_names_what_does(name, remedy, tmp_path):
    if name == "workspace":
        fit(workspace=tmp_path / name)
    else:
        (tmp_path / name).write_text("")
    refused(lambda: nn.load_model(tmp_path / name), name, remedy)


def test_weights_of_other_layers_are_refused_when_they_are_loaded(tmp_path):
    narrow, wide = (nn.Sequential([nn.Input(4), nn.Dense(size), nn.Dense(2)]) for size in (8, 16))
    narrow.save_weights(tmp_path / "w")
    before = wide.get_weights()
    refused(
        lambda: wide.load_weights(tmp_path / "w"), r"'dense_weight' of shape \(8, 4\), .* \(16, 4\)", "nn.load_model"
    )
    np.testing.assert_equal(wide.get_weights(), before)
    shapeless = model()
    shapeless.load_weights(tmp_path / "w")
    assert shapeless.params["dense_weight"].shape == (8, 4)


def test_a_softmax_of_a_softmax_is_named_once(caplog):
    made = nn.Sequential([nn.Dense(2), nn.Softmax(), nn.Softmax()])
    made.compile("sgd", "sparse_categorical_crossentropy")
    with caplog.at_level(logging.WARNING, "dsinga"):
        made.fit(X, Y, progress=False)
        made.fit(X, Y, progress=False)
    (record,) = caplog.records
    assert "leave one of them out" in record.getMessage()


def test_keras_is_called_nn():
    refused(lambda: dsinga.keras, "from dsinga import nn as keras", error=AttributeError)


def test_a_file_is_no_workspace(tmp_path):
    (tmp_path / "run").write_text("")
    refused(lambda: fit(workspace=tmp_path / "run"), "is a file; give a folder")


def test_precisions_have_short_names():
    assert model().job(X, Y, precision="bf16").precision.name == "kBF16"


def test_a_module_of_pytorch_in_a_model_names_from_torch():
    torch = pytest.importorskip("torch")
    refused(lambda: nn.Sequential([torch.nn.Linear(4, 2)]), "from_torch")


@pytest.mark.parametrize("scales", [[1, 1, 1000, 1e6], [1e4, 1e4, 1e4, 5e4]])
def test_columns_of_large_or_very_different_scales_are_named_once(scales, caplog):
    x = X * np.array(scales, np.float32)
    made = model()
    with caplog.at_level(logging.WARNING, "dsinga"):
        made.fit(x, Y, progress=False)
        made.fit(x, Y, progress=False)
    (record,) = caplog.records
    assert "nn.Normalization()" in record.getMessage()
    assert "column 3" in record.getMessage()


@pytest.mark.parametrize("first", ["plain", "normalised"])
def test_columns_that_are_scaled_are_not_named(first, caplog):
    layer = nn.Normalization()
    x = X if first == "plain" else X * np.array([1, 1, 1000, 1e6], np.float32)
    layer.adapt(x)
    made = nn.Sequential([nn.Dense(2)] if first == "plain" else [layer, nn.Dense(2)])
    made.compile("sgd", "sparse_categorical_crossentropy")
    with caplog.at_level(logging.WARNING, "dsinga"):
        made.fit(x, Y, progress=False)
    assert not caplog.records


def test_a_workspace_is_no_saved_model_and_says_how_to_go_on(tmp_path):
    made = model()
    made.fit(X, Y, workspace=tmp_path, progress=False)
    text = re.escape(f"nn.from_job(job), and call model.load_weights('{tmp_path}')") + ".* resume=True"
    refused(lambda: nn.load_model(tmp_path), text)
    other = model()
    other.params = tmp_path
    assert all((other.params[name] == array).all() for name, array in made.params.items())


def test_a_figure_that_is_missing_is_answered_with_those_that_there_are():
    made = model()
    refused(lambda: made.evaluate(X, Y)["acc"], "no figure 'acc'.* loss, accuracy", error=KeyError)
    look = nn.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs["val_acc"])
    refused(lambda: fit(callbacks=look), "logs has no 'val_acc'.* loss, accuracy", error=KeyError)


def test_outputs_that_do_not_fit_in_memory_are_refused_at_once():
    made, records = model(), da.zeros((10**11, 4), chunks=(5 * 10**6, 4), dtype="float32")
    made.fit(X, Y, progress=False)
    refused(lambda: made.predict(records), "800 GB.* free memory.* model.predict_lazily")


def test_a_backup_keeps_the_newest_checkpoint(tmp_path):
    backup = nn.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
    fit(epochs=3, callbacks=[backup])
    assert [path.name for path in (tmp_path / "checkpoint").glob("step*")] == ["step6"]
