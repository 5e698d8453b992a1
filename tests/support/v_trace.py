"""V-trace in numpy, step by step: what the layer of V-trace, kVTrace, is compared with."""

from typing import NamedTuple

import numpy as np

from dsinga.rl.algorithms.actor_critic import following_values, single


class VTrace(NamedTuple):
    """V-trace targets of the values (T, N), and advantages (T, N) for the policy gradient: float32."""

    targets: np.ndarray
    advantages: np.ndarray


def v_trace(
    log_ratios: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    last_values: np.ndarray,
    *,
    discount: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """Return the V-trace targets of Espeholt et al. 2018, "IMPALA".

    ``log_ratios`` (T, N) are the logs of the probabilities of the actions by the policy that learns, less those by the
    policy that acted. The ratios are clipped at ``rho_clip`` in the temporal-difference errors and at ``c_clip`` in the
    factors that carry later errors back. With equal policies the targets are the n-step returns.
    """
    ended = terminated | truncated
    ratios = np.exp(log_ratios)
    rhos, factors = np.minimum(ratios, rho_clip), discount * np.minimum(ratios, c_clip) * ~ended
    following = following_values(values, terminated, truncated, bootstrap, last_values)
    corrections = rhos * (rewards + discount * following - values)
    for step in range(len(rewards) - 2, -1, -1):
        corrections[step] += factors[step] * corrections[step + 1]
    targets = values + corrections
    following_targets = following_values(targets, terminated, truncated, bootstrap, last_values)
    return VTrace(single(targets), single(rhos * (rewards + discount * following_targets - values)))
