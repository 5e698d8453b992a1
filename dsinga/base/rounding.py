"""Says, once for each array, that float32 rounds its integers: from 2^24 on, different ones become equal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable

import numpy as np

EXACT = 1 << 24  # up to which float32 has all integers
logger = logging.getLogger(__name__)
_said: set[Hashable] = set()
_lock = threading.Lock()


def warn_of_rounding(numbers: np.ndarray, key: Hashable, name: Callable[[tuple[int, ...]], str]) -> None:
    """Log a warning where integers, that become float32, are rounded; one for each ``key`` in a process.

    ``name`` returns what the array, and the place of a number in it, is called.
    """
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
