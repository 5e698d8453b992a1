"""Looks up the class of a layer by the type that the job gives it."""

from __future__ import annotations

import dsinga.layers  # noqa: F401  registers the built-in layers
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job import LayerConf, LayerType
from dsinga.layers.interface.layer import Layer


def layer_class(conf: LayerConf) -> type[Layer]:
    """Return the class registered for the type of this layer; raise JobError where there is none."""
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
