"""Reads dsinga's settings from Dask's configuration, and names the source of a wrong one.

Defaults are in dsinga.yaml; types, ranges and meanings in dsinga-schema.yaml.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dask.config
import yaml
from dask.utils import parse_timedelta

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest

TYPES = {"string": (str, os.PathLike), "number": (int, float), "boolean": (bool,), "null": (type(None),)}


def read_setting(name: str) -> Any:
    """Return a setting, ``dsinga.<name>`` in Dask's configuration: a time in seconds, else its value.

    Raises UserError for any wrong setting, with its environment variable or file.
    """
    configured = _configured()
    for key, value in configured.items():
        _check(key, value)
    value = configured.get(name, defaults()[name])
    if "unit" in schema()[name]:
        return math.inf if value is None else float(parse_timedelta(value))
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@functools.cache
def schema() -> dict[str, dict[str, Any]]:
    """Return the type, range and meaning of each setting, by name."""
    properties: dict[str, dict[str, Any]] = _load("dsinga-schema.yaml")["properties"]["dsinga"]["properties"]
    return properties


@functools.cache
def defaults() -> dict[str, Any]:
    """Return the default of each setting, by name."""
    values: dict[str, Any] = _load("dsinga.yaml")["dsinga"]
    return values


def variable(name: str) -> str:
    """Return the environment variable that sets ``dsinga.<name>``."""
    return f"DASK_DSINGA__{name.upper().replace('-', '_')}"


def _load(file: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def _configured() -> dict[str, Any]:
    for key in dask.config.config:
        if key.replace("-", "_").startswith("dsinga_"):
            name = key.replace("-", "_").removeprefix("dsinga_")
            raise UserError(
                f"Dask's configuration has {key!r}, which sets nothing; to set dsinga.{name} in the environment, write "
                f"{variable(name)}, with two underscores after DSINGA"
            )
    settings = dask.config.get("dsinga", None)
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise UserError(
            f"Dask's configuration has {settings!r} in place of the settings dsinga.{', dsinga.'.join(schema())}; set "
            f"one of these, as in {variable('timeout')}=30s"
        )
    return {str(key).replace("-", "_"): value for key, value in settings.items()}


def _check(name: str, value: Any) -> None:
    if name not in schema():
        hint = nearest(name, schema()).replace("'", "").replace("mean ", "mean dsinga.")
        known = "" if hint else f"; there are dsinga.{', dsinga.'.join(schema())}"
        raise UserError(f"there is no setting dsinga.{name} ({_origin(name, value)}){hint or known}")
    if not _is_allowed(value, schema()[name]):
        raise UserError(f"the setting dsinga.{name} is {value!r} ({_origin(name, value)}); give {_allowed(name)}")


def _is_allowed(value: Any, rule: Mapping[str, Any]) -> bool:
    types = _types(rule)
    if isinstance(value, bool):  # which Python counts as a number
        return "boolean" in types
    if not isinstance(value, tuple(kind for name in types for kind in TYPES[name])):
        return False
    if "unit" in rule and isinstance(value, (str, int, float)):
        try:
            return bool(parse_timedelta(value) > rule["exclusiveMinimum"])
        except (ValueError, KeyError, IndexError, OverflowError):
            return False
    if "maximum" in rule:
        return bool(rule["minimum"] <= value <= rule["maximum"])
    return value in rule.get("enum", (value,))


def _allowed(name: str) -> str:
    rule = schema()[name]
    if "enum" in rule:
        return " or ".join([", ".join(rule["enum"][:-1]), rule["enum"][-1]])
    if "boolean" in _types(rule):
        return "true or false"
    if "maximum" in rule:
        return f"a number from {rule['minimum']} to {rule['maximum']}"
    example = f", such as {rule['examples'][0]!r}"
    kind = f"a time above 0{example}" if "unit" in rule else f"a text{example}"
    return kind + (", or null" if "null" in _types(rule) else "")


def _types(rule: Mapping[str, Any]) -> list[str]:
    return [rule["type"]] if isinstance(rule["type"], str) else rule["type"]


def _origin(name: str, value: Any) -> str:
    text = os.environ.get(variable(name))
    if text is not None and dask.config.interpret_value(text) == value:
        return f"from the environment variable {variable(name)}"
    files = [file for file, settings in _files() if settings.get(name, _ABSENT) == value]
    return f"from {files[-1]}" if files else "set in Python, as by dask.config.set"


_ABSENT = object()


def _files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield Dask's configuration files with dsinga's settings in each, the more important later."""
    for path, content in dask.config.collect_yaml(dask.config.paths, return_paths=True):
        settings = content.get("dsinga") if isinstance(content, Mapping) else None
        if isinstance(settings, Mapping):
            yield str(path), {str(key).replace("-", "_"): value for key, value in settings.items()}


dask.config.update_defaults({"dsinga": defaults()})
