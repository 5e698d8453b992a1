"""Actors as processes on CartPole-v1: steps a second, staleness and the mean return reached, by the number of actors.

``python -m tests.benchmarks.bench_actors`` trains by PPO (gathered), IMPALA, GA3C and A3C with 1, 2 and 4 actors;
``--kill`` lets a process be killed every five seconds meanwhile; ``--simulated 200`` measures so many actors in threads
of one process, and the load of Dask's scheduler in another.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
from distributed import Client

from dsinga import nn, rl
from dsinga.cluster import connect

TASK = "CartPole-v1"
SOLVED = 475.0
KILL_SECONDS = 5.0


def new_model() -> rl.Model:
    observation = nn.Input(shape=4, name="observation")

    def trunk() -> Any:
        return nn.Dense(64, activation="tanh")(nn.Dense(64, activation="tanh")(observation))

    return rl.Model(nn.Model(observation, [nn.Dense(2, name="policy")(trunk()), nn.Dense(1, name="value")(trunk())]))


def new_agent(kind: str, seed: int) -> rl.Agent:
    """Return the agent of a way to train."""
    spaces = rl.make_environments(TASK, 1).spaces
    if kind == "IMPALA":
        return rl.Agent(rl.IMPALA(new_model(), spaces, updater=nn.Adam(0.002), seed=seed), seed)
    if kind == "A3C":
        settings: dict[str, Any] = {"decay": 0.95, "normalize_advantages": True}
        return rl.Agent(rl.A2C(new_model(), spaces, updater=nn.Adam(0.001), seed=seed, **settings), seed)
    return rl.Agent(rl.PPO(new_model(), spaces, epochs=10, updater=nn.Adam(0.001), seed=seed), seed)


def train(kind: str, actors: int, steps: int, client: Client, seed: int = 1) -> dict[str, float]:
    """Train with so many actors; return steps a second, the mean staleness, and the mean return of 100 episodes."""
    agent = new_agent(kind, seed)
    began = time.perf_counter()
    figures: dict[str, float] = {}
    if kind == "A3C":
        steps *= 2  # of which each group takes a part, with one update for each rollout
        rl.train_asynchronously(
            *(agent, TASK), groups=actors, steps=steps, client=client, rollout_steps=32, seed=seed, progress=False
        )
    else:
        rollout = 20 if kind == "IMPALA" else 128 // actors
        result = rl.train(
            *(agent, TASK), steps=steps, client=client, actors=actors, environments=8, rollout_steps=rollout,
            predicts_here=kind == "GA3C", evaluation_episodes=0, seed=seed, progress=False,
        )  # fmt: skip
        ages = [row["staleness"] for row in result.history if "staleness" in row]
        figures["staleness"] = sum(ages) / len(ages) if ages else 0.0
    figures["env_steps_per_second"] = steps / (time.perf_counter() - began)
    figures["mean_return"] = rl.evaluate(agent, TASK, 100, seed=seed).mean_return
    return figures


@contextlib.contextmanager
def killing(client: Client, kills: list[int]) -> Iterator[None]:
    """Kill a random worker process every KILL_SECONDS; Dask's nannies start others."""
    ended, rng = threading.Event(), random.Random(0)

    def kill() -> None:
        while not ended.wait(KILL_SECONDS):
            with contextlib.suppress(Exception):
                process = rng.choice(list(client.run(os.getpid).values()))
                os.kill(process, signal.SIGKILL)
                kills.append(process)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def simulate(count: int) -> dict[str, float]:
    """Train IMPALA with so many actors in this process; return steps a second and the share of a core they took."""
    process = psutil.Process()
    with connect(workers=1) as client:
        agent = new_agent("IMPALA", 1)
        before, began = sum(process.cpu_times()[:2]), time.perf_counter()
        result = rl.train(
            *(agent, TASK), steps=count * 8 * 20 * 10, client=client, actors=count, environments=8, rollout_steps=20,
            evaluation_episodes=0, progress=False,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        transitions = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter)
    return {
        "env_steps_per_second": result.step / seconds,
        "cores": (sum(process.cpu_times()[:2]) - before) / seconds,
        "scheduler_transitions_per_actor": transitions / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--kinds", nargs="*", default=["PPO", "IMPALA", "GA3C", "A3C"])
    parser.add_argument("--actors", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--simulated", type=int, default=0)
    options = parser.parse_args()
    if options.simulated:
        print(f"{options.simulated} actors in one process: {simulate(options.simulated)}")
        return
    for kind in options.kinds:
        for actors in options.actors:
            kills: list[int] = []
            with connect(workers=max(2, actors), separate_processes=True) as client:
                with killing(client, kills) if options.kill else contextlib.nullcontext():
                    figures = train(kind, actors, options.steps, client)
            solved = "solved" if figures["mean_return"] >= SOLVED else "not solved"
            text = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            print(f"{kind}, {actors} actors: {text}; {solved}; {len(kills)} killed", flush=True)


if __name__ == "__main__":
    main()
