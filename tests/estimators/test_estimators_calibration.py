"""Calibration by a temperature: the best one for the validation records, beside scikit-learn's, and in an estimator."""

from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.metrics import log_loss

from dsinga.estimators import Classifier
from dsinga.estimators.calibration import find_temperature
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(300, 3)) * 3
CODES = (SCORES + RNG.gumbel(size=SCORES.shape) * 2).argmax(axis=1)  # as if the temperature were 2
X = RNG.normal(size=(400, 4))
Y = np.array(["a", "b", "c"])[(X[:, :3] + RNG.gumbel(size=(400, 3))).argmax(axis=1)]


def loss(scores: np.ndarray, targets: np.ndarray, temperature: float) -> float:
    """Return the summed log loss of classes, or of labels."""
    scores = scores / temperature
    if targets.ndim == 2:
        return float(np.logaddexp(0, np.where(targets > 0, -scores, scores)).sum())
    return float((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), targets]).sum())


@pytest.mark.parametrize("targets", [CODES, np.eye(3, dtype=int)[CODES]])
def test_no_other_temperature_has_a_lower_log_loss(targets: np.ndarray) -> None:
    found = find_temperature(SCORES, targets)
    assert found > 1
    for other in (1.0, found * 0.999, found * 1.001, 0.5, 5.0):
        assert loss(SCORES, targets, found) <= loss(SCORES, targets, other)
    if targets.ndim == 1:
        assert found == pytest.approx(2, rel=0.2)


def test_calibrated_scores_have_the_temperature_1() -> None:
    probabilities = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
    codes = np.tile(np.arange(3), len(SCORES))  # each record once for each class, weighed by its probability
    scores, weights = np.repeat(SCORES, 3, axis=0), probabilities.ravel()
    assert find_temperature(scores, codes, weights) == pytest.approx(1, abs=1e-12)
    assert find_temperature(scores / 3, codes, weights) == pytest.approx(1 / 3, rel=0.02)  # but for about one mistake
    assert find_temperature(3 * scores, codes, weights) == pytest.approx(3, abs=1e-12)


def test_scores_without_a_mistake_become_as_sure_as_their_number_allows() -> None:
    codes = SCORES.argmax(axis=1)
    few, many = find_temperature(SCORES[:20], codes[:20]), find_temperature(SCORES, codes)
    assert 1 / 16 < many < few <= 1
    assert loss(SCORES, codes, many) < loss(SCORES, codes, 1)
    assert find_temperature(SCORES, SCORES.argmin(axis=1)) == pytest.approx(16)
    assert find_temperature(SCORES[:, :1], 0 * codes) == 1  # one class


def test_it_is_that_of_scikit_learn() -> None:
    if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8):
        pytest.skip("scikit-learn has no calibration by temperature")
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    classifier = Classifier(epochs=30, random_state=0).fit(X[:200], Y[:200])
    codes = np.searchsorted(classifier.classes_, Y[200:])
    found = find_temperature(classifier.decision_function(X[200:]), codes)
    peer = CalibratedClassifierCV(FrozenEstimator(classifier), method="temperature").fit(X[200:], Y[200:])
    expected = peer.predict_proba(X)
    classifier.temperature_ = found
    np.testing.assert_allclose(classifier.predict_proba(X), expected, atol=1e-4)


def test_an_estimator_is_calibrated_by_its_validation_records(tmp_path: Any) -> None:
    known, held_out = (X[:200], Y[:200]), (X[200:], Y[200:])
    plain, calibrated = (
        Classifier(epochs=30, random_state=0, calibrate=calibrate).fit(*known, validation_data=held_out)
        for calibrate in (False, True)
    )
    assert plain.temperature_ == 1 < calibrated.temperature_
    assert log_loss(Y[200:], calibrated.predict_proba(X[200:])) < log_loss(Y[200:], plain.predict_proba(X[200:]))
    np.testing.assert_array_equal(calibrated.predict(X), plain.predict(X))
    np.testing.assert_allclose(np.exp(calibrated.predict_log_proba(X)), calibrated.predict_proba(X))
    calibrated.partial_fit(*known)
    assert calibrated.temperature_ > 1
    calibrated.save(tmp_path / "saved")
    assert type(calibrated).fit(calibrated, *known).temperature_ != 1  # by a tenth of the records


def test_other_words_than_true_false_and_auto_are_refused() -> None:
    refused(lambda: Classifier(calibrate="yes").fit(X, Y), "'yes'", "give True, False")
