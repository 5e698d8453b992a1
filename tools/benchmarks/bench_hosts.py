"""Data-parallel training over hosts beside PyTorch DDP, and hybrid and automatic partitioning, on links of a rate.

    python -m tools.benchmarks.bench_hosts                                                   # as root; some 12 minutes
    RATE=1gbit tools/benchmarks/hosts.sh 2 python -m tools.benchmarks.bench_hosts --case mlp --turns 3

The first command measures all cases on two and four hosts with 1 and 10 Gbit/s, one after the other; the second one
those of its own network. AlexNet's fully connected part has 32 records a batch over all hosts, the MLP of MNIST 64 a
host. All setups run in turn; figures are medians of all iterations and, beside other work, their 10th percentiles. The
share of the link is what a host must send at least, 2(n - 1)/n of the params, over what the link could have sent
meanwhile. Predictions are the planner's, by rates that are measured before the first turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from distributed import Client

from dsinga.addons.planner.benchmark import SilentObserver, with_synthetic_records
from dsinga.api import with_workers
from dsinga.cluster.run.driver import train
from dsinga.job import ClusterConf, Job, PartitionMethod
from dsinga.loop.initial_state import RunOptions
from tools.benchmarks.bench_partition import job as partition_job
from tools.benchmarks.bench_plan import predict_on_cluster
from tools.benchmarks.ours import job as case_job

PARAMS = {"alexnet-fc": 58_631_144, "mlp": 11_972_510}
SETUPS = {"alexnet-fc": ("data", "hybrid", "auto", "DDP"), "mlp": ("data", "auto", "DDP")}
NETWORKS = [(2, 1), (2, 10), (4, 1), (4, 10)]  # hosts, Gbit/s
HEAD = (
    "| case | hosts | Gbit/s | setup | ms | predicted | of DDP | 10th percentile ms | of DDP | link |\n|"
    + " --- |" * 10
)
WARM_UP = 3
PORT = "29511"


def job(case: str, strategy: str, hosts: int) -> Job:
    """Return the job of a case for so many workers."""
    if case == "alexnet-fc":
        return partition_job(strategy, 32, hosts)
    conf = with_workers(case_job("mlp", 64 * hosts), hosts)
    if strategy == "auto":
        conf = conf.replace(neuralnet=conf.neuralnet.replace(partition=PartitionMethod.auto))
    return conf.replace(cluster=(conf.cluster or ClusterConf()).replace(nservers_per_group=hosts))


def ours(client: Client, case: str, strategy: str, hosts: int, steps: int) -> list[float]:
    """Return the milliseconds of each iteration of dsinga."""
    never = dict.fromkeys(("epochs", "test_freq", "validate_freq", "checkpoint_freq"), 0)
    conf = job(case, strategy, hosts).replace(train_steps=WARM_UP + steps, **never)
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        outcome = train(with_synthetic_records(conf, Path(folder)), client, SilentObserver(), RunOptions(roots=()))
    return [1e3 * row["total"] for row in outcome.timings[WARM_UP:]]


def ddp(case: str, namespaces: list[str], steps: int) -> list[float]:
    """Return the milliseconds of each iteration of DDP, one rank in each namespace."""
    batch = 32 // len(namespaces) if case == "alexnet-fc" else 64
    env = {**os.environ, "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "eth0"}
    env["WORLD_SIZE"] = str(len(namespaces))
    command = [sys.executable, "-m", "tools.benchmarks.torch_peer", case, str(steps), str(batch)]
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command], env={**env, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for rank, namespace in enumerate(namespaces)
    ]  # fmt: skip
    outputs = [rank.communicate()[0] for rank in ranks]
    milliseconds: list[float] = json.loads(outputs[0])
    return milliseconds


def summary(case: str, setup: str, hosts: int, rate: float, times: dict[str, list[float]]) -> dict[str, Any]:
    """Return the figures of a setup; ``times`` are the milliseconds of iterations by setup, ``rate`` bits a second."""
    median, fast = (
        {name: choose(milliseconds) for name, milliseconds in times.items()} for choose in (statistics.median, tenth)
    )
    share = 8 * 4 * PARAMS[case] * 2 * (hosts - 1) / hosts / rate / (1e-3 * median[setup])
    return {
        "case": case, "hosts": hosts, "rate": rate, "setup": setup, "ms": median[setup], "fast_ms": fast[setup],
        "of_ddp": median[setup] / median["DDP"], "fast_of_ddp": fast[setup] / fast["DDP"],
        "share": share if setup in ("data", "DDP") else None,
    }  # fmt: skip


def tenth(numbers: list[float]) -> float:
    """Return the 10th percentile."""
    return sorted(numbers)[len(numbers) // 10]


def row_text(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    share = f"{row['share']:.0%}" if row["share"] else ""
    expected = f"{row['predicted']:.0f}" if row["predicted"] else ""
    return (
        f"| {row['case']} | {row['hosts']} | {row['rate'] / 1e9:g} | {row['setup']} | {row['ms']:.0f} | {expected} | "
        f"{row['of_ddp']:.2f} | {row['fast_ms']:.0f} | {row['fast_of_ddp']:.2f} | {share} |"
    )


def measure_case(
    client: Client, case: str, setups: tuple[str, ...], steps: int, turns: int, rate: float
) -> list[dict[str, Any]]:
    """Return the figures of all setups of a case, or of some and DDP, which run in turn."""
    namespaces = os.environ["HOSTS"].split()
    hosts = len(namespaces)
    predictions = predict_on_cluster(job(case, "data", hosts), client, one_worker=True)
    times: dict[str, list[float]] = {}
    for _ in range(turns):
        for setup in SETUPS[case]:
            if setup == "DDP":
                times.setdefault(setup, []).extend(ddp(case, namespaces, steps))
            elif not setups or setup in setups:
                times.setdefault(setup, []).extend(ours(client, case, setup, hosts, steps))
    expected = {setup: 1e3 * choice.prediction.seconds for setup, choice in predictions.items()}
    return [summary(case, setup, hosts, rate, times) | {"predicted": expected.get(setup)} for setup in times]


def measure_networks(arguments: list[str], steps: int) -> None:
    """Run this command on each network; with 10 Gbit/s twice as many iterations."""
    script = Path(__file__).with_name("hosts.sh")
    for hosts, rate in NETWORKS:
        command = ["python", "-m", "tools.benchmarks.bench_hosts", *arguments, "--steps", str(steps * (1 + (rate > 1)))]
        subprocess.run([script, str(hosts), *command], env={**os.environ, "RATE": f"{rate}gbit"}, check=True)


@click.command()
@click.option("--case", "cases", multiple=True, type=click.Choice(list(SETUPS)), default=list(SETUPS))
@click.option("--setup", "setups", multiple=True, help="Only these, beside DDP.")
@click.option("--steps", default=6, show_default=True, help="Measured iterations in a turn.")
@click.option("--turns", default=2, show_default=True)
@click.option("--head/--no-head", default=True, help="Whether to print the head of the table.")
def main(cases: tuple[str, ...], setups: tuple[str, ...], steps: int, turns: int, head: bool) -> None:
    """Print milliseconds of an iteration, the ratio to DDP, and the share of the link, as a table."""
    if head:
        print(HEAD, flush=True)
    if "HOSTS" not in os.environ:
        chosen = [*(f"--case={case}" for case in cases), *(f"--setup={setup}" for setup in setups)]
        measure_networks([*chosen, "--no-head", f"--turns={turns}"], steps)
        return
    rate = float(os.environ["RATE"].removesuffix("gbit")) * 1e9
    with Client(os.environ["SCHEDULER"]) as client:
        for case in cases:
            for row in measure_case(client, case, setups, steps, turns, rate):
                print(row_text(row), flush=True)


if __name__ == "__main__":
    main()
