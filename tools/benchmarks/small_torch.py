"""Measure PyTorch on a small net: ``python -m tools.benchmarks.small_torch CASE STEPS``.

With BENCHMARK_COMPILED in the environment its forward pass and loss are compiled by TorchInductor. Optimizers are
fused, batches are taken from shuffled tensors in memory, and the loss of each step is read, as for a report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.benchmarks import small_nets
from tools.benchmarks.small_nets import CLIP, Rows, Seconds, SmallCase, repeated
from tools.benchmarks.timing import COMPILED
from tools.benchmarks.torch_nets import LAYERS


class LastState(nn.Module):
    """The last hidden state of a GRU."""

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.gru = nn.GRU(inputs, units, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, units) of (B, T, inputs)."""
        return self.gru(x)[1][0]


def sequential(layers: Rows, record: tuple[int, ...]) -> nn.Sequential:
    """Return a net for records of a shape."""
    kinds = {**LAYERS, "tanh": nn.Tanh, "gru": lambda units: LastState(record[-1], units)}
    net = nn.Sequential(*(kinds[kind](*numbers) for kind, *numbers in layers))
    net(torch.zeros(1, *record))  # which makes the params
    return net


def compiled(function: Any) -> Any:
    """Return a function or net, compiled where this process measures compiled ones."""
    return torch.compile(function) if COMPILED else function


def stepper(case: SmallCase, net: nn.Module, loss: Callable[..., Tensor], limit: float = 0.0) -> Callable[..., float]:
    """Return a function of a batch that does a step of the optimizer, and returns the loss."""
    loss, params, rate = compiled(loss), list(net.parameters()), small_nets.RATES[case.updater]
    if case.updater == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(params, rate, small_nets.MOMENTUM, fused=True)
    else:
        optimizer = torch.optim.Adam(params, rate, fused=True)

    def step(*batch: Tensor) -> float:
        optimizer.zero_grad()
        value = loss(*batch)
        value.backward()
        if limit:
            nn.utils.clip_grad_norm_(params, limit)
        optimizer.step()
        return value.item()

    return step


def fit(case: SmallCase, steps: int) -> Seconds:
    """Return the function that trains on shuffled records."""
    x, y = map(torch.from_numpy, small_nets.records(case, steps))
    net = sequential(case.layers, case.record)
    step = stepper(case, net, lambda x, y: functional.cross_entropy(net(x), y))

    def seconds(steps: int) -> float:
        started = time.process_time()
        for rows in torch.randperm(steps * case.batch).split(case.batch):
            step(x[rows], y[rows])
        return time.process_time() - started

    return seconds


def dqn(case: SmallCase, _: int) -> Seconds:
    """Return the function that does updates of DQN by a batch of arrays."""
    net, target = sequential(case.layers, case.record), compiled(sequential(case.layers, case.record))
    batch = small_nets.transitions(case.batch)

    def loss(observations: Tensor, actions: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        values = net(observations).gather(1, actions[:, None])[:, 0]
        return (weights * functional.smooth_l1_loss(values, targets, reduction="none")).mean()

    step = stepper(case, net, loss)

    def update() -> float:
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        with torch.no_grad():
            following = target(tensors["next_observations"]).max(1).values
            targets = tensors["rewards"] + tensors["discounts"] * following * ~tensors["terminated"]
        return step(tensors["observations"], tensors["actions"], targets, tensors["weights"])

    return repeated(update)


def ppo(case: SmallCase, _: int) -> Seconds:
    """Return the function that does updates of PPO by a minibatch of arrays."""
    nets = nn.ModuleList([sequential(layers, case.record) for layers in (case.layers, small_nets.VALUE)])
    policy, value = nets
    batch = small_nets.minibatch(case.batch)

    def loss(observations: Tensor, actions: Tensor, advantages: Tensor, returns: Tensor, logs: Tensor) -> Tensor:
        new = functional.log_softmax(policy(observations), 1).gather(1, actions[:, None])[:, 0]
        ratio = torch.exp(new - logs)
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        error = functional.mse_loss(value(observations)[:, 0], returns)
        return small_nets.VALUE_SCALE * error - gain.mean()

    step = stepper(case, nets, loss, small_nets.LARGEST_NORM)
    return repeated(lambda: step(*map(torch.from_numpy, batch.values())))


def act(case: SmallCase, _: int) -> Seconds:
    """Return the function that asks for the best action for an observation."""
    net = compiled(sequential(case.layers, case.record))
    observation = np.zeros(case.record, np.float32)

    def best() -> int:
        with torch.inference_mode():
            return int(net(torch.from_numpy(observation)[None]).argmax(1))

    return repeated(best)


if __name__ == "__main__":
    torch.set_num_threads(1)
    small_nets.measure({"fit": fit, "job": fit, "dqn": dqn, "ppo": ppo, "act": act})
