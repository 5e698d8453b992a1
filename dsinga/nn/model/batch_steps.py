"""Training steps on single batches, in this process: what ``train_on_batch`` of a model does."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.engine.local_net import LocalNet
from dsinga.nn.model.training_state import TrainingState

# Arrays that users may keep, by their ids. They may be the params of several models, which share layers.
_of_users: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


def leave_to_user(params: Mapping[str, np.ndarray]) -> None:
    """Let steps from now on replace these arrays, rather than change them in place."""
    _of_users.update({id(array): array for array in params.values()})


class BatchSteps:
    """The net and the updater of a model between its calls of ``train_on_batch``.

    Attributes:
        net: the nets, for records of one shape.
        state: the state of the training with which the next step goes on.
    """

    def __init__(self, net: LocalNet, begin: TrainingState):
        self.net = net
        self._updater, self._params = net.updater(), dict[str, np.ndarray]()
        self._updater.steps = begin.steps
        shapes = net.net.params
        self._updater.state = {
            name: {slot: np.array(array, np.float32).reshape(-1) for slot, array in slots.items()}
            for name, slots in begin.slots.items()
            if name in shapes
        }
        self.state = begin

    def step(self, params: Mapping[str, np.ndarray], records: Any, labels: Any) -> tuple[dict[str, np.ndarray], Any]:
        """Return the params after a step on a batch, and its metrics before the step.

        Arrays that an earlier step has returned are changed in place, unless :func:`leave_to_user` was told of them.
        """
        self._params = {
            name: array if array is self._params.get(name) and id(array) not in _of_users else array.copy()
            for name, array in params.items()
        }
        gradients, metrics = self.net.backward(self._params, records, labels, step=self._updater.steps)
        self._updater.step(self._params, gradients)
        shapes = self.net.net.params
        slots = {
            name: {slot: array.reshape(shapes[name].shape) for slot, array in arrays.items()}
            for name, arrays in self._updater.state.items()
        }
        self.state = TrainingState(self._updater.steps, slots)
        return self._params, metrics
