"""Categories and columns of data frames go by their names: in every use of a model, a job and an estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier
from dsinga.estimators import load as load_estimator

RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 3, 200)
FRAME = pd.DataFrame((RNG.normal(size=(200, 3)) * 0.3 + np.eye(3)[CODES] * 2).astype("f4"), columns=list("abc"))
NAMES = ["low", "mid", "top"]
WORDS = pd.Series(pd.Categorical.from_codes(CODES, NAMES))
OTHER, OTHER_WORDS = FRAME[["c", "a", "b"]], WORDS.cat.reorder_categories(["top", "low", "mid"])


def model() -> nn.Sequential:
    made = nn.Sequential([nn.Input(3), nn.Dense(3, name="scores")])
    made.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    return made


@pytest.fixture(scope="module")
def fitted() -> nn.Sequential:
    made = model()
    made.fit(FRAME, WORDS, epochs=5, progress=False)
    return made


@pytest.fixture(scope="module")
def loaded(fitted, tmp_path_factory) -> nn.Model:
    folder = tmp_path_factory.mktemp("saved")
    fitted.save(folder)
    return nn.load_model(folder)


def lazy(frame):
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=2)


@pytest.mark.parametrize("words", [OTHER_WORDS, OTHER_WORDS.astype(str), lazy(OTHER_WORDS), CODES])
@pytest.mark.parametrize("frame", [OTHER, lazy(OTHER)])
@pytest.mark.parametrize("name", ["fitted", "loaded"])
def test_a_model_takes_categories_and_columns_by_their_names(name, frame, words, request):
    used = request.getfixturevalue(name)
    assert used.evaluate(frame, words)["accuracy"] > 0.95
    assert (used.predict(frame).argmax(axis=1) == CODES).mean() > 0.95


def test_so_do_validation_a_second_fit_and_jobs(tmp_path):
    made = model()
    made.fit(FRAME, WORDS, epochs=5, validation_data=(OTHER, OTHER_WORDS), progress=False)
    assert made.result.history.phase("val")[-1]["accuracy"] > 0.95
    made.save(tmp_path / "model")
    for used in (made, nn.load_model(tmp_path / "model")):
        history = used.fit(OTHER, OTHER_WORDS, progress=False)
        assert history[0]["accuracy"] > 0.95
        assert used.evaluate(FRAME, WORDS)["accuracy"] > 0.95  # in the order of the first fit
    job = made.job(OTHER, OTHER_WORDS, test_data=(FRAME, WORDS), batch_size=50)
    assert dsinga.evaluate(job, made.params)["accuracy"] > 0.95
    assert dsinga.evaluate(job, made.params, data={"test": (OTHER, OTHER_WORDS)})["accuracy"] > 0.95
    fresh = model().job(batch_size=50, epochs=5)
    result = dsinga.train(fresh, data={"val": (OTHER, OTHER_WORDS), "train": (FRAME, WORDS)}, progress=False)
    assert result.history.phase("val")[-1]["accuracy"] > 0.95
    assert dsinga.evaluate(fresh, result, data=(OTHER, OTHER_WORDS))["accuracy"] > 0.95
    assert (dsinga.predict(fresh, result, "scores", data=OTHER).argmax(axis=1) == CODES).mean() > 0.95


@pytest.mark.parametrize("begin", ["fit", "train_on_batch"])
@pytest.mark.parametrize("kind", ["frame", "array"])
def test_single_batches_are_put_in_the_order_of_training(kind: str, begin: str) -> None:
    def given(columns: str) -> tuple[Any, Any]:
        frames = pd.DataFrame(x, columns=list("abcd"))[list(columns)], pd.DataFrame(y, columns=["u", "v"])
        if kind == "frame":
            return frames[0], frames[1][list("vu" if columns != "abcd" else "uv")]
        return xr.DataArray(frames[0].values, dims=("time", "name"), coords={"name": list(columns)}), y

    x, y = np.random.default_rng(0).normal(size=(8, 4)), np.arange(16.0).reshape(8, 2)
    model, plain = (nn.Sequential([nn.Input(4), nn.Dense(2)]) for _ in range(2))
    for each, data in ((model, given("abcd")), (plain, (x, y))):
        each.compile(nn.SGD(0.01), "mse")
        each.fit(*data, progress=False) if begin == "fit" else each.train_on_batch(*data)
    for name in ("train_on_batch", "test_on_batch", "evaluate"):
        assert getattr(model, name)(*given("cabd")) == getattr(plain, name)(x, y), name
    np.testing.assert_array_equal(model.predict(given("cabd")[0]), plain.predict(x))
    records, renamed = given("abcd")[0], {"columns": {"d": "e"}} if kind == "frame" else {"name": list("abce")}
    records = records.rename(**renamed) if kind == "frame" else records.assign_coords(renamed)
    with pytest.raises(UserError, match="'d'|no d"):
        model.train_on_batch(records, y)


def test_estimators_keep_classes_by_name(tmp_path):
    estimator = Classifier(epochs=5, random_state=0).fit(FRAME, WORDS)
    estimator.save(tmp_path / "saved")
    for used in (estimator, load_estimator(tmp_path / "saved")):
        assert used.score(FRAME, OTHER_WORDS) > 0.95
        with pytest.raises(ValueError, match="same order as they were in fit|fitted to"):  # as scikit-learn
            used.predict(OTHER)


def test_names_that_training_lacks_are_refused(fitted, loaded):
    for used in (fitted, loaded):
        with pytest.raises(UserError, match="no column 'b', which the records of training have"):
            used.predict(FRAME[["a", "c"]])
        with pytest.raises(UserError, match="has the column 'd', which the records of training lack; leave it out"):
            used.evaluate(FRAME.assign(d=1), WORDS)
        with pytest.raises(UserError, match="has the label 'topp' in record .*not among the classes; did you mean"):
            used.evaluate(FRAME, WORDS.cat.rename_categories({"top": "topp"}))
        opened = dsinga.data.open_records((FRAME, WORDS.astype(str)), classes=NAMES[::-1])
        with pytest.raises(UserError, match="for the classes top, mid, low, those of training low, mid"):
            used.evaluate(opened)


def test_a_file_of_an_earlier_version_names_columns(fitted, tmp_path: Path):
    fitted.save(tmp_path / "m")
    (tmp_path / "m" / "names.json").write_text(
        '{"data": {"classes": ["low", "mid", "top"], "columns": ["a", "b", "c"]}}'
    )
    assert nn.load_model(tmp_path / "m").evaluate(OTHER, OTHER_WORDS)["accuracy"] > 0.95


def test_a_damaged_file_of_names_is_refused(fitted, tmp_path: Path):
    fitted.save(tmp_path)
    for text in ("{", '{"data": 3}', '{"data": {"clases": []}}', '{"data": {"classes": [1]}}'):
        (tmp_path / "names.json").write_text(text)
        with pytest.raises(UserError, match="names.json is damaged"):
            nn.load_model(tmp_path)
