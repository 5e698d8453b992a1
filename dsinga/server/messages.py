"""What partitions tell a shard besides gradients, and what a checkpoint gets from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Push(NamedTuple):
    """Whose gradients these are: partition ``partition`` of worker group ``group``, for ``step`` of ``generation``.

    With ``skip`` there are none: the step is to leave the slices as they are. All partitions of the group say so then.
    """

    generation: int
    group: int
    step: int
    partition: int
    skip: bool = False


class Snapshot(NamedTuple):
    """A copy of what a shard holds, by slice id: float32 (size,) values, and the updater's state by its names."""

    values: dict[int, np.ndarray]
    state: dict[int, dict[str, np.ndarray]]
