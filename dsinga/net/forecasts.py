"""What the predictions mean that a loss of a net takes, where these are several numbers for each number."""

from __future__ import annotations

from dsinga.job import LayerConf
from dsinga.layers.losses.forecast_forms import ForecastForm, form_of
from dsinga.layers.losses.forecast_loss import ForecastLoss
from dsinga.net.layer_classes import layer_class


def forecast_form(conf: LayerConf) -> ForecastForm | None:
    """Return the form of the predictions that a loss takes, None for a layer that takes one number for each."""
    cls = layer_class(conf)
    if not issubclass(cls, ForecastLoss) or cls.Conf is None:
        return None
    return form_of(conf.settings_of(cls.Conf))
