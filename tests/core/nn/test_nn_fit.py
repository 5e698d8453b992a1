"""Training, testing, predicting and saving models on numpy arrays."""

import pickle
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import write_store
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
Y = RNG.integers(3, size=150)
X = (RNG.normal(size=(150, 4)) + 3 * Y[:, None] * np.array([1, -1, 1, 0])).astype(np.float32)


def blobs() -> nn.Sequential:
    model = nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(3, activation="softmax")], name="blobs")
    model.compile(nn.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def trained():
    model = blobs()
    history = model.fit(X, Y, epochs=4, batch_size=25, validation_data=(X[:50], Y[:50]), progress=False)
    return model, history


def test_the_history_has_a_value_an_epoch(trained):
    _, history = trained
    assert {name: len(values) for name, values in history.history.items()} == {
        "loss": 4, "accuracy": 4, "val_loss": 4, "val_accuracy": 4,
    }  # fmt: skip
    assert history.history["accuracy"][-1] > 0.9
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.parametrize("sizes", [{"batch_size": 1000}, {"batch_size": 150}, {}], ids=str)
def test_a_batch_has_at_most_all_records_so_each_epoch_has_a_row(sizes):
    x, y = (X, Y) if sizes else (X[:20], Y[:20])
    model = blobs()
    history = model.fit(x, y, epochs=3, validation_data=(X[:5], Y[:5]), progress=False, **sizes)
    assert len(history.history["loss"]) == len(history.history["val_loss"]) == model.result.step == 3
    again = blobs()
    again.fit(x, y, epochs=3, batch_size=len(x), progress=False)
    assert_same(model.params, again.params)


@pytest.mark.parametrize("shape", [None, 4], ids=["shape of data", "nn.Input"])
def test_records_of_another_shape_than_in_training_are_named(shape):
    model = nn.Sequential([*([nn.Input(shape)] if shape else []), nn.Dense(3)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X, Y, progress=False)
    before = model.predict(X)
    narrow, message = X[:, :3], r"have shape \(3,\), but the model was trained on \(4,\); give the 4 columns"
    for call in (
        lambda: model.predict(narrow),
        lambda: model.evaluate(narrow, Y),
        lambda: model.fit(narrow, Y, progress=False),
    ):
        refused(call, message)
    with pytest.raises(UserError, match=r"validation_data .*\(3,\).*\(4,\)"):
        model.fit(X, Y, validation_data=(narrow, Y), progress=False)
    with pytest.raises(UserError, match=r"records have shape \(\), .* \(4,\); for one record, give x\[None\]"):
        model.predict(X[0])
    with pytest.raises(UserError, match=message):  # of a length that is not known
        model.fit(dd.from_pandas(pd.DataFrame(narrow), npartitions=2), Y, progress=False)
    np.testing.assert_array_equal(model.predict(X), before)


def test_a_trained_net_may_take_images_of_another_size():
    model = nn.Sequential([nn.Conv2D(4, 3), nn.GlobalAveragePooling2D(), nn.Dense(2)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(np.ones((8, 1, 9, 9), np.float32), np.arange(8) % 2, progress=False)
    assert model.predict(np.ones((3, 1, 12, 12), np.float32)).shape == (3, 2)


def test_evaluate_and_predict_in_this_process_and_on_a_cluster(trained, threads):
    model, history = trained
    metrics = model.evaluate(X[:50], Y[:50])
    assert metrics["loss"] == pytest.approx(history.history["val_loss"][-1], rel=1e-5)
    assert model.evaluate(X[:50], Y[:50], client=threads) == pytest.approx(metrics, rel=1e-5)
    chances = model.predict(X)
    np.testing.assert_array_equal(model.predict_lazily(da.from_array(X, chunks=(40, -1))), chances)
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
    assert (chances.argmax(axis=1) == Y).mean() > 0.9
    np.testing.assert_allclose(model.predict(X, client=threads), chances, rtol=1e-5, atol=1e-6)
    assert model.features(X[:2], "dense").shape == (2, 8)


def test_arrays_train_to_the_bits_of_a_store(trained, tmp_path):
    write_store(tmp_path / "train.zarr", [(X, Y)])
    model = blobs()
    model.fit(tmp_path / "train.zarr", epochs=4, batch_size=25, progress=False)
    assert_same(model.params, trained[0].params)


@pytest.mark.parametrize("length", [{"epochs": 2}, {"train_steps": 3}], ids=str)
def test_a_model_that_was_trained_with_weights_is_usable_after_load(tmp_path, length):
    model = blobs()
    weights = np.arange(1, 151)
    model.fit(X, Y, sample_weight=weights, validation_data=(X, Y), batch_size=50, progress=False, **length)
    assert "sample_weight" not in str(model)
    model.save(tmp_path)
    loaded = nn.load_model(tmp_path)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.evaluate(X, Y) == model.evaluate(X, Y)
    loaded.fit(X[:120], Y[:120], progress=False)
    assert loaded.result.step == 3  # an epoch of batches of 50
    assert dsinga.load(tmp_path / "job.conf").name == "blobs"


def test_a_model_without_layers_has_a_repr():
    assert repr(nn.Sequential()) == "<Model 'model'>"
    assert str(nn.Sequential()) == "<Model 'model'>: the model has no layers; add some, as in model.add(nn.Dense(10))"


def test_a_model_is_shown_as_a_table_and_as_a_job(trained, capsys):
    model, _ = trained
    model.summary()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["dense", "kInnerProduct", "8", "40"]
    assert lines[-1] == "blobs: 67 numbers in params, 268 bytes"
    assert "<table>" in model._repr_html_()
    assert "shape that &#x27;data&#x27; gives" in blobs()._repr_html_()
    assert str(blobs()).startswith("<Model 'blobs' from data>: layer 'dense': needs to know the shape")


def test_several_inputs_by_name_or_in_order():
    left, right = nn.Input(2, name="left"), nn.Input(2, name="right")
    joined = nn.Concatenate()([nn.Dense(4, activation="tanh")(left), nn.Dense(4, activation="tanh")(right)])
    model = nn.Model([left, right], nn.Dense(3)(joined))
    model.compile(nn.Adam(0.02), "sparse_categorical_crossentropy")
    model.fit({"left": X[:, :2], "right": X[:, 2:]}, Y, epochs=5, progress=False)
    assert model.evaluate([X[:, :2], X[:, 2:]], Y)["accuracy"] > 0.8
    with pytest.raises(UserError, match="x needs 2 sources, one for each of left, right, not 1"):
        model.predict(X)
    with pytest.raises(UserError, match="x names 'lft', which is no input; did you mean 'left'"):
        model.predict({"lft": X, "right": X})


def shaped(loss="sparse_categorical_crossentropy") -> nn.Sequential:
    model = nn.Sequential([nn.Input(4), nn.Dense(3)])
    model.compile("sgd", loss)
    return model


def test_labels_by_path_are_those_of_an_array(tmp_path):
    group = zarr.open_group(tmp_path / "g", mode="w")
    for name, array in {"y": Y, "hot": np.eye(3)[Y], "float": Y.astype("f4")}.items():
        group.create_array(name, data=array)
    expected = shaped()
    expected.fit(X, Y, progress=False)
    for name, loss in (("y", "sparse_categorical_crossentropy"), ("hot", "categorical_crossentropy")):
        model, path = shaped(loss), tmp_path / "g" / name
        model.fit(X, path, validation_data=(X, str(path)), progress=False)
        assert_same(model.params, expected.params)
        assert model.evaluate(X, path) == expected.evaluate(X, Y)
    with pytest.raises(UserError, match="takes classes, but y has the dtype float32"):
        shaped().fit(X, tmp_path / "g" / "float")
    with pytest.raises(UserError, match="g has no array 'hto'; did you mean 'hot'"):
        shaped().fit(X, tmp_path / "g" / "hto")


def test_labels_of_two_outputs_by_path(tmp_path):
    for name, array in {"kind": Y, "size": X.sum(axis=1)}.items():
        zarr.create_array(tmp_path / name, data=array)
    x = nn.Input(4)
    model = nn.Model(x, [nn.Dense(3)(x), nn.Dense(1)(x)])
    model.compile("sgd", ["sparse_categorical_crossentropy", "mse"])
    assert len(model.fit(X, [tmp_path / "kind", tmp_path / "size"], progress=False)) == 1


@pytest.mark.parametrize("number", [0, -1, 2.5, True, "8"])
def test_numbers_that_are_no_counts_are_refused_by_name(number):
    model = blobs()
    said = rf" is {number!r}; give a whole number of at least 1$"
    for name in ("batch_size", "epochs", "train_steps", "workers"):
        with pytest.raises(UserError, match=f"^{name}{said}"):
            model.fit(X, Y, progress=False, **{name: number})
    for call in (
        lambda: model.job(X, Y, batch_size=number),
        lambda: model.evaluate(X, Y, batch_size=number),
        lambda: model.predict(X, batch_size=number),
        lambda: model.features(X, "dense", batch_size=number),
    ):
        refused(call, f"^batch_size{said}")


@pytest.mark.parametrize("place", ["file", "file/below", "with_folders"])
def test_a_model_that_cannot_be_saved_says_where(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "with_folders" / "job.conf").mkdir(parents=True)
    model = nn.Sequential([nn.Input(4), nn.Dense(3)])
    with pytest.raises(UserError, match=rf"{place} cannot be written: .*; name a folder that can be written$"):
        model.save(tmp_path / place)
    with pytest.raises(UserError, match=r"with_folders is a folder; name a file, as in .*params.safetensors$"):
        model.save_weights(tmp_path / "with_folders")
    model.save(tmp_path / "new" / "folders")
    assert nn.load_model(tmp_path / "new" / "folders").predict(X).shape == (150, 3)


def test_an_evaluation_is_a_tuple_in_the_order_of_keras_that_has_names():
    model = nn.Sequential([nn.Input(4), nn.Dense(3)])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["top_2_accuracy", "accuracy"])
    figures = model.evaluate(X, Y)
    loss, top, accuracy = figures
    assert [loss, top, accuracy] == [figures[name] for name in ("loss", "top_2_accuracy", "accuracy")]
    assert [figures[0], figures[1], figures[2]] == [loss, top, accuracy]
    first, *rest = pickle.loads(pickle.dumps(figures))
    assert [first, *rest] == [loss, top, accuracy]
    assert [*figures] == [value for value in figures] == [figures.loss, figures.top_2_accuracy, figures.accuracy]  # noqa: C416
    assert model.evaluate(X, Y, return_dict=True) == {**figures} == dict(figures.items())
    assert "accuracy" in figures
    for wrong in (lambda: figures["auc"], lambda: figures[3], lambda: figures.auc):
        with pytest.raises((LookupError, AttributeError)):
            wrong()


def test_a_saved_model_of_fields_has_the_summary_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    x = np.zeros((4, 2, 3, 3), np.float32)
    model = nn.Sequential([nn.Input((2, 3, 3)), nn.Conv2D(2, 1)])
    model.compile(nn.SGD(0.1), "mse")
    model.fit(x, x, progress=False)
    model.save(tmp_path / "model")
    again = nn.load_model(tmp_path / "model")
    again.summary()
    summary = capsys.readouterr().out
    model.summary()
    assert summary == capsys.readouterr().out
    assert again.trainable
