"""The estimators pass the checks of scikit-learn, all of them."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsinga.estimators import Classifier, Regressor, Transformer

pytestmark = pytest.mark.ci


QUANTILES = Regressor(loss="quantile", epochs=20)


@parametrize_with_checks(
    [Classifier(), Regressor(), QUANTILES, Transformer(epochs=2), Transformer(method="rbm", epochs=2)]
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
