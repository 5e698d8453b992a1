"""The header of a push to a shard, and the snapshot of a shard for a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Push(NamedTuple):
    """The header of a push: which partition of which worker group computed the gradients, in which step.

    With ``skip`` there are no gradients, and the step does not change the slices. Either all partitions of a group
    skip a step or none.
    """

    generation: int
    group: int
    step: int
    partition: int
    skip: bool = False


class Snapshot(NamedTuple):
    """A copy of a shard: by slice id the value, float32 (size,), and the updater's state arrays by name."""

    values: dict[int, np.ndarray]
    state: dict[int, dict[str, np.ndarray]]
