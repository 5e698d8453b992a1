"""LocalUpdater, which applies gradients to params in this process as servers do on a cluster."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.job import UpdaterConf
from dsinga.net import Param
from dsinga.ops import SparseRows
from dsinga.ops.sparse import scaled, values_of
from dsinga.ops.types import is_plain
from dsinga.ops.update import norm_factor, sum_of_squares
from dsinga.training import check_patterns, create_updater
from dsinga.training.updater import Updater
from dsinga.worker.param_homes import check_gradient

LARGEST = 1 << 14  # numbers of a joined param; a call takes as long as an update of about so many


class LocalUpdater:
    """An updater with its state, for whole params in this process.

    Args:
        conf: the updater of a job.
        params: the params of the net, by name; they have factors of learning rate and weight decay.

    Attributes:
        steps: the number of steps done, on which the learning rate depends; it may be set.
        state: the updater's arrays by param and slot, float32 (size,), such as the momentum.
    """

    def __init__(self, conf: UpdaterConf, params: Mapping[str, Param]):
        check_patterns(conf, params)
        self._conf, self._params = conf, params
        self.steps = 0
        self.state: dict[str, dict[str, np.ndarray]] = {}
        self._rate_factors: Mapping[int, float] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Make what the configuration determines."""
        self._updater = updater = create_updater(self._conf)
        self._updater.set_rate_factors(self._rate_factors)
        self._shapes = {name: param.shape for name, param in self._params.items()}
        self._updaters = {name: updater.of(name, param.shape) for name, param in self._params.items()}
        self._joinable = {name: joinable(self._updaters[name], param) for name, param in self._params.items()}
        self._joined: dict[Any, JoinedParams] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_conf": self._conf,
            "_params": self._params,
            "steps": self.steps,
            "state": self.state,
            "_rate_factors": self._rate_factors,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"_rate_factors": {}, **state})
        self._prepare()

    def copy(self) -> LocalUpdater:
        """Return a copy, whose steps do not change this updater."""
        copied = copy.copy(self)
        copied.state = {
            name: {slot: array.copy() for slot, array in slots.items()} for name, slots in self.state.items()
        }
        return copied

    def rate(self, step: int) -> float:
        """Return the learning rate of the schedule at a step, without factors."""
        return float(self._updater.rate(step))

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors, each from its step on; see :meth:`Updater.set_rate_factors`."""
        self._rate_factors = dict(factors)
        self._updater.set_rate_factors(factors)

    def resume(self, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Go on with the state in a checkpoint, arrays of the params' shapes; raise UserError for another updater's."""
        for name, param in self._params.items():
            if param.trainable:
                self._updaters[name].check_state(name, state.get(name, {}))
        self.state = {name: {slot: value.reshape(-1) for slot, value in slots.items()} for name, slots in state.items()}

    def resume_learnt(self, state: Mapping[str, Mapping[str, np.ndarray]], steps: int) -> None:
        """Go on after ``steps`` steps with copies of a state, in which params that had no gradient may be missing.

        Raises UserError for the state of another updater.
        """
        copies = {
            name: {slot: np.array(array, np.float32) for slot, array in slots.items()} for name, slots in state.items()
        }
        fresh = {name: updater.create_state(self._params[name].size) for name, updater in self._updaters.items()}
        trained = {name: slots for name, slots in fresh.items() if self._params[name].trainable}
        self.resume({**trained, **self.state, **copies})
        self.steps = steps

    def create_state(self, params: Mapping[str, np.ndarray]) -> None:
        """Create the state of all params that are updated, which otherwise comes with their first gradient."""
        for name, param in self._params.items():
            if param.trainable and name not in self.state:
                self.state[name] = self._updaters[name].initial_state(params[name].reshape(-1))

    def step(
        self,
        params: MutableMapping[str, np.ndarray],
        gradients: Mapping[str, np.ndarray | SparseRows],
        max_norm: float = 0.0,
    ) -> None:
        """Change ``params`` in place by their gradients; a lasting state, such as a running mean, is replaced.

        Params without a gradient stay as they are. An array that cannot be changed in place is replaced by a new one.
        The norm of ``clip_norm`` is that of the whole param. With ``max_norm`` above 0, all gradients are scaled down
        so that their norm together is at most this; ``clip_global_norm`` of the updater bounds it, too. Raises
        UserError for a gradient of a wrong name or shape.
        """
        small: dict[Updater, list[Param]] = {}
        single: list[tuple[Updater, Param, np.ndarray, np.ndarray | SparseRows]] = []
        for name, gradient in gradients.items():
            if not (is_plain(gradient) and gradient.shape == self._shapes.get(name)):
                check_gradient(name, gradient, self._shapes, (), self.steps)
            value = params.get(name)
            if not (is_plain(value) and value.flags.writeable and value.shape == self._shapes[name]):
                _check_value(name, params, self._shapes[name])
                value = params[name] = np.require(params[name], np.float32, ["C", "W"])
            param, updater = self._params[name], self._updaters[name]
            if self._joinable[name] and type(gradient) is np.ndarray:
                small.setdefault(updater, []).append(param)
            else:
                single.append((updater, param, value, gradient))
        groups = [self._group(updater, group) for updater, group in small.items()]
        joined = [group.join(gradients) for group in groups]
        factor = 1.0
        trained = [gradient for _, param, _, gradient in single if param.trainable]
        if max_norm:
            factor = min(1.0, max_norm / max(norm_of([*joined, *trained]), max_norm))
        if self._conf.clip_global_norm:
            names = [param.name for params_of in small.values() for param in params_of]
            squares = [sum_of_squares(values_of(gradients[name]).reshape(-1)) for name in names]
            squares += [sum_of_squares(values_of(gradient).reshape(-1)) for gradient in trained]
            factor *= norm_factor(math.sqrt(math.fsum(squares)) * factor, self._conf.clip_global_norm)
        if factor != 1.0:
            joined = [gradient * np.float32(factor) for gradient in joined]
            single = [
                (updater, param, value, scaled(gradient, factor) if param.trainable else gradient)
                for updater, param, value, gradient in single
            ]
        for update in single:
            self._apply(*update)
        for group, gradient in zip(groups, joined, strict=True):
            group.update(self.steps, params, gradient, self.state)
        self.steps += 1

    def apply_large(self, params: Mapping[str, np.ndarray], name: str, gradient: np.ndarray | SparseRows) -> bool:
        """Apply a gradient of the next step at once, while it is in the caches, unless it is small; return if it was.

        :meth:`step` then takes the small ones, which it applies together. The param is changed in place.
        """
        if self._conf.clip_global_norm or (self._joinable[name] and type(gradient) is np.ndarray):
            return False
        check_gradient(name, gradient, self._shapes, (), self.steps)
        self._apply(self._updaters[name], self._params[name], params[name], gradient)
        return True

    def _group(self, updater: Updater, params: list[Param]) -> JoinedParams:
        key = updater, *(param.name for param in params)
        if key not in self._joined:
            self._joined[key] = JoinedParams(updater, params)
        return self._joined[key]

    def _apply(self, updater: Updater, param: Param, value: np.ndarray, gradient: np.ndarray | SparseRows) -> None:
        if not param.trainable:
            value[...] = gradient
            return
        if param.name not in self.state:
            self.state[param.name] = updater.initial_state(value.reshape(-1))
        flat = gradient if isinstance(gradient, SparseRows) else np.ascontiguousarray(gradient).reshape(-1)
        state = self.state[param.name]
        updater.update(self.steps, value.reshape(-1), flat, state, param.lr_scale, param.wd_scale, param.shape)


def norm_of(gradients: Sequence[np.ndarray | SparseRows]) -> float:
    """Return the Euclidean norm of several gradients together."""
    values = [gradient.values if isinstance(gradient, SparseRows) else gradient for gradient in gradients]
    return math.sqrt(sum(float(np.dot(array.reshape(-1), array.reshape(-1))) for array in values))


def _check_value(name: str, params: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> None:
    if name not in params:
        raise UserError(f"there is a gradient for the param {name!r}, which the given params lack")
    if np.shape(params[name]) != shape:
        raise UserError(f"the param {name!r} has the shape {np.shape(params[name])}, but the net's has {shape}")


class JoinedParams:
    """Several small params that an updater changes as one array, in the time of one of them, and their state.

    The formulas are elementwise, so that each param gets the bits that it would get alone.

    Args:
        updater: the updater of all these params.
        params: the params.
    """

    def __init__(self, updater: Updater, params: Sequence[Param]):
        self._updater, self._names = updater, [param.name for param in params]
        bounds = np.cumsum([0, *(param.size for param in params)]).tolist()
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
