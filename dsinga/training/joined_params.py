"""Defines JoinedParams, which updates many small params in one array operation."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from dsinga.net import Param
from dsinga.ops.bound_program import BoundProgram
from dsinga.ops.compiled.compiler import is_compiled
from dsinga.ops.ufunc_programs import trace_series
from dsinga.training.updater import Formulas, Updater

LARGEST = 1 << 14  # numbers of a joined param; a call takes as long as an update of about so many


def joinable(updater: Updater, param: Param) -> bool:
    """Whether a param is small enough to gain from an update within a larger array."""
    return (
        param.trainable
        and param.size <= LARGEST
        and param.lr_scale == param.wd_scale == 1.0
        and not updater.conf.clip_norm
        and not updater.whole
        and type(updater).update is Updater.update
    )


class JoinedParams:
    """Updates small params together as one array, which is faster; each gets the same bits as alone.

    Args:
        shapes: the shape of each param, by name.

    Attributes:
        gradient: the joined gradient, after :meth:`join`.
    """

    def __init__(self, updater: Updater, shapes: Mapping[str, tuple[int, ...]]):
        self._updater, self._formulas, self._names = updater, Formulas(updater), list(shapes)
        bounds = [0]
        for shape in shapes.values():
            bounds.append(bounds[-1] + prod(shape))
        self._value, self.gradient = (np.empty(bounds[-1], np.float32) for _ in range(2))
        self._state = updater.initial_state(np.zeros(bounds[-1], np.float32))
        self._views: list[tuple[str, np.ndarray, dict[str, np.ndarray]]] = []  # of value and state, by name
        for (name, shape), (start, stop) in zip(shapes.items(), pairwise(bounds), strict=True):
            state = {slot: array[start:stop] for slot, array in self._state.items()}
            self._views.append((name, self._value[start:stop].reshape(shape), state))
        self._programs: dict[bool, BoundProgram | None] = {}  # by whether the params enter their averages

    def join(self, gradients: Mapping[str, Any]) -> None:
        """Copy the gradients of the params into one array."""
        np.concatenate(list(map(gradients.__getitem__, self._names)), axis=None, out=self.gradient)

    def is_finite(self) -> bool:
        """Whether the joined gradient is finite."""
        return bool(np.logical_and.reduce(np.isfinite(self.gradient)))

    def update(
        self, step: int, params: Mapping[str, np.ndarray], state: MutableMapping[str, dict[str, np.ndarray]]
    ) -> None:
        """Change the params, and their ``state`` by name and slot, by the joined gradient."""
        for name, value, slots in self._views:
            value[...] = params[name]
            if (given := state.get(name)) is not slots:  # also after a restore
                given = self._updater.initial_state(value.reshape(-1)) if given is None else given
                for slot, array in slots.items():
                    array[:] = given[slot]
                state[name] = slots
        numbers = self._formulas.numbers_at(step)
        averages = None not in numbers
        if averages not in self._programs:
            self._programs[averages] = self._bind(numbers)
        if (program := self._programs[averages]) is None:
            self._updater.update(step, self._value, self.gradient, self._state)
        else:
            program(numbers)
        for name, value, _ in self._views:
            params[name][...] = value

    def _bind(self, numbers: Sequence[Any]) -> BoundProgram | None:
        """Return the updater's program for the joined array; None if there is none or a faster one."""
        arrays = [self._value, self.gradient, *(self._state[slot] for slot in self._updater.state_slots)]
        missing = tuple([each is None for each in numbers])
        traced = trace_series(self._formulas, len(arrays) - 2, missing)
        return None if traced is None or is_compiled(self._value.size) else BoundProgram(traced, arrays)
