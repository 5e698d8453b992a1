"""Models of agents and batches of transitions for tests of reinforcement learning."""

from typing import Any

import numpy as np

from dsinga import nn, rl


def actor_critic(actions: int = 2, heads: int = 2) -> rl.Model:
    """Return a model of observations of four numbers with one hidden layer, a policy and a value."""
    x = nn.Input(shape=4, name="observation")
    hidden = nn.Dense(8, activation="tanh", name="hidden")(x)
    outputs = [nn.Dense(actions, name="policy")(hidden), nn.Dense(1, name="value")(hidden)]
    return rl.Model(nn.Model(x, outputs[:heads]))


def torch_heads(params: dict[str, Any], observations: Any) -> tuple[Any, Any]:
    """Return the policy and the value of the model by PyTorch, from tensors."""
    hidden = (observations @ params["hidden_weight"].T + params["hidden_bias"]).tanh()
    value = hidden @ params["value_weight"].T + params["value_bias"]
    return hidden @ params["policy_weight"].T + params["policy_bias"], value[..., 0]


def torch_policy(policy: Any, actions: Any) -> tuple[Any, Any]:
    """Return log probabilities and entropies by PyTorch; actions that are no integers have two normal numbers each."""
    from torch.distributions import Categorical, Normal

    if not actions.is_floating_point():
        distribution = Categorical(logits=policy)
        return distribution.log_prob(actions), distribution.entropy()
    normal = Normal(policy[..., :2], policy[..., 2:].exp())
    return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1)


def transitions(spaces: rl.Spaces, count: int = 32, seed: int = 0) -> rl.Transitions:
    """Return random transitions between observations of four numbers."""
    rng = np.random.default_rng(seed)
    if isinstance(spaces.action, rl.DiscreteSpace):
        actions = rng.integers(0, spaces.action.n, count)
    else:
        actions = rng.uniform(spaces.action.low, spaces.action.high, (count, *spaces.action.shape)).astype(np.float32)
    return rl.Transitions(
        observations=rng.normal(size=(count, 4)).astype(np.float32),
        actions=actions,
        rewards=rng.normal(size=count).astype(np.float32),
        next_observations=rng.normal(size=(count, 4)).astype(np.float32),
        terminated=rng.random(count) < 0.3,
        weights=rng.random(count).astype(np.float32),
        indices=np.arange(count),
        discounts=np.full(count, 0.9, np.float32),
    )
