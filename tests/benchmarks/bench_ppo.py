"""Steps of CartPole-v1 per second while PPO learns: ``python -m tests.benchmarks.bench_ppo``.

Compares dsinga by datasets/cartpole/ppo.conf, PyTorch with array environments and the same settings, and PyTorch in the
form of CleanRL's ppo.py with its settings, all with the same net and one kernel thread, rollout by rollout in turn in
one process; times are of the process, so that others on the machine count little. Pin it to a core (``taskset -c 1``).
Results belong in docs/dev/measurements.md.
"""

from __future__ import annotations

import datetime
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # read when the libraries are loaded

import click  # noqa: E402

from dsinga import load, rl  # noqa: E402
from dsinga.rl.from_job import agent_of  # noqa: E402
from dsinga.rl.learning import OnPolicyLoop  # noqa: E402
from tests.benchmarks.__main__ import processor  # noqa: E402
from tests.benchmarks.torch_ppo import Settings, TorchPPO  # noqa: E402

JOB = "datasets/cartpole/ppo.conf"


CLEANRL = Settings(environments=4, steps=128, epochs=4, minibatches=4)


@click.command()
@click.option("--environments", default=32, show_default=True)
@click.option("--steps", default=32, show_default=True, help="Steps of each environment in a rollout.")
@click.option("--epochs", default=5, show_default=True)
@click.option("--minibatches", default=4, show_default=True)
@click.option("--rollouts", default=60, show_default=True)
def main(environments: int, steps: int, epochs: int, minibatches: int, rollouts: int) -> None:
    """Print the steps per second of each, and the medians of the ratios of paired rollouts."""
    settings = Settings(environments, steps, epochs, minibatches)
    fields = {"epochs": epochs, "minibatches": minibatches}
    job = load(JOB, [f"reinforcement.ppo_conf.{name}={value}" for name, value in fields.items()])
    ours = rl.make_environments("CartPole-v1", environments, seed=1)
    loop = OnPolicyLoop(agent_of(job, ours.spaces), rl.Collector(ours))
    runs: dict[str, tuple[Callable[[], Any], Settings]] = {
        "dsinga": (lambda: loop.advance(steps), settings),
        "PyTorch": (TorchPPO("vector", settings, seed=1).iterate, settings),
        "PyTorch as CleanRL": (TorchPPO("cleanrl", CLEANRL, seed=1).iterate, CLEANRL),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rollouts + 1):
        for name, (run, shape) in runs.items():
            begun = time.process_time()
            run()
            rates[name].append(shape.environments * shape.steps / (time.process_time() - begun))
    click.echo(f"{datetime.date.today()}, {processor()}, load {os.getloadavg()[0]:.1f}\n")
    click.echo("| | settings | env steps/s | dsinga / peer |\n| --- | --- | --- | --- |")
    for name, theirs in rates.items():
        ratio = statistics.median(mine / their for mine, their in zip(rates["dsinga"][1:], theirs[1:], strict=True))
        click.echo(f"| {name} | {runs[name][1]} | {statistics.median(theirs[1:]):,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
