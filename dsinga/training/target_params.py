"""Target params of DQN and DDPG: a second set of params that follows the trained ones, by copies or small steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


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
