"""Measure dsinga on a small net: ``python -m tools.benchmarks.small_ours CASE STEPS``, as its users train it.

The steps of ``fit`` and of a job are timed without the beginning and the end of a run: a long run less a short one. The
line of figures also has the Python functions that a step calls, those of any module and those of dsinga.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import dsinga
from dsinga import nn, rl
from dsinga.rl.algorithms import actor_critic
from dsinga.rl.experience import Transitions
from tools.benchmarks import small_nets
from tools.benchmarks.small_nets import Rows, SmallCase, repeated

FOLDER = str(Path(dsinga.__file__).parent)
DIGITS = f"{FOLDER}/examples/digits"
SHORT, COUNTED = 100, 50  # steps of a short run, and those over which calls are counted
LAYERS: dict[str, Callable[..., Any]] = {
    "convolution": lambda filters, size, stride, pad: nn.Conv2D(filters, size, padding="same" if pad else "valid"),
    "max": nn.MaxPooling2D,
    "flatten": nn.Flatten,
    "dense": nn.Dense,
    "relu": functools.partial(nn.Activation, "relu"),
    "tanh": functools.partial(nn.Activation, "tanh"),
    "gru": nn.GRU,
}


def model(case: SmallCase, *further: Rows) -> nn.Model:
    """Return the model of a case, with further heads."""
    x = nn.Input(shape=case.record, name="observation")
    heads = [functools.reduce(lambda x, row: LAYERS[row[0]](*row[1:])(x), rows, x) for rows in (case.layers, *further)]
    return nn.Model(x, heads)


def updater(case: SmallCase) -> Any:
    """Return the updater of a case."""
    rate = small_nets.RATES[case.updater]
    return nn.SGD(rate, momentum=small_nets.MOMENTUM) if case.updater == "sgd" else nn.Adam(rate)


def fit(case: SmallCase, steps: int) -> Callable[[int], object]:
    """Return a function that trains so many steps on shuffled records."""
    x, y = small_nets.records(case, SHORT + steps)
    trained = model(case)
    trained.compile(updater(case), "sparse_categorical_crossentropy")

    def train(steps: int) -> None:
        rows = steps * case.batch
        trained.fit(x[:rows], y[:rows], batch_size=case.batch, epochs=1, progress=False)

    return train


def digits(case: SmallCase, steps: int) -> Callable[[int], object]:
    """Return a function that trains so many steps of the job of the digits."""
    job = dsinga.load(f"{DIGITS}/job.conf").replace(test_freq=0, disp_freq=0)
    return lambda steps: dsinga.train(job.replace(train_steps=steps), data_root=DIGITS, progress=False)


def spaces() -> Any:
    """Return the spaces of CartPole."""
    return rl.Spaces(rl.box(small_nets.CART, -10, 10, np.float32), rl.DiscreteSpace(small_nets.ACTIONS))


def dqn_of(case: SmallCase) -> rl.DQN:
    """Return an algorithm whose target params follow seldom."""
    return rl.DQN(rl.Model(model(case)), spaces(), updater=updater(case), target_every=1000)


def dqn(case: SmallCase, _: int) -> Callable[[int], object]:
    """Return a function that does so many updates of DQN."""
    algorithm, batch = dqn_of(case), Transitions(**small_nets.transitions(case.batch))
    return repeated(lambda: algorithm.learn(batch))


def ppo(case: SmallCase, _: int) -> Callable[[int], object]:
    """Return a function that does so many updates of PPO by a minibatch."""
    heads = rl.Model(model(case, small_nets.VALUE))
    settings = {"clip": small_nets.CLIP, "max_gradient_norm": small_nets.LARGEST_NORM}
    algorithm = rl.PPO(heads, spaces(), updater=updater(case), **settings)
    observations, *columns = small_nets.minibatch(case.batch).values()
    names = actor_critic.ACTION, actor_critic.ADVANTAGE, actor_critic.RETURN, actor_critic.LOG_PROBABILITY
    rows = {"observation": observations}
    rows |= {name: column[:, np.newaxis].astype(np.float32) for name, column in zip(names, columns, strict=True)}
    return repeated(lambda: algorithm.update(rows))


def act(case: SmallCase, _: int) -> Callable[[int], object]:
    """Return a function that asks an agent so many times for its best action."""
    agent, observation = rl.Agent(dqn_of(case)), np.zeros(case.record, np.float32)
    return repeated(lambda: agent.predict(observation))


def calls_of(train: Callable[[int], object], steps: int) -> tuple[int, int]:
    """Return how many Python functions a run calls, in all threads: those of any module, and those of dsinga."""
    counters = itertools.count(), itertools.count()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            next(counters[0])
            if frame.f_code.co_filename.startswith(FOLDER):
                next(counters[1])

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        train(steps)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return next(counters[0]), next(counters[1])


def main(name: str, steps: int) -> None:
    """Print the figures of a case, turn by turn."""
    case = small_nets.SMALL_CASES[name]
    makers = {"fit": fit, "job": digits, "dqn": dqn, "ppo": ppo, "act": act}
    train = makers[case.task](case, steps)
    train(small_nets.WARM_UP)
    short, long = (calls_of(train, SHORT + further) for further in (0, COUNTED))
    of_all, of_ours = ((after - before) / COUNTED for before, after in zip(short, long, strict=True))

    def seconds(steps: int) -> float:
        short, long = (repeated(functools.partial(train, SHORT + further)) for further in (0, steps))
        return long(1) - short(1)

    small_nets.print_turns(seconds, steps, calls=of_all, own_calls=of_ours)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
