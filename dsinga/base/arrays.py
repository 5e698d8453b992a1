"""Checks that arrays are finite and exact as float32; selects averages of params."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from dsinga.base.errors import UserError

ParamArrays = dict[str, np.ndarray]
"""Arrays by the names of params: values, gradients, or a slot of the updater's state."""


class NamedParams(dict[str, np.ndarray]):
    """Params with the names of the classes and columns of their training records.

    Attributes:
        names: the parts of :class:`dsinga.data.RecordNames` by input layer, as nested lists or tuples.
    """

    def __init__(self, params: Mapping[str, np.ndarray], names: Mapping[str, Any]):
        super().__init__(params)
        self.names = names


EMA_SLOT = "ema"  # of the updater's state: the exponential moving averages of params
BLOCK = 1 << 18  # elements that are looked at together: the answers for a large array take a quarter of its memory


def averaged(params: Mapping[str, np.ndarray], state: Mapping[str, Mapping[str, np.ndarray]]) -> ParamArrays:
    """Return the moving averages of params, from an updater's ``state``; params without one as they are."""
    return {name: state.get(name, {}).get(EMA_SLOT, value) for name, value in params.items()}


def first_not_finite(arrays: Mapping[str, Any]) -> str | None:
    """Return the name of the first array with NaN or infinity; None if all are finite."""
    return next((name for name in arrays if not is_finite(arrays[name])), None)


def is_finite(value: Any) -> bool:
    """Whether all numbers of an array, of several arrays, or of sparse rows are finite."""
    if isinstance(value, (tuple, list)):
        return all(map(is_finite, value))
    value = getattr(value, "values", value)
    dtype = getattr(value, "dtype", np.dtype(np.int64))
    if not (np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"):
        return True
    if type(value) is not np.ndarray or value.size <= BLOCK or not value.flags.c_contiguous:
        return bool(np.isfinite(value).all())
    flat = value.reshape(-1)
    return all(bool(np.isfinite(flat[start : start + BLOCK]).all()) for start in range(0, flat.size, BLOCK))


def refuse_nan(params: Mapping[str, Any], source: str = "") -> None:
    """Raise UserError for params with NaN, which a rectifier could hide in predictions."""
    for name, array in params.items():
        if not is_finite(array) and (places := np.argwhere(np.isnan(array))).size:
            index = tuple(map(int, places[0]))
            raise UserError(
                f"{source and f'{source}: '}the param {name!r} has NaN at index {index}: nothing can be predicted with "
                "it; take the params of an earlier checkpoint"
            )


EXACT = 1 << 24  # up to which float32 has all integers
logger = logging.getLogger(__name__)
_said: set[Hashable] = set()
_lock = threading.Lock()


def warn_of_rounding(numbers: np.ndarray, key: Hashable, name: Callable[[tuple[int, ...]], str]) -> None:
    """Log a warning, once for each ``key``, if float32 cannot hold integers exactly."""
    if numbers.dtype.kind not in "iu" or numbers.dtype.itemsize < 4 or not numbers.size or key in _said:
        return
    if numbers.max() <= EXACT and (numbers.dtype.kind == "u" or numbers.min() >= -EXACT):
        return
    is_rounded = numbers.astype(np.float32).astype(np.float64) != numbers.astype(np.float64)
    if not is_rounded.any():
        return
    with _lock:
        if key in _said:
            return
        _said.add(key)
    place = tuple(int(part) for part in np.unravel_index(int(np.argmax(is_rounded)), numbers.shape))
    logger.warning(
        "%s has integers beyond 2^24, such as %d, which float32 rounds: different ones become equal; subtract an "
        "offset, or divide, before",
        name(place),
        numbers[place],
    )
