"""What a beginner does wrong with estimators is answered with the line to write."""

import numpy as np
import pytest

from dsinga.estimators import Classifier
from tests.support.refusals import check_refusal, refusal

X = np.random.default_rng(0).normal(size=(40, 4))
Y = (X[:, 0] > 0).astype(int)
GAPS = np.where(X > 2, np.nan, X)
GAPS[0, 0] = np.nan


@pytest.fixture(scope="module")
def fitted():
    return Classifier(epochs=1).fit(X, Y)


@pytest.mark.parametrize(
    ("call", "words", "error"),
    [
        refusal(lambda: Classifier().fit(GAPS, Y), "X contains NaN", "fit(pandas.DataFrame(X), y)"),
        refusal(lambda fitted: fitted.predict(GAPS), "X contains NaN", "pandas.DataFrame(X)"),
        refusal(lambda: Classifier().fit(X[:, 0], Y), "got 1D array", "(40,)", "X.reshape(-1, 1)"),
        refusal(lambda fitted: fitted.predict(X[:, :3]), "X has 3 features", "expecting 4"),
        refusal(lambda: Classifier().set_params(lr=0.1), "'lr'", "learning_rate"),
    ],
)
def test_a_mistake_has_a_remedy(call, words, error, request):
    check_refusal(call, words, error, request)
