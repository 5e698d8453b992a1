"""Finds layers' classes; gives losses weights, and dropout its members."""

from __future__ import annotations

from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job import Job, LayerConf, LayerType
from dsinga.job.message import set_fields
from dsinga.layers.interface.layer import Layer
from dsinga.layers.losses.pair_loss import PairLoss


def layer_class(conf: LayerConf) -> type[Layer]:
    """Return the class of a layer, by its type in the job; raise JobError without one."""
    if conf.type is LayerType.kUserLayer and not conf.user_type:
        raise conf.error(f"layer {conf.name!r} has no type; set type, or user_type to a registered name")
    try:
        cls = lookup("layer", conf.type_name)
    except UserError as error:
        raise conf.error(f"layer {conf.name!r}: {error}", "user_type") from None
    if not (isinstance(cls, type) and issubclass(cls, Layer)):
        text = f"layer {conf.name!r}: {conf.type_name!r} must be registered with a subclass of dsinga.layers.Layer"
        raise conf.error(f"{text}, not {cls!r}", "user_type")
    return cls


def forecast_form(conf: LayerConf) -> Any:
    """Return what a loss layer predicts, such as a distribution; None for one number per target number."""
    cls = layer_class(conf)
    if not issubclass(cls, PairLoss) or cls.Conf is None:
        return None
    return cls.forecast_form(set_fields(conf.settings_of(cls.Conf)))


SAMPLE_WEIGHT = "sample_weight"  # the name of the input layer of the weights


def takes_weights(loss: LayerConf) -> bool:
    """Whether a loss layer supports weights of records."""
    cls = layer_class(loss)
    return cls.optional_sources > 0 and not cls.source_kind.over_steps  # a kCTCLoss takes lengths of sequences there


def weighted_loss(loss: LayerConf) -> LayerConf:
    """Return a loss layer that weighs records. Raises JobError if it cannot."""
    if not takes_weights(loss):
        text = f"the loss {loss.name!r} ({loss.type_name}) takes no weights of records; leave sample_weight out"
        raise loss.error(text, "type")
    return loss.replace(srclayers=[*loss.srclayers, SAMPLE_WEIGHT])


def with_member(job: Job, member: int) -> Job:
    """Return the job for one member of a dropout ensemble, which drops units in predictions, too.

    ``member`` counts from 1.
    """
    from dsinga.layers.dense.activation import Dropout

    layers, drops = [], False
    for conf in job.neuralnet.layer:
        cls = layer_class(conf)
        if issubclass(cls, Dropout):
            settings = conf.settings_of(cls.Conf)
            conf = conf.replace(dropout_conf=settings.replace(member=member))
            drops = drops or settings.dropout_ratio > 0
        layers.append(conf)
    if not drops:
        raise UserError(
            "members differ by the units that are dropped, but the net has no dropout; train it with nn.Dropout, or "
            "predict by several nets, and join these along a new dimension"
        )
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))
