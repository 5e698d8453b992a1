"""The class behind the type of a layer."""

from __future__ import annotations

import dsinga.layers  # noqa: F401  registers the built-in layers
from dsinga.errors import UserError
from dsinga.job import LayerConf, LayerType
from dsinga.layers.base import Layer
from dsinga.registry import lookup


def layer_class(conf: LayerConf) -> type[Layer]:
    """Return the class registered for the type of this layer; raise JobError where there is none."""
    if conf.type is LayerType.kUserLayer and not conf.user_type:
        raise conf.error(f"layer {conf.name!r} has no type; give it one, or a user_type that is registered")
    try:
        cls = lookup("layer", conf.type_name)
    except UserError as error:
        raise conf.error(f"layer {conf.name!r}: {error}", "user_type") from None
    if not (isinstance(cls, type) and issubclass(cls, Layer)):
        where = f"layer {conf.name!r}: what is registered as {conf.type_name!r}"
        raise conf.error(f"{where} must be a subclass of dsinga.layers.Layer, not {cls!r}", "user_type")
    return cls
