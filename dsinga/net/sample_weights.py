"""Weights of rows in training: a further input layer, which losses take as their last source."""

from __future__ import annotations

from dsinga.job import LayerConf
from dsinga.net.layer_classes import layer_class

SAMPLE_WEIGHT = "sample_weight"  # the name of the input layer of the weights


def takes_weights(loss: LayerConf) -> bool:
    """Whether a loss layer can take the weights of rows."""
    cls = layer_class(loss)
    return cls.optional_sources > 0 and not cls.source_kind.over_steps  # a kCTCLoss takes lengths of sequences there


def weighted_loss(loss: LayerConf) -> LayerConf:
    """Return a loss layer that takes the weights of rows, too. Raises JobError for one that cannot."""
    if not takes_weights(loss):
        text = f"the loss {loss.name!r} ({loss.type_name}) takes no weights of records; leave sample_weight out"
        raise loss.error(text, "type")
    return loss.replace(srclayers=[*loss.srclayers, SAMPLE_WEIGHT])
