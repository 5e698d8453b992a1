"""PPO in PyTorch for CartPole, as a peer, with the net of datasets/cartpole/ppo.conf and one kernel thread.

The kind "cleanrl" is in the form of CleanRL's ppo.py: a loop of Gymnasium's environments (SyncVectorEnv), entropy, the
clipped loss of values, and statistics of each update. The kind "vector" steps the array environments of dsinga, and has
the losses of the job.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import nn

from dsinga import rl


class Settings(NamedTuple):
    """The settings of PPO on which its speed depends."""

    environments: int
    steps: int
    epochs: int
    minibatches: int

    def __str__(self) -> str:
        return f"{self.environments} environments x {self.steps}, {self.epochs} x {self.minibatches} updates"


def _layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _tower(outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(_layer(4, 64), nn.Tanh(), _layer(64, 64), nn.Tanh(), _layer(64, outputs, gain))


class _Environments:
    """Environments that are stepped together: a loop of Gymnasium's, or dsinga's array environments."""

    def __init__(self, kind: str, count: int, seed: int):
        self.loop: Any = None
        if kind == "cleanrl":
            make = lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))  # noqa: E731
            mode = gymnasium.vector.AutoresetMode.SAME_STEP
            self.loop = gymnasium.vector.SyncVectorEnv([make] * count, autoreset_mode=mode)
            self.observations = self.loop.reset(seed=seed)[0]
        else:
            self.vector = rl.make_environments("CartPole-v1", count, seed=seed)
            self.observations = self.vector.reset()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.loop is not None:
            self.observations, rewards, terminated, truncated, _ = self.loop.step(actions)
            return rewards, terminated | truncated
        step = self.vector.step(actions)
        self.observations = step.observations
        return step.rewards, step.terminated | step.truncated


class TorchPPO:
    """A run of PPO; ``iterate`` collects a rollout and learns from it."""

    def __init__(self, kind: str, settings: Settings, seed: int):
        environments, steps, self.epochs, self.minibatches = settings
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.kind, self.shape = kind, (steps, environments)
        self.environments = _Environments(kind, environments, seed)
        self.actor, self.critic = _tower(2, 0.01), _tower(1, 1.0)
        self.params = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.params, lr=1e-3, eps=1e-5)

    def iterate(self) -> None:
        """Collect a rollout and learn from it."""
        self._learn(*self._rollout())

    def _rollout(self) -> tuple[torch.Tensor, ...]:
        observations, actions = torch.zeros(*self.shape, 4), torch.zeros(*self.shape)
        logs, rewards = torch.zeros(*self.shape), torch.zeros(*self.shape)
        dones, values = torch.zeros(*self.shape), torch.zeros(*self.shape)
        for t in range(self.shape[0]):
            observations[t] = torch.as_tensor(self.environments.observations)
            with torch.no_grad():
                distribution = torch.distributions.Categorical(logits=self.actor(observations[t]))
                actions[t] = action = distribution.sample()
                if self.kind == "cleanrl":
                    distribution.entropy()
                logs[t], values[t] = distribution.log_prob(action), self.critic(observations[t]).flatten()
            reward, done = self.environments.step(action.numpy())
            rewards[t], dones[t] = torch.as_tensor(reward), torch.as_tensor(done, dtype=torch.float32)
        with torch.no_grad():
            following = self.critic(torch.as_tensor(self.environments.observations)).flatten()
        advantages, last = torch.zeros_like(rewards), torch.zeros(self.shape[1])
        for t in reversed(range(self.shape[0])):
            error = rewards[t] + 0.99 * following * (1 - dones[t]) - values[t]
            advantages[t] = last = error + 0.99 * 0.95 * (1 - dones[t]) * last
            following = values[t]
        returns = advantages + values
        columns = actions, logs, advantages, returns, values
        return observations.reshape(-1, 4), *(column.flatten() for column in columns)

    def _learn(self, *columns: torch.Tensor) -> None:
        count = len(columns[1])
        for _ in range(self.epochs):
            order = torch.randperm(count)
            for rows in order.split(-(-count // self.minibatches)):
                observations, actions, old, advantages, returns, values = (column[rows] for column in columns)
                distribution = torch.distributions.Categorical(logits=self.actor(observations))
                ratio = (distribution.log_prob(actions) - old).exp()
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                policy_loss = -torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()
                value = self.critic(observations).flatten()
                errors = (value - returns) ** 2
                if self.kind == "cleanrl":
                    with torch.no_grad():
                        difference = ratio.log()
                        self.statistics = [
                            (-difference).mean(),
                            (ratio - 1 - difference).mean(),
                            ((ratio - 1).abs() > 0.2).float().mean().item(),
                        ]
                    near = values + (value - values).clamp(-0.2, 0.2)
                    errors = torch.max(errors, (near - returns) ** 2)
                loss = policy_loss + 0.5 * errors.mean()
                if self.kind == "cleanrl":
                    loss = loss - 0.01 * distribution.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.params, 0.5)
                self.optimizer.step()
