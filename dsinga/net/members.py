"""Members of an ensemble by dropout: a job whose net drops the same units in each forward pass."""

from __future__ import annotations

from dsinga.base.errors import UserError
from dsinga.job import Job
from dsinga.job.enums import LayerType
from dsinga.net.layer_classes import layer_class


def with_member(job: Job, member: int) -> Job:
    """Return the job whose dropout layers drop the units of a member, 1 or more, in all phases but training.

    Raises UserError for a net without dropout.
    """
    layers = []
    for conf in job.neuralnet.layer:
        if conf.type is LayerType.kDropout:
            settings = conf.settings_of(layer_class(conf).Conf)
            conf = conf.replace(dropout_conf=settings.replace(member=member))
        layers.append(conf)
    if not any(conf.type is LayerType.kDropout and conf.dropout_conf.dropout_ratio for conf in layers):
        raise UserError(
            "members differ by the units that are dropped, but the net has no dropout; train it with nn.Dropout, or "
            "predict by several nets, and join these along a new dimension"
        )
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))
