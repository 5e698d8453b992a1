"""scikit-learn estimators: classification, regression and features, on numpy arrays here or dask arrays on a cluster.

They need scikit-learn: ``pip install 'dsinga[estimators]'``.
"""

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
