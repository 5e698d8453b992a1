"""LocalUpdater, which applies gradients to params in this process as servers do on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from dsinga.errors import UserError
from dsinga.job import UpdaterConf
from dsinga.net import Param
from dsinga.ops import SparseRows
from dsinga.training import check_patterns, create_updater
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
        self._conf, self._updater, self._params = conf, create_updater(conf), params
        self.steps = 0
        self.state: dict[str, dict[str, np.ndarray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_updater"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _updater=create_updater(state["_conf"]))

    def step(self, params: MutableMapping[str, np.ndarray], gradients: Mapping[str, np.ndarray | SparseRows]) -> None:
        """Change ``params`` in place by their gradients; a lasting state, such as a running mean, is replaced.

        Params without a gradient stay as they are. An array that cannot be changed in place is replaced by a new one.
        The norm of ``clip_norm`` is that of the whole param. Raises UserError for a gradient of a wrong name or shape.
        """
        shapes = {name: param.shape for name, param in self._params.items()}
        for name, gradient in gradients.items():
            check_gradient(name, gradient, shapes, (), self.steps)
            _check_value(name, params, shapes[name])
            value = params[name] = np.require(params[name], np.float32, ["C", "W"])
            self._apply(self._params[name], value, gradient)
        self.steps += 1

    def _apply(self, param: Param, value: np.ndarray, gradient: np.ndarray | SparseRows) -> None:
        if not param.trainable:
            value[...] = gradient
            return
        updater = self._updater.of(param.name)
        if param.name not in self.state:
            self.state[param.name] = updater.create_state(param.size)
        flat = gradient if isinstance(gradient, SparseRows) else np.ascontiguousarray(gradient).reshape(-1)
        state = self.state[param.name]
        updater.update(self.steps, value.reshape(-1), flat, state, param.lr_scale, param.wd_scale)


def _check_value(name: str, params: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> None:
    if name not in params:
        raise UserError(f"there is a gradient for the param {name!r}, which the given params lack")
    if np.shape(params[name]) != shape:
        raise UserError(f"the param {name!r} has the shape {np.shape(params[name])}, but the net's has {shape}")
