"""Defines LocalUpdater: an optimizer with its state, for params in this process or on its device."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.net import Param
from dsinga.ops import Array, Ops, SparseRows, Update
from dsinga.ops.factored_gradient import FactoredGradient, to_dense
from dsinga.ops.sparse import fault, scaled, values_of
from dsinga.ops.types import FLOAT32, NotCapturable
from dsinga.ops.update import apply, assign, norm_factor, sum_of_squares
from dsinga.training.divergence import first_bad_gradient, is_finite_gradient
from dsinga.training.joined_params import JoinedParams, joinable
from dsinga.training.updater import Updater, create_updater

Gradient = Array | SparseRows
Slots = Mapping[str, Mapping[str, np.ndarray]]  # arrays by param and slot
Joined = tuple[list[JoinedParams], list[str]]  # groups of params whose gradients are joined, and names of the others


class LocalUpdater:
    """Applies gradients to params of this process, and keeps the optimizer's state; for one thread.

    Args:
        ops: the kernels of the device that holds values and state; by default numpy.

    Attributes:
        steps: the number of steps done, which sets the learning rate; may be set.
        values: the values that :meth:`push` changes, float32 by name.
        state: the updater's arrays by param and slot, float32 (size,), such as the momentum.
        static: the params that keep their values.
    """

    def __init__(self, updater: Updater, params: Mapping[str, Param], ops: Ops | None = None):
        self.updater, self.params = updater, params
        self._ops = ops if ops is not None and ops.device_count() else None
        self._rounded = None if ops is None else ops.rounded_params
        self.steps = 0
        self.values: MutableMapping[str, Array] = {}
        self.state: dict[str, dict[str, Array]] = {}
        self.static = frozenset(name for name, param in params.items() if param.static)
        self._rate_factors: Mapping[int, float] = {}
        self._shapes = {name: param.shape for name, param in params.items()}
        self._updaters = {name: updater.of(param.name, param.shape) for name, param in params.items()}
        self._joinable = {
            name: self._ops is None and joinable(self._updaters[name], param) for name, param in params.items()
        }
        self._groups: dict[Any, JoinedParams] = {}
        self._waiting: dict[str, Gradient] = {}  # gradients that were pushed and not applied
        self._joined: Joined | None = None  # of these, once they have been joined

    def __getstate__(self) -> dict[str, Any]:
        return {
            "conf": self.updater.conf,
            "params": self.params,
            "steps": self.steps,
            "state": self.copy_state(),
            "rate_factors": self._rate_factors,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(create_updater(state["conf"]), state["params"])  # type: ignore[misc]
        self.steps, self.state = state["steps"], state["state"]
        self.set_rate_factors(state["rate_factors"])

    def copy(self, ops: Ops | None = None) -> LocalUpdater:
        """Return an independent copy with the state, on the device of ``ops``, without param values."""
        copied = LocalUpdater(create_updater(self.updater.conf), self.params, ops)
        copied.steps = self.steps
        copied.set_rate_factors(self._rate_factors)
        copied._set_state(self.copy_state())
        return copied

    def rounding(self) -> AbstractContextManager[None]:
        """Return a context for steps in which params change by this updater only: products may keep rounded copies."""
        if self._rounded is None:
            return nullcontext()
        held: AbstractContextManager[None] = self._rounded.held(
            value for name, value in self.values.items() if self._applies_parts(name) and not self._joinable[name]
        )
        return held

    def _applies_parts(self, name: str) -> bool:
        """Whether the gradient of a param may be applied part by part, by the updater's formula."""
        updater = self._updaters[name]
        is_ours = type(updater).update is Updater.update and not updater.whole
        return self._ops is None and self.params[name].trainable and is_ours

    def rate(self, step: int) -> float:
        """Return the learning rate at a step by the schedule, without single params' factors."""
        return self.updater.rate(step)

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors, each starting at the step that is its key."""
        self._rate_factors = dict(factors)
        self.updater.set_rate_factors(factors)

    def put(self, values: Mapping[str, np.ndarray], state: Slots | None = None) -> None:
        """Copy the values of all params, and optionally a state, into the updater."""
        self.take({name: np.array(values[name], np.float32) for name in self.params}, _copied(state))

    def take(self, values: Mapping[str, np.ndarray], state: Slots | None = None) -> None:
        """Use arrays of all params, and optionally of a state, without a copy; the caller must not use them again."""
        self.values = {name: self._placed(np.require(values[name], np.float32, ["C", "W"])) for name in self.params}
        if state is not None:
            self._check_state(state)
            self._set_state(state)
        for name, param in self.params.items():
            if param.trainable and name not in self.state:
                self._create_state(name, values[name])

    def resume(self, state: Slots) -> None:
        """Continue with a copy of a checkpoint's optimizer state. Raises UserError for another updater's."""
        self._check_state(state)
        self._set_state(_copied(state) or {})

    def _check_state(self, state: Slots) -> None:
        for name, param in self.params.items():
            if param.trainable:
                self._updaters[name].check_state(name, state.get(name, {}))

    def _set_state(self, state: Slots) -> None:
        """Use a state and its arrays, without a copy if they can be changed."""
        self.state = {
            name: {
                slot: self._placed(np.require(array, np.float32, ["C", "W"]).reshape(-1))
                for slot, array in slots.items()
            }
            for name, slots in state.items()
        }

    def resume_learnt(self, state: Slots, steps: int) -> None:
        """Continue after ``steps`` steps with a copy of a state that may lack params without a gradient."""
        fresh = {name: updater.create_state(self.params[name].size) for name, updater in self._updaters.items()}
        trained = {name: slots for name, slots in fresh.items() if self.params[name].trainable}
        self.resume({**trained, **self.state, **state})
        self.steps = steps

    def copy_values(self, names: Collection[str] | None = None) -> ParamArrays:
        """Copy params' values to host memory, by default all."""
        return {name: self._copy(self.values[name]) for name in (self.values if names is None else names)}

    def copy_state(self, names: Collection[str] | None = None) -> dict[str, ParamArrays]:
        """Copy the optimizer's state of params to host memory, by default all."""
        state = {name: slots for name, slots in self.state.items() if names is None or name in names}
        return {name: {slot: self._copy(array) for slot, array in slots.items()} for name, slots in state.items()}

    def step(
        self, params: MutableMapping[str, np.ndarray], gradients: Mapping[str, Gradient], max_norm: float = 0.0
    ) -> None:
        """Do a training step: change ``params`` in place by their gradients.

        A lasting state, such as a running mean, and an array that cannot be changed in place, are replaced.
        ``max_norm``, if above 0, and ``clip_global_norm`` bound the norm of all gradients together.
        """
        self._check_gradients(gradients)
        for name in gradients:
            value: Any = params.get(name)
            is_plain = type(value) is np.ndarray and value.dtype is FLOAT32 and value.flags.carray
            if not (is_plain and value.shape == self._shapes[name]):
                _check_value(name, params, self._shapes[name])
                params[name] = np.require(params[name], np.float32, ["C", "W"])
        self.values, self._waiting, self._joined = params, dict(gradients), None
        self.finish(max_norm=max_norm)

    def check_gradient(self, name: str, gradient: Gradient) -> None:
        """Raise UserError unless a gradient of this step has the name and shape of a param."""
        check_gradient(name, gradient, self._shapes, (), self.steps)

    def _check_gradients(self, gradients: Mapping[str, Gradient]) -> None:
        shapes = self._shapes
        for name, gradient in gradients.items():
            is_plain = type(gradient) is np.ndarray and gradient.dtype is FLOAT32
            if not (is_plain and gradient.shape == shapes.get(name)):
                self.check_gradient(name, gradient)

    def push(self, name: str, gradient: Gradient) -> None:
        """Hand over the gradient of a param, which must not change before :meth:`finish`.

        In host memory a large gradient is applied at once, unless all are clipped together. A param that is not trained
        is replaced.
        """
        if self.steps < self.params[name].first_step:
            return
        gradient = self._moved(name, gradient)
        if self.updater.conf.clips_norms or not self._applies_parts(name):
            gradient = to_dense(gradient)
        is_joined = self._joinable[name] and type(gradient) is np.ndarray
        if self._ops is not None or is_joined or self.updater.conf.clip_global_norm:
            self._waiting[name], self._joined = gradient, None
        else:
            self._apply(name, gradient)

    def push_all(self, gradients: Mapping[str, Gradient]) -> str | None:
        """Hand over all gradients of a step if they are finite; else return a bad one's name.

        Nothing is applied before :meth:`finish`. Gradients on a device count as finite.
        """
        self._check_gradients(gradients)
        if self._ops is not None:
            self._waiting = {name: self._moved(name, gradient) for name, gradient in gradients.items()}
            return None
        self._waiting = dict(gradients)
        groups, single = self._joined = self._join()
        if all(map(JoinedParams.is_finite, groups)) and all(map(is_finite_gradient, map(gradients.get, single))):
            return None
        self.discard()
        return first_bad_gradient(gradients)

    @property
    def squares(self) -> dict[str, float]:
        """The sum of squares of each gradient that waits, by param, for the norm of all."""
        return {
            name: sum_of_squares(values_of(gradient))
            for name, gradient in self._waiting.items()
            if self.params[name].trainable
        }

    def finish(self, factor: float | None = None, max_norm: float = 0.0) -> None:
        """Apply the gradients that wait, times ``factor``, and count the step.

        Without a factor, ``max_norm`` and ``clip_global_norm`` bound their joint norm.
        """
        if self._ops is not None:
            self._finish_on_device(self._ops, self._clip_factor() if factor is None else factor)
            return
        groups, single = self._joined or self._join()
        trained = [name for name in single if self.params[name].trainable] if single else []
        if factor is None and (max_norm or self.updater.conf.clip_global_norm):
            joined = [group.gradient for group in groups]
            factor = self._clip_factor([*joined, *(self._waiting[name] for name in trained)], max_norm)
        gradients, self._waiting, self._joined = self._waiting, {}, None
        if factor is not None and factor != 1.0:
            gradients |= {name: scaled(gradients[name], factor) for name in trained}
            for group in groups:
                group.gradient *= np.float32(factor)
        for name in single:
            self._apply(name, gradients[name])
        for group in groups:
            group.update(self.steps, self.values, self.state)
        self.steps += 1

    def discard(self) -> None:
        """Drop the gradients that wait, without a step."""
        self._waiting, self._joined = {}, None

    def update(self, step: int, name: str, start: int, gradient: Gradient) -> None:
        """Apply at once the gradient of a slice of a param, which begins at the element ``start``.

        It replaces a param that is not trained.
        """
        if step < self.params[name].first_step:
            return
        param, updater, where = self.params[name], self._updaters[name], slice(start, start + math.prod(gradient.shape))
        value, gradient = self.values[name].reshape(-1), self._moved(name, gradient)
        if not param.trainable:
            value[where] = gradient
            return
        if name not in self.state:
            self._create_state(name, value)
        state = {slot: array[where] for slot, array in self.state[name].items()}
        arguments = step, value[where], gradient, state, param.lr_scale, param.wd_scale, param.shape
        if self._ops is None and self._applies_parts(name):
            copy = None if self._rounded is None else self._rounded.refresh(self.values[name], start)
            apply(updater.create_update(*arguments)._replace(copy=copy), updater.conf.clip_norm)
        elif self._ops is None:
            updater.update(*arguments)
        else:
            self._ops.update([updater.create_update(*arguments)], updater.conf.clip_norm)

    def _apply(self, name: str, gradient: Gradient) -> None:
        is_dense = not isinstance(gradient, (SparseRows, FactoredGradient))
        flat = np.ascontiguousarray(gradient).reshape(-1) if is_dense else gradient
        self.update(self.steps, name, 0, flat)

    def _finish_on_device(self, ops: Ops, factor: float) -> None:
        """Apply the gradients that wait by one launch for each value of ``clip_norm``."""
        gradients, self._waiting = self._waiting, {}
        updates = [self._create_update(name, gradient, factor) for name, gradient in gradients.items()]
        if ops.is_recording:
            ops.check_recordable([update for _, update in updates])
        for clip_norm in dict.fromkeys(norm for norm, _ in updates):
            ops.update([update for norm, update in updates if norm == clip_norm], clip_norm)
        self.steps += 1

    def _create_update(self, name: str, gradient: Gradient, factor: float) -> tuple[float, Update]:
        """Return the update of a param on a device, and its ``clip_norm``, for one launch of many."""
        param, updater, value = self.params[name], self._updaters[name], self.values[name].reshape(-1)
        flat = gradient if isinstance(gradient, SparseRows) else gradient.reshape(-1)
        if not param.trainable:
            # In place, since the graph of a captured pass has its address; the launch of all updates does it.
            return 0.0, Update(assign, value, flat, [])
        update = updater.create_update(
            self.steps, value, flat, self.state[name], param.lr_scale, param.wd_scale, param.shape
        )
        if factor != 1.0:
            update = update._replace(gradient=update.gradient * np.float32(factor))
        return updater.conf.clip_norm, update

    def _clip_factor(self, gradients: Sequence[Gradient] = (), max_norm: float = 0.0) -> float:
        factor = min(1.0, max_norm / max(norm_of(gradients), max_norm)) if max_norm else 1.0
        if limit := self.updater.conf.clip_global_norm:
            factor *= norm_factor(math.sqrt(math.fsum(self.squares.values())) * factor, limit)
        return factor

    def _join(self) -> Joined:
        small: dict[Updater, list[str]] = {}
        single: list[str] = []
        for name, gradient in self._waiting.items():
            if self._joinable[name] and type(gradient) is np.ndarray:
                small.setdefault(self._updaters[name], []).append(name)
            else:
                single.append(name)
        groups: list[JoinedParams] = []
        for updater, names in small.items():
            key = updater, *names
            if key not in self._groups:
                self._groups[key] = JoinedParams(updater, {name: self._shapes[name] for name in names})
            groups.append(self._groups[key])
            groups[-1].join(self._waiting)
        return groups, single

    def _create_state(self, name: str, value: np.ndarray) -> None:
        """Create the initial optimizer state of a param."""
        slots = self._updaters[name].initial_state(value.reshape(-1))
        self.state[name] = {slot: self._placed(array) for slot, array in slots.items()}

    def _placed(self, array: np.ndarray) -> Array:
        """Copy an array to the device; on the host return the same array."""
        return array if self._ops is None else self._ops.asarray(array)

    def _copy(self, array: Array) -> np.ndarray:
        return array.copy() if self._ops is None else np.array(self._ops.to_numpy(array))

    def _moved(self, name: str, gradient: Gradient) -> Gradient:
        """Move a gradient to the memory of the params."""
        if self._ops is None:
            return gradient
        is_sparse = isinstance(gradient, SparseRows)
        if is_sparse and self._updaters[name].whole:
            gradient, is_sparse = gradient.dense(), False
        if self._ops.is_recording and (is_sparse or type(gradient) is np.ndarray):
            raise NotCapturable(f"the gradient of {self.params[name].name!r} is in host memory")
        if is_sparse:
            rows, values = self._ops.asarray(gradient.rows), self._ops.upload(gradient.values).result()
            return SparseRows(rows, values, gradient.shape)
        return self._ops.upload(gradient).result() if type(gradient) is np.ndarray else gradient


def _copied(state: Slots | None) -> Slots | None:
    if state is None:
        return None
    return {name: {slot: np.array(array, np.float32) for slot, array in slots.items()} for name, slots in state.items()}


def check_gradient(
    name: str, gradient: Gradient, shapes: Mapping[str, tuple[int, ...]], pushed: Collection[str], step: int
) -> None:
    """Raise UserError unless a gradient is float32, of its param's shape, and its first in this step."""
    if name not in shapes:
        raise UserError(f"a gradient was pushed for {name!r}, which is no param of the net{nearest(name, shapes)}")
    if name in pushed:
        raise UserError(f"param {name!r} was pushed twice in step {step}; push the sum, once")
    shape, dtype = getattr(gradient, "shape", None), getattr(gradient, "dtype", None)
    if shape != shapes[name] or dtype != np.float32:
        actual = f"{dtype} of shape {shape}" if dtype else f"a {type(gradient).__name__}"
        expected = f"float32 of shape {shapes[name]}"
        raise UserError(f"the gradient that was pushed for param {name!r} must be {expected}, not {actual}")
    if isinstance(gradient, SparseRows) and (message := fault(gradient)):
        raise UserError(f"the gradient that was pushed for param {name!r}: {message}")


def norm_of(gradients: Sequence[np.ndarray | SparseRows]) -> float:
    """Return the Euclidean norm of all gradients together."""
    arrays = [values_of(gradient).reshape(-1) for gradient in gradients]
    return math.sqrt(sum(float(np.dot(array, array)) for array in arrays))


def _check_value(name: str, params: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> None:
    if name not in params:
        raise UserError(f"there is a gradient for the param {name!r}, which the given params lack")
    if np.shape(params[name]) != shape:
        raise UserError(f"the param {name!r} has the shape {np.shape(params[name])}, but the net's has {shape}")
