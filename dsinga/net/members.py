"""Members of an ensemble by dropout: a job whose net drops the same units in each forward pass."""

from __future__ import annotations

from dsinga.base.errors import UserError
from dsinga.job import Job
from dsinga.layers.dense.activation import Dropout
from dsinga.net.layer_classes import layer_class


def with_member(job: Job, member: int) -> Job:
    """Return the job whose dropout layers drop the units of a member, 1 or more, in all phases but training.

    Raises UserError for a net without dropout.
    """
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
