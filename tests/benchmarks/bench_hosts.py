"""Data-parallel training over hosts beside PyTorch DDP, and hybrid and automatic partitioning, on links of a rate.

    RATE=1gbit tests/benchmarks/hosts.sh 2 python -m tests.benchmarks.bench_hosts [--case mlp] [--json FILE]

AlexNet's fully connected part has 32 records a batch over all hosts, the MLP of MNIST 64 a host. All setups run in
turn; figures are medians of all iterations and, beside other work, their 10th percentiles. The share of the link
is what a host must send at least, 2(n - 1)/n of the params, over what the link could have sent meanwhile.
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

from dsinga.api import with_workers
from dsinga.cluster.benchmark import with_synthetic_records
from dsinga.cluster.driver import train
from dsinga.job import ClusterConf, Job, PartitionMethod, loads
from tests.benchmarks.bench_partition import INIT, NET, STRATEGIES
from tests.benchmarks.ours import job as case_job

PARAMS = {"alexnet-fc": 58_631_144, "mlp": 11_972_510}
SETUPS = {"alexnet-fc": ("data", "hybrid", "auto", "DDP"), "mlp": ("data", "auto", "DDP")}
WARM_UP = 5
PORT = "29511"


class SilentObserver:
    """An observer that ignores everything."""

    def begin(self, step: int) -> None: ...

    def record(self, row: dict[str, Any]) -> None: ...

    def progress(self, row: dict[str, Any]) -> None: ...

    def waiting(self, sentence: str) -> None: ...


def job(case: str, strategy: str, hosts: int) -> Job:
    """Return the job of a case for so many workers."""
    if case == "alexnet-fc":
        setup = {**STRATEGIES[strategy], "workers": hosts}
        return loads(NET.format(batch=32, init=INIT, **setup), f"{case}-{strategy}.conf")
    conf = with_workers(case_job("mlp", 64 * hosts), hosts)
    if strategy == "auto":
        conf = conf.replace(neuralnet=conf.neuralnet.replace(partition=PartitionMethod.auto))
    return conf.replace(cluster=(conf.cluster or ClusterConf()).replace(nservers_per_group=hosts))


def ours(client: Client, case: str, strategy: str, hosts: int, steps: int) -> list[float]:
    """Return the milliseconds of each iteration of dsinga."""
    never = dict.fromkeys(("epochs", "test_freq", "validate_freq", "checkpoint_freq"), 0)
    conf = job(case, strategy, hosts).replace(train_steps=WARM_UP + steps, **never)
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        outcome = train(with_synthetic_records(conf, Path(folder)), client, SilentObserver(), roots=())
    return [1e3 * row["total"] for row in outcome.timings[WARM_UP:]]


def ddp(case: str, namespaces: list[str], steps: int) -> list[float]:
    """Return the milliseconds of each iteration of DDP, one rank in each namespace."""
    batch = 64 if case == "mlp" else 32 // len(namespaces)
    env = {**os.environ, "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "eth0"}
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.benchmarks.torch_host", str(rank),
             str(len(namespaces)), case, str(batch), str(steps)],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
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


@click.command()
@click.option("--case", "cases", multiple=True, type=click.Choice(list(SETUPS)), default=list(SETUPS))
@click.option("--setup", "setups", multiple=True, help="Only these, beside DDP.")
@click.option("--steps", default=10, show_default=True, help="Measured iterations in a turn.")
@click.option("--turns", default=3, show_default=True)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(cases: tuple[str, ...], setups: tuple[str, ...], steps: int, turns: int, file: Path | None) -> None:
    """Print milliseconds of an iteration, the ratio to DDP, and the share of the link, as a table."""
    namespaces = os.environ["HOSTS"].split()
    hosts, rate = len(namespaces), float(os.environ["RATE"].removesuffix("gbit")) * 1e9
    rows: list[dict[str, Any]] = []
    print("| case | hosts | Gbit/s | setup | ms | of DDP | 10th percentile ms | of DDP | link |\n| " + "--- | " * 9)
    with Client(os.environ["SCHEDULER"]) as client:
        for case in cases:
            times: dict[str, list[float]] = {}
            for _ in range(turns):
                for setup in SETUPS[case]:
                    if setup == "DDP":
                        times.setdefault(setup, []).extend(ddp(case, namespaces, steps))
                    elif not setups or setup in setups:
                        times.setdefault(setup, []).extend(ours(client, case, setup, hosts, steps))
            for setup in times:
                row = summary(case, setup, hosts, rate, times)
                rows.append(row)
                share = f"{row['share']:.0%}" if row["share"] else ""
                print(
                    f"| {case} | {hosts} | {rate / 1e9:g} | {setup} | {row['ms']:.0f} | {row['of_ddp']:.2f} | "
                    f"{row['fast_ms']:.0f} | {row['fast_of_ddp']:.2f} | {share} |",
                    flush=True,
                )
    if file:
        file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
