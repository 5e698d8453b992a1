"""The preset "strong": an ensemble on columns learnt of frames and arrays, with calibrated probabilities."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dsinga.estimators import Classifier, Regressor, load
from tests.addons.tables.test_table_records import flights, in_dask
from tests.support.refusals import refused

pandas = pytest.importorskip("pandas")
FRAME = flights(240)
X, Y = FRAME.drop(columns="late"), FRAME.late
NUMBERS = np.stack([X.distance, X.stops, X.is_full], axis=1).astype(np.float64)  # with gaps


def strong(cls: Any = Classifier, **arguments: Any) -> Any:
    return cls(**{"preset": "strong", "epochs": 6, "batchsize": 32, "random_state": 0, **arguments})


@pytest.fixture(scope="module")
def fitted() -> Classifier:
    return strong().fit(X, Y)


def test_it_is_an_ensemble_that_keeps_its_best_epoch_and_is_calibrated(fitted: Classifier, tmp_path: Any) -> None:
    assert fitted.score(X, Y) > 0.75
    assert fitted.params_["heads_weight"].shape[0] == 8
    assert fitted.best_epoch_ is not None
    assert "val_loss" in fitted.history_[-1]
    fitted.save(tmp_path / "saved")
    other = load(tmp_path / "saved")
    assert other.temperature_ == fitted.temperature_
    assert other.preset == "strong"
    np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))
    lazy = np.asarray(fitted.predict_proba(in_dask(X)).compute())
    np.testing.assert_allclose(lazy, fitted.predict_proba(X), atol=1e-6)


def test_equal_states_give_equal_nets(fitted: Classifier) -> None:
    again = clone(fitted).fit(X, Y)
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))


def test_columns_of_an_array_are_learnt_too() -> None:
    array = strong().fit(NUMBERS, Y)
    assert [column.name for column in array.columns_.column] == ["x0", "x1", "x1", "x2"], "x1 is a category, too"
    assert array.n_features_in_ == 3
    frame = strong().fit(pandas.DataFrame(NUMBERS), Y)
    np.testing.assert_array_equal(array.predict_proba(NUMBERS), frame.predict_proba(pandas.DataFrame(NUMBERS)))
    refused(lambda: array.predict(NUMBERS[:, :2]), "has 2 features", "features as input", error=ValueError)


def test_whole_numbers_have_no_codes_where_all_columns_are_complete_numbers() -> None:
    complete = strong(epochs=1).fit(np.nan_to_num(NUMBERS), Y)
    assert [column.name for column in complete.columns_.column] == ["x0", "x1", "x2"]


def test_dask_arrays_are_learnt_from_their_chunks(threads: Any) -> None:
    import dask.array as da

    lazy, labels = da.from_array(NUMBERS, chunks=(100, 2)), da.from_array(np.asarray(Y, str), chunks=100)
    classifier = strong(epochs=1).fit(lazy, labels)
    assert {column.name for column in classifier.columns_.column} == {"x0", "x1", "x2"}
    np.testing.assert_array_equal(classifier.predict(lazy).compute(), classifier.predict(NUMBERS))


def test_labels_and_numbers_are_predicted() -> None:
    labels = strong(epochs=1).fit(X, np.stack([X.stops > 1, X.is_full], axis=1).astype(int))
    assert labels.predict_proba(X).shape == (len(X), 2)
    targets = X.distance.fillna(0).to_numpy()
    assert strong(Regressor, epochs=12).fit(X, targets).score(X, targets) > 0.2
    assert strong(Regressor, epochs=1).fit(X, np.stack([targets, targets], axis=1)).predict(X).shape == (len(X), 2)


@pytest.mark.parametrize(
    ("cls", "arguments", "message"),
    [
        (Classifier, {"hidden": (8,)}, "has a net of its own; leave hidden out, or leave the preset out"),
        (Classifier, {"activation": "tanh"}, "leave activation out"),
        (Classifier, {"net": "job.conf"}, "leave net out"),
        (Classifier, {"preset": "storng"}, "preset is 'storng'; did you mean 'strong'?"),
        (Classifier, {"preset": 3}, '; it is "strong", or None for the default net'),
        (Regressor, {"loss": "quantile"}, "predicts the mean by loss=\"squared_error\", not 'quantile'"),
        (Classifier, {"epochs": 0}, "epochs"),
    ],
)
def test_arguments_without_a_meaning_are_refused(cls: Any, arguments: Any, message: str) -> None:
    refused(lambda: strong(cls, **arguments).fit(X, Y), message)
