"""The exponential moving average (EMA) of params: a part of the updater's state, which tests and results use.

After an update, a = d·a + (1 - d)·w for the param w and its average a. It is exact however a net is cut and wherever
params are updated, and a checkpoint has it with the rest of the updater's state, in its slot ``EMA_SLOT``.
The target params of DQN and DDPG, which follow the trained ones by copies or small steps, are changed here, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dsinga.job import EMAConf


def decay_at(conf: EMAConf | None, step: int) -> float | None:
    """Return the decay d with which the update of ``step``, counted from 0, goes into averages; None where it does not.

    Every ``every`` updates go in. Of the t-th of these, counted from 0, d is 0 for t = 0, which copies the params as in
    Keras and PyTorch, then ``decay`` or, with ``warmup``, min(decay, 1 - (1 + t)^(-2/3)) as in timm and diffusers.
    """
    if conf is None or (step + 1) % conf.every:
        return None
    count = (step + 1) // conf.every - 1
    if not count:
        return 0.0
    return float(min(conf.decay, 1.0 - (1.0 + count) ** (-2 / 3))) if conf.warmup else conf.decay


def copy_params(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a copy of params (a hard update)."""
    return {name: value.copy() for name, value in params.items()}


def follow(target: Mapping[str, np.ndarray], params: Mapping[str, np.ndarray], share: float) -> None:
    """Move ``target``, in place, by ``share`` of the way to ``params``: (1 - share)·target + share·params.

    This is the soft update of Lillicrap et al. 2016, whose tau is ``share``; a share of 1 copies.
    """
    for name, value in target.items():
        if share < 1:
            value += np.float32(share) * (params[name] - value)
        else:
            value[...] = params[name]
