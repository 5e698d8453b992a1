"""The message ``extension { ... }`` of a job: what a training loop does besides training. Not in SINGA."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from dsinga.job.component import Component, component_settings
from dsinga.job.enums import ExtensionType
from dsinga.job.limits import Count, Natural
from dsinga.job.message import field_types, set_fields
from dsinga.registry import nearest


class ExtensionConf(Component):
    """An extension of the training loop: a built-in one by its ``type``, or ``user_type`` names a registered one.

    The settings of its type are fields, too. ``freq`` and ``after`` say every how many steps a user's extension runs,
    and from which step on.
    """

    kind: ClassVar = "extension"
    flat: ClassVar = True

    type: ExtensionType = ExtensionType.kUserExtension
    user_type: str | None = None
    freq: Count | None = None
    after: Natural | None = None
    extensions: dict[str, Any] = field(default_factory=dict)


def check_extension(conf: ExtensionConf) -> None:
    """Raise JobError for fields that contradict each other or have no effect on an extension of this type."""
    settings = dict(component_settings("extension")).get(conf.type_name)
    if settings is not None:
        known = [*field_types(settings), *(("freq", "after", "extensions") if conf.type.is_user else ())]
        for name in set_fields(conf):
            if name not in ("type", "user_type", *known):
                hint = nearest(name, known) or f"; it has {', '.join(known)}"
                raise conf.error(f"extension {conf.type_name} has no field {name!r}{hint}", name)
    if conf.after is not None and conf.freq is None:
        raise conf.error("after has no effect without freq; give freq: every how many steps it runs", "after")
