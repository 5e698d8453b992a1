"""Steps of environments by a Collector beside Gymnasium alone: ``python -m tests.benchmarks.bench_collecting``.

Both take the same random actions, drawn beforehand, and reset environments whose episode has ended: a random policy
ends episodes of CartPole after some 20 steps, the worst case for the bookkeeping. They run in turn; figures are medians
of the thread's processor time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import gymnasium
import numpy as np

from dsinga import rl
from dsinga.rl.environments import CART_POLE, CART_POLE_VECTOR_FROM

STEPS = 500  # of all environments, in a turn


def gymnasium_alone(name: str, count: int, actions: np.ndarray) -> Callable[[], None]:
    """Return a function that steps Gymnasium's vector class of CartPole, or single environments in a loop."""
    if count >= CART_POLE_VECTOR_FROM and gymnasium.spec(name).vector_entry_point == CART_POLE:
        vector = gymnasium.make_vec(name, num_envs=count)
        vector.reset(seed=0)

        def step_vector() -> None:
            for row in actions:
                vector.step(row)

        return step_vector
    single = [gymnasium.make(name) for _ in range(count)]
    for number, environment in enumerate(single):
        environment.reset(seed=number)
    rows = actions.tolist() if actions.dtype.kind == "i" else actions

    def step_all() -> None:
        for row in rows:
            for environment, action in zip(single, row, strict=True):
                _, _, terminated, truncated, _ = environment.step(action)
                if terminated or truncated:
                    environment.reset()

    return step_all


def collected(name: str, count: int, actions: np.ndarray) -> Callable[[], object]:
    """Return a function that collects a rollout."""
    collector, rows = rl.Collector(rl.make_environments(name, count)), iter(())

    def sample(observations: np.ndarray) -> rl.Sampled:
        return rl.Sampled(next(rows), {})

    def collect() -> object:
        nonlocal rows
        rows = iter(actions)
        return collector.rollout(sample, STEPS)

    return collect


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call, for a step."""
    begun = time.thread_time()
    call()
    return (time.thread_time() - begun) / STEPS


@click.command()
@click.argument("names", nargs=-1)
@click.option("--turns", default=9)
def main(names: tuple[str, ...], turns: int) -> None:
    """Print a row for each environment and number of environments."""
    print("| environment | number | Gymnasium alone, us a step | collected | steps/s | share of Gymnasium |")
    for name in names or ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
        space = rl.make_environments(name, 1).spaces.action
        for count in (1, 8, 64):
            rng, shape = np.random.default_rng(0), (STEPS, count)
            discrete = isinstance(space, rl.DiscreteSpace)
            actions = rng.integers(0, space.n, shape) if discrete else rng.random((*shape, *space.shape), np.float32)
            calls = gymnasium_alone(name, count, actions), collected(name, count, actions)
            times = [[seconds(call) for call in calls] for _ in range(turns + 1)][1:]
            alone, ours = (statistics.median(column) for column in zip(*times, strict=True))
            figures = f"{alone * 1e6:.1f} | {ours * 1e6:.1f} | {count / ours:,.0f} | {alone / ours:.2f}"
            print(f"| {name} | {count} | {figures} |")


if __name__ == "__main__":
    main()
