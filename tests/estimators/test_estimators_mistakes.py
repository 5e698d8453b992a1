"""What a beginner does wrong with estimators is answered with the line to write."""

import numpy as np
import pytest

from dsinga.estimators import Classifier, Regressor
from tests.support.refusals import check_refusal, refusal

X = np.random.default_rng(0).normal(size=(40, 4))
Y = (X[:, 0] > 0).astype(int)
GAPS = np.where(X > 2, np.nan, X)
GAPS[0, 0] = np.nan
TEXTS = np.where(np.arange(40) == 5, None, np.where(Y, "yes", "no"))
COMMAS = np.array(["0,13"] * 39 + ["0.5"])


def partly():
    return Classifier().partial_fit(X, Y)


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
        refusal(lambda: Classifier().fit(X, TEXTS), "no label in record 5", "X[pandas.notna(y)], y[pandas.notna(y)]"),
        refusal(lambda: partly().partial_fit(X, Y + 1), "y has the class 2", "(0, 1)", "X, y, classes=[0, 1, 2])"),
        refusal(
            lambda: Regressor().fit(X, COMMAS), "y has texts, such as '0,13'", "pandas.read_csv(path, decimal=',')"
        ),
        refusal(lambda: Regressor().fit(X, COMMAS[::-1]), "y has texts, such as '0.5'", "y.astype(float)"),
        refusal(lambda: Regressor().predict_proba(X), "Regressor has no", ".predict_interval(X)", error=AttributeError),
        refusal(lambda: Classifier().load("c"), "no 'load'", "dsinga.estimators.load(folder)", error=AttributeError),
        refusal(lambda: Classifier().set_params(lr=0.1), "'lr'", "learning_rate"),
    ],
)
def test_a_mistake_has_a_remedy(call, words, error, request):
    check_refusal(call, words, error, request)
