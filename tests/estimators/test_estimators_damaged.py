"""Sizes of hidden layers, and saved estimators that are damaged or cannot be written."""

import json

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.estimators import Classifier, Transformer, load
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.arange(40) % 2


def test_a_number_is_one_hidden_layer_as_of_scikit_learn():
    one, listed = (Classifier(hidden=hidden, epochs=2, random_state=0).fit(X, Y) for hidden in (5, (5,)))
    np.testing.assert_array_equal(one.predict_proba(X), listed.predict_proba(X))
    assert Transformer(hidden=np.int64(5), n_components=2, epochs=1).fit(X).transform(X).shape == (40, 2)


FAULTS = {
    "hidden": (Classifier(hidden=0), "a size of hidden is 0; give a whole number of at least 1"),
    "size": (Classifier(hidden=(5, 2.5)), "a size of hidden is 2.5; give"),
    "epochs": (Classifier(epochs=2.5), "epochs is 2.5; give a whole number of at least 1"),
    "batchsize": (Classifier(batchsize=True), "batchsize is True; give a whole number of at least 1"),
    "rate": (Classifier(learning_rate="fast"), "learning_rate is 'fast'; give a number of at least 0"),
    "decay": (Classifier(weight_decay=-1), "weight_decay is -1; give a number of at least 0"),
    "activation": (Classifier(activation="rely"), "there is no activation 'rely'; did you mean 'relu'"),
    "net": (Classifier(net=3), "net must be a Job, the path of a job file or a model of dsinga.nn, not int"),
    "method": (Transformer(method="pca"), "method must be 'autoencoder' or 'rbm', not 'pca'"),
    "code": (Transformer(n_components=0), "n_components is 0; give a whole number of at least 1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_setting_is_refused_by_name(name):
    estimator, message = FAULTS[name]
    refused(lambda: estimator.fit(X, Y), message)


@pytest.mark.parametrize("name", ["estimator.json", "params.safetensors", "job.conf"])
def test_a_cut_file_is_one_sentence(tmp_path, name):
    folder = tmp_path / "saved"
    Classifier(hidden=5, epochs=1).fit(X, Y).save(folder)
    content = (folder / name).read_bytes()
    for length in range(0, len(content) - 1, max(1, len(content) // 20)):
        (folder / name).write_bytes(content[:length])
        with pytest.raises(UserError) as error:
            load(folder)
        assert "\n" not in str(error.value)
    for text in (b"[1]", b'{"class": "Classifier"}', b"\xff"):
        (folder / "estimator.json").write_bytes(text)
        with pytest.raises(UserError):
            load(folder)
    (folder / name).unlink()
    refused(lambda: load(folder), f"saved is no saved estimator: it lacks {name}")


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("classes", [[], (), np.array([]), [[]], [[0, 1]], 5], ids=repr)
def test_classes_that_are_none_are_named(is_lazy, classes):
    da = pytest.importorskip("dask.array")
    x, y = (da.from_array(X, chunks=20), da.from_array(Y, chunks=20)) if is_lazy else (X, Y)
    refused(lambda: Classifier(hidden=5, epochs=1).partial_fit(x, y, classes=classes), "classes is", "list all classes")


@pytest.mark.parametrize("values", [[], [1, 0], [0, 0], [[0], [1]]], ids=repr)
def test_classes_of_a_saved_estimator_that_are_none_are_named(tmp_path, values):
    Classifier(hidden=5, epochs=1).fit(X, Y).save(tmp_path / "saved")
    path = tmp_path / "saved" / "estimator.json"
    described = json.loads(path.read_text())
    described["classes_"]["values"] = values
    path.write_text(json.dumps(described))
    refused(lambda: load(tmp_path / "saved"), "is a damaged estimator", "its classes are")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    fitted = Classifier(epochs=1).fit(X, Y)
    for place in ("file", "file/below"):
        with pytest.raises(UserError, match=rf"{place} cannot be written: Not a directory; name a folder"):
            fitted.save(tmp_path / place)
