"""Settings of the updater for the params whose names match a pattern: cxxnet's settings by tag."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from dsinga.job import ParamSettingsConf, UpdaterConf
from dsinga.job.writer import lines, message_fields
from dsinga.registry import nearest

NAMES = ("learning_rate", "momentum", "momentum_conf", "weight_decay", "clip_low", "clip_high", "clip_norm")


def with_settings(conf: UpdaterConf, settings: ParamSettingsConf) -> UpdaterConf:
    """Return the updater as it is for the params that ``settings`` match; raise JobError where these contradict."""
    if settings.base_lr is not None and settings.learning_rate is not None:
        raise settings.error("gives base_lr and learning_rate: put base_lr into learning_rate", "base_lr")
    changes = {name: value for name in NAMES if (value := getattr(settings, name)) is not None}
    if settings.base_lr is not None:
        changes["learning_rate"] = conf.learning_rate.replace(base_lr=settings.base_lr)
    if settings.momentum is not None:
        changes.setdefault("momentum_conf", None)
    elif settings.momentum_conf is not None:
        changes["momentum"] = 0.0
    if settings.clip_norm:
        changes = {"clip_low": 0.0, "clip_high": 0.0} | changes
    elif settings.clip_low is not None or settings.clip_high is not None:
        changes = {"clip_norm": 0.0} | changes
    return conf.replace(param_settings=[], **changes)


def check_patterns(conf: UpdaterConf, params: Collection[str]) -> None:
    """Raise JobError for a pattern that matches none of these params, with the names that are nearest to it."""
    for settings in conf.param_settings:
        if not any(fnmatchcase(param, settings.match) for param in params):
            advice = nearest(settings.match.strip("*"), params) or f"; the first are {', '.join(sorted(params)[:5])}"
            raise settings.error(f"match: {settings.match!r} matches the name of no param{advice}", "match")


def describe_settings(conf: UpdaterConf, params: Collection[str]) -> list[str]:
    """Return a line for each of the updater's param_settings: the params for which it holds, and what it sets."""
    left, described = list(params), []
    for settings in conf.param_settings:
        matched = [param for param in left if fnmatchcase(param, settings.match)]
        left = [param for param in left if param not in matched]
        values = " ".join(lines(item for item in message_fields(settings) if item[0] != "match"))
        described.append(f"{settings.match}: {values}; holds for {' '.join(matched) or 'no param'}")
    return described
