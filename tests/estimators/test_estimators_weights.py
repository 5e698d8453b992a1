"""Weights of records and classes in estimators, and their scores and curves, against scikit-learn."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.utils.class_weight import compute_class_weight

from dsinga.estimators import Classifier, Regressor, load
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
Y = RNG.integers(3, size=60)
X = (RNG.normal(size=(60, 4)) + Y[:, None]).astype(np.float32)
W = RNG.random(60).astype(np.float32) * 3


@pytest.mark.parametrize("lazy", [False, True], ids=["estimator", "lazy estimator"])
def test_balanced_weights_are_those_of_scikit_learn(lazy: bool, threads: Client) -> None:
    y = np.where(Y == 2, 1, Y)  # twice as many of class 1
    balanced = compute_class_weight("balanced", classes=np.unique(y), y=y)
    x, labels, weights, options = X, y, balanced[y], {}
    if lazy:
        x, labels, weights = (da.from_array(array, chunks=(30, *array.shape[1:])) for array in (x, y, weights))
        options = {"client": threads}
    settings: dict[str, Any] = {"random_state": 0, "epochs": 2, "batchsize": 20}
    one = Classifier(class_weight="balanced", **settings).fit(x, labels, **options)
    other = Classifier(**settings).fit(x, labels, sample_weight=weights, **options)
    for name, array in one.params_.items():
        np.testing.assert_allclose(array, other.params_[name], rtol=1e-4, atol=1e-6)
    lacking = Classifier(class_weight={0: 2.0, 1: 1.0, 5: 3.0}, **settings).fit(x, labels, **options)
    assert set(lacking.predict(X)) <= {0, 1}


def test_estimators_take_weights_of_validation_records_and_workers(threads: Client) -> None:
    settings: dict[str, Any] = {"random_state": 0, "epochs": 2, "batchsize": 20}
    for cls, y in ((Classifier, Y), (Regressor, X[:, 0])):
        plain = cls(**settings).fit(X, y, validation_data=(X[:20], y[:20]))
        weighted = cls(**settings).fit(X, y, validation_data=(X[:20], y[:20], W[:20]))
        assert_same(plain.params_, weighted.params_)
        assert plain.history_[-1]["val_loss"] != weighted.history_[-1]["val_loss"]
    p = weighted.predict(X[:20]).astype(np.float64)
    loss = np.average(((p - y[:20]) / y.std()) ** 2, weights=W[:20])
    assert weighted.history_[-1]["val_loss"] == pytest.approx(loss, rel=1e-3)
    here = Classifier(workers=2, **settings).fit(X, Y)
    there = Classifier(workers=2, **settings).fit(X, Y, client=threads)
    assert_same(here.params_, there.params_)


def test_estimators_have_the_scores_and_curves_of_scikit_learn(tmp_path: Any) -> None:
    for y in (Y, (Y > 0).astype(int), np.stack([Y > 0, Y > 1], axis=1).astype(int)):
        classifier = Classifier(random_state=0, epochs=3).fit(X, y)
        np.testing.assert_allclose(classifier.predict_log_proba(X), np.log(classifier.predict_proba(X)), atol=1e-9)
        scores = classifier.decision_function(X)
        if scores.ndim == 1 or y.ndim == 2:
            np.testing.assert_array_equal(classifier.predict(X), (scores > 0).astype(int))
        else:
            np.testing.assert_array_equal(classifier.predict(X), scores.argmax(axis=1))
        assert classifier.n_iter_ == 3
        assert classifier.loss_curve_ == classifier.history_[:, "loss"]
    assert not hasattr(Classifier(), "n_iter_")
    assert not hasattr(Classifier(), "loss_curve_")
    weighted = Classifier(random_state=0, epochs=1, class_weight={0: 2.0, 1: 1.0}, workers=1).fit(
        X, (Y > 0).astype(int)
    )
    weighted.save(tmp_path / "saved")
    assert load(tmp_path / "saved").get_params() == weighted.get_params()
    with pytest.raises(ValueError, match="'balanced' needs all records, which partial_fit does not see"):
        Classifier(class_weight="balanced").partial_fit(X, Y)
