"""Steps of CartPole-v1 per second while PPO learns: ``python -m tests.benchmarks.bench_ppo``.

Compares dsinga, PyTorch in the form of CleanRL's ppo.py, and PyTorch with array environments, all with the same net and
settings and one kernel thread, rollout by rollout in turn in one process. Pin it to a core (``taskset -c 1``). Results
belong in docs/dev/measurements.md.
"""

from __future__ import annotations

import datetime
import os
import statistics
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # read when the libraries are loaded

import click  # noqa: E402

from dsinga import load, rl  # noqa: E402
from dsinga.rl.from_job import agent_of  # noqa: E402
from dsinga.rl.on_policy import OnPolicyLoop  # noqa: E402
from tests.benchmarks.__main__ import processor  # noqa: E402
from tests.benchmarks.torch_ppo import TorchPPO  # noqa: E402

JOB = "datasets/cartpole/ppo.conf"


@click.command()
@click.option("--environments", default=8, show_default=True)
@click.option("--steps", default=128, show_default=True, help="Steps of each environment in a rollout.")
@click.option("--epochs", default=10, show_default=True)
@click.option("--minibatches", default=4, show_default=True)
@click.option("--rollouts", default=30, show_default=True)
def main(environments: int, steps: int, epochs: int, minibatches: int, rollouts: int) -> None:
    """Print the steps per second of each, and the medians of the ratios of paired rollouts."""
    fields = {"epochs": epochs, "minibatches": minibatches}
    job = load(JOB, [f"reinforcement.ppo_conf.{name}={value}" for name, value in fields.items()])
    ours = rl.make_environments("CartPole-v1", environments, seed=1)
    loop = OnPolicyLoop(agent_of(job, ours.spaces), rl.Collector(ours))
    peers = {kind: TorchPPO(kind, environments, steps, epochs, minibatches, seed=1) for kind in ("single", "vector")}
    runs = {"dsinga": lambda: loop.advance(steps), **{kind: peer.iterate for kind, peer in peers.items()}}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rollouts + 1):
        for name, run in runs.items():
            begun = time.process_time()
            run()
            seconds[name].append(time.process_time() - begun)
    click.echo(f"{datetime.date.today()}, {processor()}, load {os.getloadavg()[0]:.1f}")
    click.echo(
        f"{environments} environments, rollouts of {steps} steps, {epochs} epochs of {minibatches} minibatches\n"
    )
    click.echo("| | env steps/s | dsinga / peer |\n| --- | --- | --- |")
    for name, times in seconds.items():
        ratio = statistics.median(theirs / mine for theirs, mine in zip(times[1:], seconds["dsinga"][1:], strict=True))
        click.echo(f"| {name} | {environments * steps / statistics.median(times[1:]):,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
