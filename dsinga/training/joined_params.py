"""Defines JoinedParams: small params and their updater state in flat arrays, which are updated as one array."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from math import prod
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.net import Param
from dsinga.ops.bound_program import BoundProgram, bind
from dsinga.ops.compiled.compiler import compiled
from dsinga.ops.ufunc_programs import Numbers
from dsinga.training.updater import Formulas, Updater

LARGEST = 1 << 14  # numbers of a joined param; a call takes as long as an update of about so many


def joinable(updater: Updater, param: Param) -> bool:
    """Whether a param may be updated as part of a larger array, and is small enough to gain from it."""
    return (
        param.trainable
        and param.size <= LARGEST
        and param.lr_scale == param.wd_scale == 1.0
        and not updater.conf.clip_norm
        and not updater.whole
        and type(updater).update is Updater.update
    )


class JoinedParams:
    """Params of one updater that lie one behind the other in flat arrays, and so do their gradients and state.

    The formulas are elementwise, so that each param gets the bits that it would get alone.

    Args:
        updater: the updater of all these params.
        shapes: the shape of each param, by name.

    Attributes:
        values: the value of each param, a view of the flat array.
        state: the updater's arrays of each param by slot, views of flat arrays.
    """

    def __init__(self, updater: Updater, shapes: Mapping[str, tuple[int, ...]]):
        self.updater = updater
        self._places: dict[str, slice] = {}
        stop = 0
        for name in sorted(shapes, key=lambda name: prod(shapes[name]) % 16 > 0):  # so that most stay aligned
            self._places[name] = slice(stop, stop := stop + prod(shapes[name]))
        self._value, self._gradient = buffers.empty((stop,)), buffers.empty((stop,))
        self._state = updater.initial_state(np.zeros(stop, np.float32))
        self.values = {name: self._value[place].reshape(shapes[name]) for name, place in self._places.items()}
        self.state = {
            name: {slot: array[place] for slot, array in self._state.items()} for name, place in self._places.items()
        }

    def runs(self, names: Collection[str]) -> list[JoinedRun]:
        """Return the updates of the given params, one for all that lie one behind the other."""
        runs: list[list[str]] = [[]]
        for name in self._places:
            if name in names:
                runs[-1].append(name)
            elif runs[-1]:
                runs.append([])
        return [self._run(run) for run in runs if run]

    def _run(self, names: list[str]) -> JoinedRun:
        place = slice(self._places[names[0]].start, self._places[names[-1]].stop)
        state = {slot: array[place] for slot, array in self._state.items()}
        return JoinedRun(self, names, self._value[place], self._gradient[place], state)


class JoinedRun:
    """Joined params that lie one behind the other, and are updated as one array.

    Args:
        params: all joined params.
        names: the names of these, in the order in which they lie.
        value, gradient, state: their parts of the flat arrays.
    """

    def __init__(
        self, params: JoinedParams, names: Sequence[str],
        value: np.ndarray, gradient: np.ndarray, state: Mapping[str, np.ndarray],
    ):  # fmt: skip
        self._updater, self._formulas = params.updater, Formulas(params.updater)
        self._names = names
        self._value, self._gradient, self._state = value, gradient, state
        self._views = [(name, params.values[name], params.state[name]) for name in names]
        self._programs: dict[bool, BoundProgram | None] = {}  # by whether the params enter their averages

    def join(self, gradients: Mapping[str, Any]) -> None:
        """Copy the gradients of the params to where they are joined."""
        np.concatenate(list(map(gradients.__getitem__, self._names)), axis=None, out=self._gradient)

    def is_finite(self) -> bool:
        """Whether the joined gradient is finite."""
        return bool(np.logical_and.reduce(np.isfinite(self._gradient)))

    def scale(self, factor: float) -> None:
        """Multiply the joined gradient by a factor."""
        self._gradient *= np.float32(factor)

    def update(
        self, step: int, params: Mapping[str, np.ndarray], state: MutableMapping[str, dict[str, np.ndarray]]
    ) -> None:
        """Change the params by the joined gradient, and their ``state`` by name and slot, whose memory is kept here.

        Params that are no views of the joined ones are copied to them and back.
        """
        copied = []
        for name, view, slots in self._views:
            if (value := params[name]) is not view:
                view[...] = value
                copied.append((value, view))
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
            self._updater.update(step, self._value, self._gradient, self._state)
        else:
            program(numbers)
        for value, view in copied:
            value[...] = view

    def _bind(self, numbers: Numbers) -> BoundProgram | None:
        """Return the bound program of the formula; None if it has none, or a compiled one is quicker."""
        if compiled("formulas", self._value.size):
            return None
        slots = [self._state[slot] for slot in self._updater.state_slots]
        return bind(self._formulas, numbers, [self._value, self._gradient, *slots])
