"""Small nets as people train them on one core, their records, and how a process that measures them prints figures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tools.benchmarks.timing import peak_megabytes

Rows = tuple[tuple[Any, ...], ...]  # layers as in tools.benchmarks.nets.Net; "tanh" is the plain one, "gru" has units
Arrays = dict[str, np.ndarray]
Seconds = Callable[[int], float]  # does so many steps, and returns the seconds of processor time that they take
WARM_UP = 300  # steps before the first turn


class SmallCase(NamedTuple):
    """A small net, the number of records of a step, its updater, and what is timed.

    ``task`` is "fit" (training on arrays in memory, shuffled), "job" (the same by the digits' job file), "dqn" and
    "ppo" (an update of CartPole's algorithm), or "act" (an agent's best action for one observation).
    """

    record: tuple[int, ...]
    layers: Rows
    batch: int
    updater: str = "adam"
    task: str = "fit"


CONVNET: Rows = (
    *(("convolution", 16, 3, 1, 1), ("relu",), ("max", 2, 2)),
    *(("convolution", 32, 3, 1, 1), ("relu",), ("max", 2, 2)),
    *(("flatten",), ("dense", 10)),
)
VALUES: Rows = (("dense", 64), ("relu",), ("dense", 64), ("relu",), ("dense", 2))
POLICY: Rows = (("dense", 64), ("tanh",), ("dense", 64), ("tanh",), ("dense", 2))
VALUE: Rows = (*POLICY[:-1], ("dense", 1))
RATES, MOMENTUM = {"sgd": 0.005, "adam": 0.001}, 0.9
CART, ACTIONS, CLASSES = (4,), 2, 10  # the shape of CartPole's observations, and its actions
CLIP, VALUE_SCALE, LARGEST_NORM = 0.2, 0.5, 0.5  # of PPO

SMALL_CASES = {
    **{
        f"dense-{updater}-{batch}": SmallCase((64,), (("dense", 64), ("relu",), ("dense", 10)), batch, updater)
        for updater in RATES
        for batch in (1, 32, 256)
    },
    "convnet": SmallCase((1, 8, 8), CONVNET, 64, "sgd"),
    "digits-job": SmallCase((1, 8, 8), CONVNET, 64, "sgd", "job"),
    "gru": SmallCase((16, 8), (("gru", 32), ("dense", 10)), 32),
    "dqn-update": SmallCase(CART, VALUES, 64, task="dqn"),
    "ppo-update": SmallCase(CART, POLICY, 256, task="ppo"),
    "agent-action": SmallCase(CART, VALUES, 1, task="act"),
}


def records(case: SmallCase, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random records and their classes for so many steps, or for the warm-up if that is longer."""
    rng, count = np.random.default_rng(0), max(steps, WARM_UP) * case.batch
    return rng.normal(size=(count, *case.record)).astype(np.float32), rng.integers(0, CLASSES, count)


def transitions(batch: int) -> Arrays:
    """Return a batch of random transitions by the names of :class:`dsinga.rl.experience.Transitions`."""
    rng, ones = np.random.default_rng(0), np.ones(batch, np.float32)
    observations, following = rng.normal(size=(2, batch, *CART)).astype(np.float32)
    return {
        "observations": observations,
        "actions": rng.integers(0, ACTIONS, batch),
        "rewards": ones,
        "next_observations": following,
        "terminated": rng.random(batch) < 0.05,
        "weights": ones,
        "indices": np.arange(batch),
        "discounts": 0.99 * ones,
    }


def minibatch(batch: int) -> Arrays:
    """Return a random minibatch of PPO: observations, actions, advantages, returns and logs of probabilities."""
    rng = np.random.default_rng(0)
    advantages, returns, logs = rng.normal(size=(3, batch)).astype(np.float32)
    return {
        "observations": rng.normal(size=(batch, *CART)).astype(np.float32),
        "actions": rng.integers(0, ACTIONS, batch),
        "advantages": advantages,
        "returns": returns,
        "logs": -np.abs(logs),
    }


def repeated(call: Callable[[], object]) -> Seconds:
    """Return the function of a number of steps that calls a function so many times."""

    def seconds(steps: int) -> float:
        started = time.process_time()
        for _ in range(steps):
            call()
        return time.process_time() - started

    return seconds


def print_turns(seconds: Seconds, steps: int, **further: float) -> None:
    """Print the microseconds of a step and the peak megabytes in a line of JSON, and again for each line of the input.

    ``further`` are figures that each line repeats.
    """
    while True:
        microseconds = 1e6 * seconds(steps) / steps
        print(json.dumps({"us": microseconds, "mb": peak_megabytes(), **further}), flush=True)
        if not sys.stdin.readline():
            return


def measure(makers: Mapping[str, Callable[[SmallCase, int], Seconds]]) -> None:
    """Print the turns of the case and with the steps that the command line names; ``makers`` are by task."""
    case, steps = SMALL_CASES[sys.argv[1]], int(sys.argv[2])
    seconds = makers[case.task](case, steps)
    seconds(WARM_UP)
    print_turns(seconds, steps)
