"""An update of MinAtar's DQN net here and in PyTorch: ``python -m tests.benchmarks.bench_dqn [CHANNELS]``.

The net of Young and Tian 2019, "MinAtar": images 10 x 10 x n, a convolution of 16 filters 3 x 3, 128 units, a value
for each of 6 actions; batches of 32, Huber's loss, RMSProp, a target net. PyTorch's side is in the form of MinAtar's
``examples/dqn.py``: transitions are tuples of tensors in a list, the optimizer is its centred RMSProp. Both run in turn
in this process, with one thread; figures are processor time of the thread, since other processes disturb wall time.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402

from dsinga import nn, rl  # noqa: E402

ACTIONS, BATCH, MEMORY, TURNS, UPDATES = 6, 32, 5000, 20, 50


def new_model(channels: int) -> rl.Model:
    """Return MinAtar's net."""
    x = nn.Input(shape=(channels, 10, 10), name="observation")
    hidden = nn.Flatten()(nn.Conv2D(16, 3, activation="relu")(x))
    return rl.Model(nn.Model(x, nn.Dense(ACTIONS)(nn.Dense(128, activation="relu")(hidden))))


def algorithm_and_memory(channels: int) -> tuple[rl.DQN, rl.ReplayMemory]:
    """Return our algorithm, and a memory of random transitions."""
    spaces = rl.Spaces(rl.box((channels, 10, 10), 0, 1, np.uint8), rl.DiscreteSpace(ACTIONS))
    algorithm = rl.DQN(
        new_model(channels), spaces, updater=nn.RMSprop(2.5e-4, rho=0.95, epsilon=1e-4), target_every=1000
    )
    memory, rng = rl.ReplayMemory(spaces, MEMORY), np.random.default_rng(0)
    observation = images(rng, channels)
    none, no_finals = np.zeros(0, np.int64), np.zeros((0, channels, 10, 10), np.uint8)
    for _ in range(MEMORY):
        following, terminated = images(rng, channels), rng.random(1) < 0.02
        ended = np.flatnonzero(terminated) if terminated[0] else none
        step = rl.EnvironmentStep(
            *(following, rng.integers(0, 2, 1).astype(np.float32), terminated, np.zeros(1, np.bool_), ended),
            following if terminated[0] else no_finals,
        )
        memory.add(observation, rng.integers(0, ACTIONS, 1), step)
        observation = following
    return algorithm, memory


def images(rng: np.random.Generator, channels: int) -> np.ndarray:
    """Return an observation as sparse as those of MinAtar, (1, n, 10, 10) uint8."""
    return (rng.random((1, channels, 10, 10)) < 0.05).astype(np.uint8)


class TorchNet(torch.nn.Module):
    """MinAtar's net."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, 16, kernel_size=3, stride=1)
        self.hidden = torch.nn.Linear(16 * 64, 128)
        self.output = torch.nn.Linear(128, ACTIONS)

    def forward(self, x: Any) -> Any:
        """Return the values of actions."""
        x = torch.relu(self.conv(x))
        return self.output(torch.relu(self.hidden(x.view(x.size(0), -1))))


class TorchDQN:
    """The DQN of MinAtar's ``examples/dqn.py``."""

    def __init__(self, channels: int, centred: bool = True):
        self.policy, self.target = TorchNet(channels), TorchNet(channels)
        self.target.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.RMSprop(
            self.policy.parameters(), lr=2.5e-4, alpha=0.95, centered=centred, eps=0.01
        )
        self.memory: list[Any] = []
        self._place = 0

    def remember(
        self, state: np.ndarray, following: np.ndarray, action: int, reward: float, ended: bool, capacity: int
    ) -> None:
        """Keep a transition, in place of the oldest one if there are ``capacity``."""
        transition = (
            torch.tensor(state[None], dtype=torch.float32),
            torch.tensor(following[None], dtype=torch.float32),
            torch.tensor([[action]]),
            torch.tensor([[reward]], dtype=torch.float32),
            torch.tensor([[ended]]),
        )
        if len(self.memory) < capacity:
            self.memory.append(transition)
        else:
            self.memory[self._place] = transition
            self._place = (self._place + 1) % capacity

    def draw(self) -> list[Any]:
        """Return a batch, as tensors."""
        return [torch.cat(part) for part in zip(*random.sample(self.memory, BATCH), strict=True)]

    def learn(self, batch: list[Any]) -> None:
        """Do one update."""
        states, following, actions, rewards, terminated = batch
        values = self.policy(states).gather(1, actions)
        goes_on = torch.tensor([i for i, ended in enumerate(terminated.view(-1).tolist()) if not ended])
        next_values = torch.zeros(len(states), 1)
        next_values[goes_on] = self.target(following.index_select(0, goes_on)).detach().max(1)[0].unsqueeze(1)
        loss = torch.nn.functional.smooth_l1_loss(rewards + 0.99 * next_values, values)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def microseconds(update: Callable[[], Any]) -> list[float]:
    """Return the CPU times of some updates."""
    times = []
    for _ in range(UPDATES):
        begun = time.thread_time()
        update()
        times.append((time.thread_time() - begun) * 1e6)
    return times


def main() -> None:
    """Print the median time of an update, alone and with drawing its batch from the memory, and the ratios."""
    channels = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    torch.set_num_threads(1)
    algorithm, memory = algorithm_and_memory(channels)
    peer, rng = TorchDQN(channels), np.random.default_rng(2)
    batch = memory.sample(MEMORY, np.random.default_rng(1))
    columns = batch.observations, batch.next_observations, batch.actions, batch.rewards, batch.terminated
    for state, following, action, reward, ended in zip(*columns, strict=True):
        peer.remember(state, following, int(action), float(reward), bool(ended), MEMORY)
    batch, tensors = memory.sample(BATCH, rng), peer.draw()
    updates: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "update": (lambda: algorithm.learn(batch), lambda: peer.learn(tensors)),
        "draw and update": (
            lambda: algorithm.learn(memory.sample(BATCH, rng)),
            lambda: peer.learn(peer.draw()),
        ),
    }
    for name, pair in updates.items():
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(TURNS + 1):
            for side, update in enumerate(pair):
                measured = microseconds(update)
                if turn:  # the first one warms up
                    times[side].extend(measured)
        ours, theirs = (statistics.median(side) for side in times)
        print(f"{name}: dsinga {ours:.0f} us, PyTorch {torch.__version__} {theirs:.0f} us, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
