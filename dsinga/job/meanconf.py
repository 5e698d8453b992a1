"""The schema of server groups that agree by the mean of their changes: ``mean_conf { }`` of a cluster. Not in SINGA."""

from __future__ import annotations

from dataclasses import field

from dsinga.job.enums import ChangeMethod, Compression, UpdaterType
from dsinga.job.limits import Count, Natural, NonNegative, Share
from dsinga.job.message import Message
from dsinga.job.updaterconf import LRGenConf, UpdaterConf


def outer_nesterov() -> UpdaterConf:
    """Return the outer updater of DiLoCo: Nesterov's momentum of 0.9 at a rate of 0.7 (arXiv 2311.08105, table 5)."""
    rate = LRGenConf(type=ChangeMethod.kFixed, base_lr=0.7)
    return UpdaterConf(type=UpdaterType.kNesterov, learning_rate=rate, momentum=0.9)


class MeanConf(Message):
    """How server groups agree by the mean of their changes, where the cluster has ``sync_method: kMean``.

    Every ``sync_freq`` steps the mean of what the groups have changed since the last time, with the sign of a gradient,
    is the gradient of ``updater``, which changes the outer values. Each group goes on from these, and keeps the state
    of the job's own updater. Schedules of ``updater`` count these outer steps.

    ``weight`` has a number for each server group, in proportion to which its changes count (default: all the same).
    Up to step ``every_step_until`` groups agree after every step. ``mixing`` is the share of its own values that a
    group keeps. ``compression`` is that of the changes: kNone, kBF16, kInt8 or kInt4. With several ``fragments`` the
    slices of the params agree in turn, a fragment every ``sync_freq`` / ``fragments`` steps. Changes are applied
    ``delay`` steps after they were made, and are sent meanwhile. ``asynchronous`` groups do not wait for each other:
    the change of a group that is a agreements late counts 1 / √(1 + a) times, and not at all if a is more than
    ``max_age``. ``site`` is a pattern for each group, such as ``10.0.1.*``, of the hosts, names, addresses or resources
    of its Dask workers (default: a host each).
    """

    updater: UpdaterConf = field(default_factory=outer_nesterov)
    weight: list[NonNegative] = field(default_factory=list)
    every_step_until: Natural = 0
    mixing: Share = 0.0
    compression: Compression = Compression.kNone
    fragments: Count = 1
    delay: Natural = 0
    asynchronous: bool = False
    max_age: Natural = 8
    site: list[str] = field(default_factory=list)
