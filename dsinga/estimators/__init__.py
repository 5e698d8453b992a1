"""scikit-learn estimators that train neural nets: classifier, regressor and transformer, for numpy and dask arrays.

They need scikit-learn: ``pip install 'dsinga[estimators]'``.
"""

from dsinga.base.arguments import missing_names
from dsinga.base.errors import UserError

try:
    import sklearn
except ImportError as error:
    raise UserError("dsinga.estimators needs scikit-learn: pip install 'dsinga[estimators]'") from error

from dsinga.estimators.classifier import Classifier
from dsinga.estimators.regressor import Regressor
from dsinga.estimators.saving import load
from dsinga.estimators.transformer import Transformer

__all__ = ["Classifier", "Regressor", "Transformer", "load"]

INSTEAD = {
    **{f"{name}Classifier": "write Classifier(net=model)" for name in ("MLP", "NeuralNet", "Keras", "XGB", "LGBM")},
    **{f"{name}Regressor": "write Regressor(net=model)" for name in ("MLP", "NeuralNet", "Keras", "XGB", "LGBM")},
}
__getattr__ = missing_names(__name__, __all__, instead=INSTEAD)


def __dir__() -> list[str]:
    return [*__all__]
