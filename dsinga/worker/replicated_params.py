"""Replicated params: each worker keeps a copy and updates it itself, in place of a server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from dsinga.net import Param
from dsinga.ops import Array, Ops, SparseRows, Update
from dsinga.ops.device_pass import NotCapturable
from dsinga.ops.numpy.numpy_ops import NumpyOps
from dsinga.ops.update import assign, sum_of_squares
from dsinga.server import Slice, SliceSpec
from dsinga.server.served_slice import ServedSlice
from dsinga.training import Updater


class ReplicaState(NamedTuple):
    """The state of replicated params: values by name, and the updater's state by name and slot; flat arrays."""

    values: Mapping[str, np.ndarray]
    state: Mapping[str, Mapping[str, np.ndarray]] | None


class ReplicatedParams(Mapping[str, Array]):
    """The replicated params of a worker: name to value, float32 (size,). Used by one thread at a time.

    Values and state are arrays of the backend; gradients are, too, or lie in host memory.

    Args:
        params: the params by name.
        updater: applies gradients.
        ops: the backend; None for numpy in host memory.
        whole: whether :meth:`finish` scales the gradients of params that are pushed, so that none is applied before.

    Attributes:
        static: the names of the params that keep their values; they get no gradient.
        squares: with ``whole``, the sum of squares of each gradient that was pushed since the last step.
    """

    def __init__(self, params: Mapping[str, Param], updater: Updater, ops: Ops | None = None, whole: bool = False):
        self._updater = updater
        self._ops = ops or NumpyOps()
        self._whole = whole
        self.squares: dict[str, float] = {}
        self._updates: list[tuple[float, Update]] = []  # each with its clip_norm
        self.static = frozenset(name for name, param in params.items() if param.static)
        self._params = {
            name: ServedSlice(
                SliceSpec(
                    Slice(id, name, 0, 0, 0),
                    p.trainable and not p.static,
                    p.lr_scale,
                    p.wd_scale,
                    (),
                    p.name,
                    shape=p.shape,
                ),  # fmt: skip
                (),
                0,
            )
            for id, (name, p) in enumerate(params.items())
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)

    def __getitem__(self, name: str) -> Array:
        param = self._params[name]
        return param.read() if type(param.value) is np.ndarray else param.value

    def put(self, state: ReplicaState) -> None:
        """Copy the first values, and the updater's state where a run is resumed (None: it starts from zero).

        Raises UserError if the state is of another updater.
        """
        for name, param in self._params.items():
            value = np.array(state.values[name], np.float32).reshape(-1)
            spec = param.spec
            param.spec = spec._replace(slice=spec.slice._replace(stop=value.size))
            slots = None
            if state.state is not None:
                slots = {key: np.array(array).reshape(-1) for key, array in state.state.get(name, {}).items()}
            param.put(value, slots, self._updater)
            param.value = self._ops.asarray(param.value)
            param.state = {key: self._ops.asarray(array) for key, array in param.state.items()}

    def push(self, step: int, name: str, gradient: Array) -> None:
        """Apply the gradient of a whole param, at the latest in :meth:`finish`; it must not change until then.

        In host memory it is applied at once, while it is in the caches; on a device, one launch applies all gradients.
        """
        param = self._params[name]
        if type(param.value) is np.ndarray and not (self._whole and param.spec.trainable):
            self.update(step, name, 0, gradient)
        elif not param.spec.trainable and not isinstance(gradient, SparseRows):
            # In place, since the graph of a captured pass has its address; the launch of all updates does it.
            self._updates.append((0.0, Update(assign, param.value, self._move(gradient, param), [])))
        else:
            update = self._create_update(step, param, param.value, self._move(gradient, param), param.state)
            self._updates.append((self._updater_of(param).conf.clip_norm, update))
            if self._whole:
                self.squares[name] = sum_of_squares(update.gradient)

    def finish(self, factor: float = 1.0) -> None:
        """Apply the gradients that were pushed, times ``factor``."""
        updates, self._updates = self._updates, []
        self.squares = {}
        if factor != 1.0:
            scale = np.float32(factor)
            updates = [
                (norm, update if update.formula is assign else update._replace(gradient=update.gradient * scale))
                for norm, update in updates
            ]
        if self._ops.is_recording:
            self._ops.check_recordable([update for _, update in updates])
        for clip_norm in dict.fromkeys(norm for norm, _ in updates):
            self._ops.update([update for norm, update in updates if norm == clip_norm], clip_norm)

    def discard(self) -> None:
        """Forget the gradients that were pushed and not applied."""
        self._updates, self.squares = [], {}

    def update(self, step: int, name: str, start: int, gradient: Array) -> None:
        """Apply the gradient of the elements from ``start`` on; it replaces a param that is not trainable."""
        param, where = self._params[name], slice(start, start + math.prod(gradient.shape))
        gradient = self._move(gradient, param)
        if not param.spec.trainable:
            param.value[where] = gradient
            return
        state = {key: array[where] for key, array in param.state.items()}
        update = self._create_update(step, param, param.value[where], gradient, state)
        self._ops.update([update], self._updater_of(param).conf.clip_norm)

    def _create_update(
        self, step: int, param: ServedSlice, value: Array, gradient: Array, state: Mapping[str, Array]
    ) -> Update:
        spec = param.spec
        return self._updater_of(param).create_update(
            step, value, gradient, state, spec.lr_scale, spec.wd_scale, spec.shape
        )

    def _updater_of(self, param: ServedSlice) -> Updater:
        return self._updater.of(param.spec.whole_param, param.spec.shape)

    def copy(self, names: Iterable[str]) -> ReplicaState:
        """Return copies of the values and of the updater's state of these params."""
        copies = {name: self._params[name].copy() for name in names}
        down = self._ops.to_numpy
        return ReplicaState(
            {name: down(value) for name, (value, _) in copies.items()},
            {name: {key: down(array) for key, array in state.items()} for name, (_, state) in copies.items()},
        )

    def _move(self, gradient: Array, param: ServedSlice) -> Array:
        """Return a gradient in the memory of the param's value."""
        if isinstance(gradient, SparseRows) and param.spec.trainable and self._updater_of(param).whole:
            gradient = gradient.dense().reshape(-1)
        if type(param.value) is np.ndarray:
            return gradient
        if self._ops.is_recording and (type(gradient) is np.ndarray or isinstance(gradient, SparseRows)):
            raise NotCapturable(f"the gradient of {param.spec.whole_param!r} is in host memory")
        if isinstance(gradient, SparseRows):
            rows, values = self._ops.asarray(gradient.rows), self._ops.upload(gradient.values).result()
            return SparseRows(rows, values, gradient.shape)
        return self._ops.upload(gradient).result() if type(gradient) is np.ndarray else gradient
