"""JoinedParams, several small params that an updater changes as one array."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.net import Param
from dsinga.training.updater import Updater

LARGEST = 1 << 14  # numbers of a joined param; a call takes as long as an update of about so many


class JoinedParams:
    """Several small params that an updater changes as one array, in the time of one of them, and their state.

    The formulas are elementwise, so that each param gets the bits that it would get alone.

    Args:
        updater: the updater of all these params.
        sizes: the number of elements of each param, by name.
    """

    def __init__(self, updater: Updater, sizes: Mapping[str, int]):
        self._updater, self._names = updater, list(sizes)
        bounds = np.cumsum([0, *sizes.values()]).tolist()
        self._slices = [slice(start, stop) for start, stop in pairwise(bounds)]
        self._state = updater.initial_state(np.zeros(bounds[-1], np.float32))
        self._views = [{slot: array[part] for slot, array in self._state.items()} for part in self._slices]

    def join(self, arrays: Mapping[str, Any]) -> np.ndarray:
        """Return the arrays of these params, such as their gradients, as a new one."""
        return np.concatenate([arrays[name].reshape(-1) for name in self._names])

    def update(
        self,
        step: int,
        params: Mapping[str, np.ndarray],
        gradient: np.ndarray,
        state: MutableMapping[str, dict[str, np.ndarray]],
    ) -> None:
        """Change the params by the joined gradient, and their ``state`` by name and slot, whose memory is kept here."""
        for name, views in zip(self._names, self._views, strict=True):
            slots = state.get(name)
            if slots is not views:
                if slots is None:
                    slots = self._updater.initial_state(params[name].reshape(-1))
                for slot, view in views.items():  # also after a restore
                    view[:] = slots[slot]
                state[name] = views
        value = self.join(params)
        self._updater.update(step, value, gradient, self._state)
        for name, part in zip(self._names, self._slices, strict=True):
            params[name].reshape(-1)[:] = value[part]


def joinable(updater: Updater, param: Param) -> bool:
    """Whether a param may be changed as a part of a larger array, and is small enough to gain by it."""
    return (
        param.trainable
        and param.size <= LARGEST
        and param.lr_scale == param.wd_scale == 1.0
        and not updater.conf.clip_norm
        and not updater.whole
        and type(updater).update is Updater.update
    )
