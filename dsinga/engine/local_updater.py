"""LocalUpdater, which applies gradients to params in this process as servers do on a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from dsinga.engine.joined_params import JoinedParams, joinable
from dsinga.errors import UserError
from dsinga.job import UpdaterConf
from dsinga.net import Param
from dsinga.ops import SparseRows
from dsinga.ops.types import is_plain
from dsinga.training import check_patterns, create_updater
from dsinga.training.updater import Updater
from dsinga.worker.gradients import check_gradient


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
        self._prepare()

    def _prepare(self) -> None:
        """Make what the configuration determines."""
        self._updater = updater = create_updater(self._conf)
        self._shapes = {name: param.shape for name, param in self._params.items()}
        self._updaters = {name: updater.of(name) for name in self._params}
        self._joinable = {name: joinable(self._updaters[name], param) for name, param in self._params.items()}
        self._joined: dict[Any, JoinedParams] = {}

    @property
    def rate(self) -> float:
        """The learning rate of the schedule at the next step."""
        return float(self._updater.rate(self.steps))

    def set_rate_factor(self, factor: float) -> None:
        """Multiply the schedule's rate by ``factor`` from now on."""
        self._updater.set_rate_factors({0: factor})

    def __getstate__(self) -> dict[str, Any]:
        return {"_conf": self._conf, "_params": self._params, "steps": self.steps, "state": self.state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def step(
        self,
        params: MutableMapping[str, np.ndarray],
        gradients: Mapping[str, np.ndarray | SparseRows],
        max_norm: float = 0.0,
    ) -> None:
        """Change ``params`` in place by their gradients; a lasting state, such as a running mean, is replaced.

        Params without a gradient stay as they are. An array that cannot be changed in place is replaced by a new one.
        The norm of ``clip_norm`` is that of the whole param. With ``max_norm`` above 0, all gradients are scaled down
        so that their norm together is at most this. Raises UserError for a gradient of a wrong name or shape.
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
        if max_norm:
            trained = [gradient for _, param, _, gradient in single if param.trainable]
            factor = min(1.0, max_norm / max(norm_of([*joined, *trained]), max_norm))
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
            self.state[param.name] = updater.create_state(param.size)
        flat = gradient if isinstance(gradient, SparseRows) else np.ascontiguousarray(gradient).reshape(-1)
        state = self.state[param.name]
        updater.update(self.steps, value.reshape(-1), flat, state, param.lr_scale, param.wd_scale)


def norm_of(gradients: Sequence[np.ndarray | SparseRows]) -> float:
    """Return the Euclidean norm of several gradients together."""
    values = [gradient.values if isinstance(gradient, SparseRows) else gradient for gradient in gradients]
    return math.sqrt(sum(float(np.dot(array.reshape(-1), array.reshape(-1))) for array in values))


def scaled(gradient: np.ndarray | SparseRows, factor: float) -> np.ndarray | SparseRows:
    """Return a gradient times ``factor``."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, gradient.values * np.float32(factor), gradient.shape)
    return gradient * np.float32(factor)


def _check_value(name: str, params: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> None:
    if name not in params:
        raise UserError(f"there is a gradient for the param {name!r}, which the given params lack")
    if np.shape(params[name]) != shape:
        raise UserError(f"the param {name!r} has the shape {np.shape(params[name])}, but the net's has {shape}")
