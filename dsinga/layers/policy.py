"""Policies as numbers of a net: the log probability and the entropy of a distribution of actions, and their gradients.

A categorical policy is (B, K), scores whose softmax is the probabilities of K actions. A Gaussian policy is (B, 2n):
means of n numbers, then the logs of their standard deviations.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dsinga.job.enums import PolicyDistribution
from dsinga.layers.base import Array, Layer, Shape, as_text
from dsinga.ops import Ops

LOG_TWO_PI = math.log(2 * math.pi)


class ChosenActions(NamedTuple):
    """The log probabilities (or densities) (B,) of actions, and their derivatives by the policy, (B, K) or (B, 2n)."""

    log_probability: Array
    derivative: Array


def chosen_actions(distribution: PolicyDistribution, policy: Array, action: Array, ops: Ops) -> ChosenActions:
    """Return the log probabilities of actions, (B, 1) numbers 0 to K - 1 in any dtype or (B, n), and derivatives."""
    xp = ops.xp
    if distribution is PolicyDistribution.kGaussian:
        means, logs = xp.split(policy, 2, axis=1)
        deviations = (action - means) * xp.exp(-logs)
        squares = deviations * deviations
        constant = policy.dtype.type(0.5 * LOG_TWO_PI * means.shape[1])
        values = -(0.5 * squares + logs).sum(axis=1) - constant
        return ChosenActions(values, xp.concatenate([deviations * xp.exp(-logs), squares - 1], axis=1))
    logs, probabilities = log_softmax(policy, ops)
    rows, numbers = xp.arange(len(policy)), action.reshape(-1).astype(xp.int64)
    derivative = -probabilities
    derivative[rows, numbers] += 1
    return ChosenActions(logs[rows, numbers], derivative)


def entropies(distribution: PolicyDistribution, policy: Array, ops: Ops) -> tuple[Array, Array]:
    """Return the entropy of each row of a policy, (B,) in nats, and its derivatives by the policy."""
    xp = ops.xp
    if distribution is PolicyDistribution.kGaussian:
        means, logs = xp.split(policy, 2, axis=1)
        constant = policy.dtype.type(0.5 * (1 + LOG_TWO_PI) * means.shape[1])
        derivative = xp.zeros_like(policy)
        derivative[:, means.shape[1] :] = 1
        return logs.sum(axis=1) + constant, derivative
    logs, probabilities = log_softmax(policy, ops)
    entropy = -(probabilities * logs).sum(axis=1)
    return entropy, -probabilities * (logs + entropy[:, None])


def log_softmax(scores: Array, ops: Ops) -> tuple[Array, Array]:
    """Return the logs of the softmax of each row, and the softmax itself."""
    xp = ops.xp
    columns = xp.ascontiguousarray(scores.transpose())  # numpy takes far longer to reduce many short rows
    shifted = columns - columns.max(axis=0)
    exponentials = xp.exp(shifted)
    sums = exponentials.sum(axis=0)
    return (shifted - xp.log(sums)).transpose(), (exponentials / sums).transpose()


def check_policy(layer: Layer, distribution: PolicyDistribution, conf: Any) -> int:
    """Return the numbers of an action, from the policy that the first source gives. Raises UserError for a bad shape.

    ``conf`` is the layer's configuration that names the distribution.
    """
    shape = layer.source_shapes[0]
    if len(shape) != 2:
        raise layer.fail(
            f"takes a policy (batch, K), but {layer.source_name(0)} gives {as_text(shape)}", field="srclayers"
        )
    if distribution is PolicyDistribution.kCategorical:
        return 1
    if shape[1] % 2:
        raise layer.fail(
            f"a Gaussian policy has means and as many logs of standard deviations, but {layer.source_name(0)} gives "
            f"{shape[1]} numbers a row; concatenate both",
            conf,
            "distribution",
        )
    return shape[1] // 2


def check_rows(layer: Layer, index: int, size: int, what: str) -> None:
    """Raise UserError unless source ``index`` gives ``size`` numbers for each row of the policy."""
    rows, shape = layer.source_shapes[0][0], layer.source_shapes[index]
    expected: Shape = (rows, size)
    if shape[0] != rows or math.prod(shape[1:]) != size:
        raise layer.fail(
            f"takes {what} {as_text(expected)} from {layer.source_name(index)}, which gives {as_text(shape)}",
            field="srclayers",
        )


def check_actions(layer: Layer, action: Array, count: int, ops: Ops, index: int = 1) -> None:
    """Raise UserError for numbers of actions, from source ``index``, that are not 0 to ``count`` - 1."""
    if not len(action):
        return
    low, high = ops.read([action.min(), action.max()])
    if not 0 <= low <= high < count:
        raise layer.fail(
            f"has {count} actions, 0 to {count - 1}, but {layer.source_name(index)} gives {low:g} to {high:g}; change "
            "the num_output of the policy, or the actions"
        )
