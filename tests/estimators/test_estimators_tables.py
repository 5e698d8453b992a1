"""Estimators take data frames as they are: columns are learnt in fit, and applied by name in all other calls."""

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dsinga import nn
from dsinga.addons.tables.columns import TableColumns
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier, Regressor, Transformer, load
from tests.addons.tables.test_table_records import flights, in_arrow, in_dask, in_polars
from tests.support.refusals import refused

pandas = pytest.importorskip("pandas")
FRAME = flights()
X, Y = FRAME.drop(columns="late"), FRAME.late


def classifier(**arguments: Any) -> Classifier:
    return Classifier(**{"epochs": 4, "learning_rate": 0.01, "random_state": 0, **arguments})


@pytest.fixture(scope="module")
def fitted() -> Classifier:
    return classifier(epochs=12).fit(X, Y)


def test_a_frame_is_read_by_name_in_any_library(fitted: Classifier) -> None:
    assert fitted.score(flights(seed=1).drop(columns="late"), flights(seed=1).late) > 0.95
    assert list(fitted.feature_names_in_) == list(X.columns)
    assert fitted.n_features_in_ == len(X.columns)
    expected = fitted.predict_proba(X)
    turned = X[X.columns[::-1]].assign(new=1, carrier=X.carrier.astype("category"))
    for frame in (turned, in_arrow(X), in_polars(X), in_dask(X).compute()):
        np.testing.assert_array_equal(fitted.predict_proba(frame), expected)
    for convert in (in_arrow, in_polars):
        other = classifier(epochs=12).fit(convert(X), convert(FRAME)["late"])
        np.testing.assert_array_equal(other.predict_proba(X), expected)


def test_predictions_for_a_dask_frame_are_lazy(fitted: Classifier) -> None:
    frame = in_dask(X)
    lazy = fitted.predict_proba(frame[frame.columns[::-1]])
    np.testing.assert_allclose(np.asarray(lazy.compute()), fitted.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(fitted.to_local().predict(frame), fitted.predict(X))
    assert fitted.score(frame, in_dask(FRAME).late) == pytest.approx(fitted.score(X, Y))
    refused(lambda: fitted.predict(frame.drop(columns="stops")), "'stops'", "of training have")


def test_a_dask_frame_is_learnt_from_its_partitions(threads: Any, fitted: Classifier, monkeypatch: pytest.MonkeyPatch):
    encoded: list[int] = []
    monkeypatch.setattr(
        TableColumns,
        "encode",
        lambda self, table, first=0, encode=TableColumns.encode: (encoded.append(len(table)), encode(self, table))[1],
    )
    lazy = classifier().fit(in_dask(X), in_dask(FRAME).late)
    assert encoded == [0, 200, 200, 200]  # first of all nothing, to know the dtype; then each partition once
    assert lazy.columns_ == fitted.columns_
    assert lazy.score(X, Y) > 0.8


def test_files_and_pickles_keep_columns(fitted: Classifier, tmp_path: Any) -> None:
    fitted.save(tmp_path / "saved")
    for other in (load(tmp_path / "saved"), pickle.loads(pickle.dumps(fitted))):
        assert other.columns_ == fitted.columns_
        np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))


def test_tools_of_scikit_learn_take_frames(fitted: Classifier) -> None:
    search = GridSearchCV(classifier(), {"hidden": [(8,), (32,)]}, cv=2).fit(X, Y)
    assert search.best_estimator_.columns_ is not None
    doubled = make_pipeline(FunctionTransformer(lambda frame: frame.assign(twice=2 * frame.distance)), clone(fitted))
    assert doubled.fit(X, Y).score(X, Y) > 0.95
    importance = permutation_importance(fitted, X, Y, n_repeats=2, random_state=0).importances_mean
    assert X.columns[importance.argmax()] == "distance"
    effect = partial_dependence(fitted, X[X.distance.notna()], ["distance"], grid_resolution=4)["average"]
    assert (np.diff(effect[0]) > 0).all()


@pytest.mark.parametrize("convert", [in_polars, lambda frame: in_arrow(frame).combine_chunks().to_batches()[0]])
def test_numbers_beside_dates_are_a_table_in_any_library(convert: Any) -> None:
    frame = convert(X[["stops", "leaves"]])  # Polars makes one array of numbers of both
    fitted = classifier(epochs=1).fit(frame, Y)
    assert fitted.columns_ is not None
    assert list(fitted.feature_names_in_) == ["stops", "leaves"]
    with pytest.raises(UserError, match="column 'spot' of the table has values of type struct"):
        classifier().fit(convert(X[["stops"]].assign(spot=[{"x": 1}] * len(X))), Y)


@pytest.mark.parametrize("given", [X.to_numpy(), X[:3].values.tolist(), None, {"stops": 1}])
def test_other_objects_than_frames_are_refused_with_the_names_of_columns(fitted: Classifier, given: Any) -> None:
    refused(lambda: fitted.predict(given), "was fitted to a data", "give a data")


def test_further_records_go_by_name(fitted: Classifier) -> None:
    other = clone(fitted).fit(X, Y, validation_data=(X[X.columns[::-1]], Y), sample_weight=np.ones(len(X)))
    assert other.history_[-1]["val_accuracy"] > 0.95
    columns = other.columns_
    other.partial_fit(X[X.columns[::-1]][::2], Y[::2])
    assert other.columns_ is columns
    assert Regressor(random_state=0).fit(X, X.distance.fillna(0)).score(X, X.distance.fillna(0)) > 0.7


def test_a_frame_of_numbers_is_an_array() -> None:
    numbers = X[["stops", "is_full"]]
    frame, array = classifier().fit(numbers, Y), classifier().fit(numbers.to_numpy(np.float64), Y)
    assert frame.columns_ is None
    np.testing.assert_array_equal(frame.params_["fc1_weight"], array.params_["fc1_weight"])
    for convert in (pandas.DataFrame, in_arrow, in_polars):
        with pytest.raises(UserError, match="column 'stops' of X has missing values, but no column had any in fit; f"):
            frame.predict(convert(numbers.assign(stops=numbers.stops.where(numbers.stops > 0))))
        with pytest.raises(UserError, match="column 'stops' of X has texts, not numbers"):
            frame.predict(convert(numbers.assign(stops="three")))
        with pytest.raises(UserError, match="column 'leaves' of y has dtype datetime64.*, not numbers"):
            Regressor().fit(numbers, convert(X[["stops", "leaves"]]))


def test_a_net_of_the_user_takes_the_records_of_a_frame() -> None:
    right, wrong = (nn.Sequential([nn.Input(width), nn.Dense(2)]) for width in (11, 13))
    for net in (right, wrong):
        net.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    assert Classifier(net=right, random_state=0).fit(X, Y).predict(X).shape == (len(X),)
    refused(lambda: Classifier(net=wrong, random_state=0).fit(X, Y), r"records have shape \(11,\)")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"distance": np.inf}, "infinity in record 0, column 'distance'"),
        ({"distance": "far"}, "column 'distance' of the table has texts, but numbers in the records of training"),
    ],
)
def test_bad_records_are_refused(fitted: Classifier, changed: Any, message: str) -> None:
    assert set(fitted.predict(X.assign(carrier="a new one"))) <= {"yes", "no"}
    refused(lambda: fitted.predict(X.assign(**changed)), message)


@pytest.mark.parametrize(
    ("cls", "x", "y", "message"),
    [
        (Classifier, X[:0], Y[:0], "has no records"),
        (Classifier, X, Y[:9], r"inconsistent numbers of samples: \[600, 9\]"),
        (Classifier, X, None, "requires y to be passed"),
        (Classifier, X, "late", r"y is 'late'; give the labels of all records, such as frame\['late'\]"),
        (Classifier, "flights.parquet", Y, "X is 'flights.parquet', a path; give an array or a data frame"),
        (Classifier, X, np.full(len(X), np.nan), "y has no label in record 0; leave such records out"),
        (Regressor, X, Y, "y has texts, not numbers"),
        (Transformer, X, None, "take numbers, but the table has categories: carrier"),
        (Classifier, X.assign(stops=[1, "one"] * 300), Y, "column 'stops' .* has values of several kinds"),
    ],
)
def test_bad_input_of_fit_is_refused(cls: Any, x: Any, y: Any, message: str) -> None:
    refused(lambda: cls(epochs=1).fit(x, y), message, error=ValueError)


def test_records_of_one_class_are_of_that_class() -> None:
    assert set(classifier().fit(X, ["late"] * len(X)).predict(X)) == {"late"}


def test_names_that_are_twice_and_settings_that_are_none_are_refused_whatever_the_frame() -> None:
    numbers = X[["distance", "distance"]]
    refused(lambda: classifier().fit(numbers, Y), "'distance'", "give each its")
    for name, value in {"n_iter_no_change": 0, "validation_fraction": 50, "tol": -1}.items():  # of the few records too
        with pytest.raises(UserError, match=f"{name} is {value}; give"):
            classifier(**{name: value}).fit(X, Y)


def test_weights_of_classes_may_be_a_series() -> None:
    weights = {label: 1.0 + number for number, label in enumerate(sorted(set(Y)))}
    by_name, by_series = (
        classifier(epochs=1, class_weight=given).fit(X, Y) for given in (weights, pandas.Series(weights)[::-1])
    )
    np.testing.assert_array_equal(by_name.predict_proba(X), by_series.predict_proba(X))
