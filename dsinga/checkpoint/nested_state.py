"""Nested dicts of plain values and arrays, separated into JSON data and named arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.checkpoint.tensors import Arrays

# In JSON data, the only key of an object that stands for an array; its value is the array's name.
ARRAY = "$array"


def separate_arrays(state: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """Return JSON data and arrays by name for a state: nested dicts, with string keys, of plain values and arrays.

    An array is named after its path, "KeepBest/params/w1". Raises TypeError, naming the path, for anything else.
    """
    arrays: Arrays = {}
    return _separate(state, "", arrays), arrays


def insert_arrays(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the state from its JSON data and arrays, the inverse of :func:`separate_arrays`; tuples become lists."""
    if data.keys() == {ARRAY}:
        return arrays[data[ARRAY]]  # type: ignore[return-value]
    return {key: insert_arrays(value, arrays) if isinstance(value, dict) else value for key, value in data.items()}


def _separate(value: Any, path: str, arrays: Arrays) -> Any:
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str) or key == ARRAY]
        if wrong:
            raise TypeError(f"{path or 'the state'} has the key {wrong[0]!r}; keys must be strings")
        return {key: _separate(inner, f"{path}/{key}" if path else key, arrays) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        while path in arrays:  # keys may contain the slash that separates them
            path += "'"
        arrays[path] = value
        return {ARRAY: path}
    if isinstance(value, np.generic):
        return value.item()
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{path} is neither plain data nor an array: {error}") from error
    return value
