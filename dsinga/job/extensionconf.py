"""The message ``extension { ... }`` of a job: what a training loop does besides training. Not in SINGA."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, ClassVar

from dsinga.job.component import Component
from dsinga.job.enums import ExtensionType, MonitorMode
from dsinga.job.limits import Count, Natural, NonNegative, Positive, Range
from dsinga.job.message import set_fields
from dsinga.registry import nearest


class ExtensionConf(Component):
    """An extension of the training loop: a built-in one by its ``type``, or ``user_type`` names a registered one.

    A field that is not given has the default that ``dsinga.extensions`` documents for the type.

    ``monitor`` is a metric of a phase, as in "val/loss"; ``mode`` says whether lower or higher values of it are better,
    and ``min_delta`` by how much a value must be better to count. ``patience`` counts values without improvement.
    ``factor``, ``min_factor`` and ``cooldown`` are for kReduceOnPlateau, ``seconds`` and ``time`` (as in "2h") for
    kStopOnTime. ``path`` is the file of kCSV, ``folder`` and ``histogram_freq`` are for kTensorBoard, ``uri``,
    ``experiment`` and ``run_name`` for kMLflow. ``freq`` and ``after`` say every how many steps a user's extension
    runs, and from which step on.
    """

    kind: ClassVar = "extension"
    flat: ClassVar = True

    type: ExtensionType = ExtensionType.kUserExtension
    user_type: str | None = None
    monitor: str | None = None
    mode: MonitorMode | None = None
    patience: Count | None = None
    min_delta: NonNegative | None = None
    factor: Annotated[float, Range(0, 1, open_low=True, open_high=True)] | None = None
    min_factor: NonNegative | None = None
    cooldown: Natural | None = None
    seconds: Positive | None = None
    time: str | None = None
    path: str | None = None
    folder: str | None = None
    histogram_freq: Natural | None = None
    uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    freq: Count | None = None
    after: Natural | None = None
    extensions: dict[str, Any] = field(default_factory=dict)


# The fields that have a meaning for each built-in type; a user's own class may read any of them.
FIELDS: dict[str, tuple[str, ...]] = {
    "kEarlyStopping": ("monitor", "mode", "patience", "min_delta"),
    "kKeepBest": ("monitor", "mode", "min_delta"),
    "kReduceOnPlateau": (
        "monitor", "mode", "patience", "min_delta", "factor", "min_factor", "cooldown",
    ),
    "kStopOnTime": ("seconds", "time"),
    "kCSV": ("path",),
    "kTensorBoard": ("folder", "histogram_freq"),
    "kMLflow": ("uri", "experiment", "run_name"),
}  # fmt: skip


def check_extension(conf: ExtensionConf) -> None:
    """Raise JobError for fields that contradict each other or have no effect on an extension of this type."""
    known = FIELDS.get(conf.type, ())
    for name in set_fields(conf):
        if known and name not in ("type", "user_type", *known):
            hint = nearest(name, known) or f"; it has {', '.join(known)}"
            raise conf.error(f"extension {conf.type.name} has no field {name!r}{hint}", name)
    if conf.type is ExtensionType.kStopOnTime and (conf.seconds is None) == (conf.time is None):
        raise conf.error('extension kStopOnTime needs either seconds, as in seconds: 7200, or time, as in time: "2h"')
    if conf.after is not None and conf.freq is None:
        raise conf.error("after has no effect without freq; give freq: every how many steps it runs", "after")
