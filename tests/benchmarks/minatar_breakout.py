"""MinAtar's Breakout learnt by DQN here and in PyTorch: ``python -m tests.benchmarks.minatar_breakout [--peer]``.

Prints the mean return of the last 100 episodes every 25,000 frames, for each seed. Net, settings and environment are
those of Young and Tian 2019, "MinAtar", and its ``examples/dqn.py``, with an RMSProp that is not centred on both sides.
Needs ``pip install --no-deps minatar``; ``--peer`` trains by PyTorch's DQN. Results belong in docs/dev/measurements.md.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator
from typing import Any

import click
import numpy as np
import torch
from gymnasium import spaces

from dsinga import nn, rl
from tests.benchmarks.bench_dqn import TorchDQN, new_model

ROWS, CHANNELS, EPISODES = 25_000, 4, 100
LEARN_AFTER, MEMORY, EPSILON_STEPS, LAST_EPSILON = 5_000, 100_000, 100_000, 0.1


class Breakout:
    """MinAtar's Breakout with Gymnasium's interface; images (4, 10, 10) uint8, one in ten actions is repeated."""

    observation_space = spaces.Box(0, 1, (CHANNELS, 10, 10), np.uint8)
    action_space = spaces.Discrete(6)
    metadata: dict[str, Any] = {}

    def __init__(self) -> None:
        from minatar import Environment

        self._game = Environment("breakout", difficulty_ramping=False)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._game.seed(seed)
        self._game.reset()
        return self._image(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, ended = self._game.act(int(action))
        return self._image(), float(reward), bool(ended), False, {}

    def _image(self) -> np.ndarray:
        return np.ascontiguousarray(self._game.state().transpose(2, 0, 1), np.uint8)


def train(seed: int, frames: int) -> Iterator[tuple[int, float]]:
    """Train by ``rl.train``; yield frames and mean returns."""
    agent_spaces = rl.make_environments(Breakout, 1).spaces
    settings: dict[str, Any] = {"target_every": 1000, "last_epsilon": LAST_EPSILON, "epsilon_steps": EPSILON_STEPS}
    updater = nn.RMSprop(2.5e-4, rho=0.95, epsilon=1e-4)
    agent = rl.Agent(rl.DQN(new_model(CHANNELS), agent_spaces, updater=updater, seed=seed, **settings), seed)
    result = rl.train(
        *(agent, Breakout), steps=frames, environments=1, rollout_steps=ROWS // 10, log_every=ROWS, seed=seed,
        replay=rl.ReplaySettings(capacity=MEMORY, learn_after=LEARN_AFTER), evaluation_episodes=0, progress=False,
    )  # fmt: skip
    yield from ((row["step"], row["episode_return"]) for row in result.history.phase("train"))


def train_peer(seed: int, frames: int) -> Iterator[tuple[int, float]]:
    """Train by PyTorch's DQN; yield frames and mean returns."""
    torch.manual_seed(seed)
    rng, peer, game = np.random.default_rng(seed), TorchDQN(CHANNELS, centred=False), Breakout()
    returns: collections.deque[float] = collections.deque(maxlen=EPISODES)
    image, total = game.reset(seed)[0], 0.0
    for frame in range(1, frames + 1):
        epsilon = max(LAST_EPSILON, 1 - (1 - LAST_EPSILON) * frame / EPSILON_STEPS)
        action = int(rng.integers(6)) if rng.random() < epsilon else peer.best_action(image)
        following, reward, ended, _, _ = game.step(action)
        peer.remember(image, following, action, reward, ended, MEMORY)
        total, image = total + reward, following
        if ended:
            returns.append(total)
            image, total = game.reset()[0], 0.0
        if frame >= LEARN_AFTER:
            peer.learn(peer.draw())
            if (frame - LEARN_AFTER + 1) % 1000 == 0:
                peer.target.load_state_dict(peer.policy.state_dict())
        if frame % ROWS == 0:
            yield frame, float(np.mean(returns))


@click.command()
@click.option("--seeds", default="1,2,3", show_default=True)
@click.option("--frames", default=500_000, show_default=True)
@click.option("--peer", is_flag=True, help="Train by PyTorch.")
def main(seeds: str, frames: int, peer: bool) -> None:
    """Print the curve of each seed, and the time it took."""
    torch.set_num_threads(1)
    for seed in map(int, seeds.split(",")):
        began = time.process_time()
        for frame, mean in (train_peer if peer else train)(seed, frames):
            click.echo(f"{'PyTorch' if peer else 'dsinga'} seed {seed} frame {frame:,}: mean return {mean:.2f}")
        click.echo(f"seed {seed}: {time.process_time() - began:.0f} s of processor time")


if __name__ == "__main__":
    main()
