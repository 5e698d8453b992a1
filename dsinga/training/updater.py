"""How gradients change params: what all updaters have in common.

The gradient is first clipped to [clip_low, clip_high] (where that is an interval) or scaled down to the Euclidean norm
``clip_norm`` (where that is not 0), then ``weight_decay·wd_scale·w`` is added; lr is the schedule's rate at this step
times ``lr_scale``. SINGA clips in only four of its updaters, and its AdaGrad does not know ``delta``; here all clip and
all add the ``delta`` of the job.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.job import UpdaterConf
from dsinga.ops import SparseRows
from dsinga.training.chosen import chosen, noting
from dsinga.training.schedules import schedule

Block = np.ndarray
Change = Callable[[float, Block, Block, Sequence[Block], Block, Block], None]  # see Updater.change
BLOCK = 65536  # elements; value, gradient, state and scratch of a block stay in the L2 cache over its passes


def create_updater(conf: UpdaterConf) -> Updater:
    """Return the updater that the job asks for; raise JobError where its configuration is missing or wrong.

    A user's own is a subclass of Updater, registered as ``@register("updater", "name")``. It is tried on three numbers,
    so that a fault of its own shows before training.
    """
    if conf.clip_norm and conf.clip_high > conf.clip_low:
        raise conf.error("clips twice: give clip_norm, or clip_low and clip_high", "clip_norm")
    cls = chosen("updater", conf)
    name = conf.user_type or conf.type.name
    if not (isinstance(cls, type) and issubclass(cls, Updater)):
        raise conf.error(f"updater {name!r} must be a subclass of dsinga.training.Updater, not {cls!r}", "user_type")
    if isinstance(cls.slots, str):
        raise conf.error(f"slots of updater {name!r} must be a tuple, as in ({cls.slots!r},)", "user_type")
    with noting(f"in updater {name!r}, tried before training"):
        updater = cls(conf)
        if not hasattr(updater, "rate"):
            raise conf.error(f"{cls.__name__}.__init__ must begin with super().__init__(conf)", "user_type")
        updater.update(0, np.ones(3, np.float32), np.ones(3, np.float32), updater.create_state(3))
    return updater


class Updater(ABC):
    """Changes params by gradients, element by element; itself without state, so threads may share it.

    A subclass names its state arrays in ``slots`` and says in ``change`` what happens to a block.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, conf: UpdaterConf):
        self.conf = conf
        self.rate = schedule(conf.learning_rate)
        self.clips = conf.clip_high > conf.clip_low

    def create_state(self, size: int) -> dict[str, np.ndarray]:
        """Return the state for ``size`` elements before the first update: float32 zeros, by slot."""
        return {slot: np.zeros(size, np.float32) for slot in self.slots}

    def update(
        self,
        step: int,
        value: np.ndarray,
        gradient: np.ndarray,
        state: Mapping[str, np.ndarray],
        lr_scale: float = 1.0,
        wd_scale: float = 1.0,
    ) -> None:
        """Change ``value`` and ``state``, 1-d float32 arrays, in place; ``gradient`` is left as it is.

        All may be arrays of a backend that take numpy's ufuncs, as CuPy's do.

        Elementwise in exactly rounded operations: any slice of a param may be updated alone and has the same bits. Only
        clip_norm wants the gradient of a whole param, or all of it that is not 0.
        """
        lr = float(self.rate(step)) * lr_scale  # a numpy float64 from a user's schedule would widen the blocks
        decay = self.conf.weight_decay * wd_scale
        shrink = shrinkage(gradient, self.conf.clip_norm) if self.conf.clip_norm else 1.0
        change_block = self.change_at(step)
        arrays = [value, gradient, *(state[slot] for slot in self.slots)]
        length = block_of(value)
        scratch = np.empty((2, length), value.dtype) if type(value) is np.ndarray else (value.copy(), value.copy())
        for start in range(0, value.size, length):
            w, g, *slots = (array[start : start + length] for array in arrays)
            change, spare = scratch[0][: w.size], scratch[1][: w.size]
            if self.clips:
                g = np.minimum(np.maximum(g, self.conf.clip_low, out=change), self.conf.clip_high, out=change)
            elif shrink < 1.0:
                g = np.multiply(g, shrink, out=change)
            if decay:
                g = np.add(g, np.multiply(w, decay, out=spare), out=change)
            change_block(lr, w, g, slots, change, spare)

    def update_rows(
        self,
        step: int,
        value: np.ndarray,
        gradient: SparseRows,
        state: Mapping[str, np.ndarray],
        lr_scale: float = 1.0,
        wd_scale: float = 1.0,
    ) -> None:
        """Change the rows of ``value`` and ``state`` that the gradient has; the others do not move at all.

        ``value`` and ``state`` are flat, as in :meth:`update`. A row that is left out has neither weight decay nor
        momentum in this step.
        """
        shape, at = (gradient.shape[0], math.prod(gradient.shape[1:])), gradient.rows
        rows, slots = value.reshape(shape)[at], {name: array.reshape(shape)[at] for name, array in state.items()}
        flat = {name: array.reshape(-1) for name, array in slots.items()}
        self.update(step, rows.reshape(-1), gradient.values.reshape(-1), flat, lr_scale, wd_scale)
        value.reshape(shape)[at] = rows
        for name, array in slots.items():
            state[name].reshape(shape)[at] = array

    def change_at(self, step: int) -> Change:
        """Return what changes a block at ``step``: :meth:`change`, unless the formula knows the step."""
        return self.change

    @abstractmethod
    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Change ``w`` and ``slots``, blocks of equal length, in place, elementwise.

        ``t`` and ``s`` are scratch; ``g`` may be ``t`` itself and must not be written otherwise.
        """

    def part(self, field: str, default: Any = None) -> Any:
        """Return the message in ``field`` of the configuration, or else ``default``; JobError without either."""
        value = getattr(self.conf, field) or default
        if value is None:
            raise self.conf.error(f"updater {self.conf.type.name} wants {field} {{ ... }}", "type")
        return value


def block_of(array: Any) -> int:
    """Return how many elements are changed at once: the caches of a CPU are small, a device takes an array whole."""
    return max(1, min(array.size, BLOCK) if type(array) is np.ndarray else array.size)


def shrinkage(gradient: np.ndarray, most: float) -> float:
    """Return the factor, at most 1, that brings a gradient down to the Euclidean norm ``most``.

    1 for one that is not finite: it is not made to look as if it were.
    """
    squares, length = 0.0, block_of(gradient)
    for start in range(0, gradient.size, length):
        squares += float(np.square(gradient[start : start + length], dtype=np.float64).sum())
    norm = math.sqrt(squares)
    return most / norm if most < norm < math.inf else 1.0
