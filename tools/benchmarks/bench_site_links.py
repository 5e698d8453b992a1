"""Two sites on a slow link beside synchronous training by dsinga and by PyTorch's DDP: the convnet of CIFAR-10.

    python -m tools.benchmarks.bench_site_links --loss RAW  # steps to the same test loss, on real images
    python -m tools.benchmarks.bench_site_links             # as root: seconds of a step on links of several rates
    RATE=1e8 DELAY=0.02 tools/benchmarks/hosts.sh 2 python -m tools.benchmarks.bench_site_links
    RATE=1e8 DELAY=0.02 tools/benchmarks/hosts.sh 2 python -m tools.benchmarks.bench_site_links --cut 30

RAW is a folder with the files of CIFAR-10, which may be compressed by xz. What a synchronous run computes, of sites or
of one group, does not depend on the link: so the time to a loss is the steps to it times the seconds of a step. Those
of dsinga are of the clock, with all that is between iterations; those of DDP are the median of its iterations.
``--cut`` trains asynchronous sites, cuts the second host off for so many seconds, and prints the steps of the first.
"""

from __future__ import annotations

import lzma
import os
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.cluster.run.benchmark import with_synthetic_records
from dsinga.job import Job
from tools.benchmarks.bench_hosts import ddp
from tools.benchmarks.ours import batch_is

BATCH, PERIOD = 64, 25  # records of a site in a step; steps between agreements
MEAN = {"compression": "kInt4", "updater": nn.SGD(0.7, momentum=0.5, nesterov=True)}
LINKS = [("10gbit", ""), ("1e9", "0.02"), ("1e8", "0.02"), ("1e7", "0.02")]  # rate, seconds of delay one way
NEVER = dict.fromkeys(("epochs", "test_freq", "validate_freq", "checkpoint_freq"), 0)


def job(setup: str, hosts: int, steps: int, **fields: Any) -> Job:
    """Return the job of a setup, "sites" or "synchronous", for so many hosts."""
    batch = BATCH if setup == "sites" else BATCH * hosts
    conf = dsinga.load("datasets/cifar10/convnet.conf", batch_is(batch))
    sites = nn.Cluster(sites=hosts, sync_freq=PERIOD, mean_conf=MEAN)
    cluster = sites if setup == "sites" else nn.Cluster(workers=hosts, servers=hosts)
    return conf.replace(cluster=cluster, updater=nn.AdamW(1e-3), train_steps=steps, **NEVER | fields)


def images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images, bytes (n, 3, 32, 32), and the classes (n,) of a file of CIFAR-10."""
    rows = np.frombuffer(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes(), np.uint8)
    rows = rows.reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def print_losses(raw: Path, steps: int, hosts: int) -> None:
    """Print the test loss of each setup by step."""
    data = {"train": images(next(raw.glob("data_batch_1*"))), "test": images(next(raw.glob("test_batch*")))}
    for setup in ("synchronous", "sites"):
        conf = job(setup, hosts, steps, test_freq=2 * PERIOD)
        for layer in conf.neuralnet.layer:
            if layer.store_conf is not None:
                layer.store_conf = layer.store_conf.replace(path=None, mean_file=None, mean_value=120.0, std_value=64.0)
        rows = dsinga.train(conf, data=data, progress=False).history.phase("test")
        print(setup, " ".join(f"{row['step']}:{row['loss']:.3f}" for row in rows), flush=True)


def milliseconds(client: Client, setup: str, hosts: int, steps: int) -> float:
    """Return the milliseconds of a step by the clock, from the end of the first period on."""
    conf = job(setup, hosts, steps, disp_freq=min(steps // 4, PERIOD))
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        rows = list(dsinga.train(with_synthetic_records(conf, Path(folder)), client, progress=False).history)
    rows = [row for row in rows if row["phase"] == "train"]
    return 1e3 * (rows[-1]["time"] - rows[0]["time"]) / (rows[-1]["step"] - rows[0]["step"])


def print_cut(client: Client, hosts: int, steps: int, seconds: float) -> None:
    """Train asynchronous sites, cut off the second host for so many seconds, and print the first one's progress."""
    conf = job("sites", hosts, steps, disp_freq=20)
    mean = {"asynchronous": True, "updater": nn.SGD(1.0)}
    conf = conf.replace(cluster=nn.Cluster(sites=hosts, sync_freq=20, mean_conf=mean))
    namespace, begun = os.environ["HOSTS"].split()[1], threading.Event()

    def cut() -> None:
        begun.wait(120)
        for state, pause in (("down", seconds), ("up", 0.0)):
            subprocess.run(["ip", "-n", namespace, "link", "set", "eth0", state], check=True)
            print(f"the link of the second host is {state} at {time.monotonic():.1f} s", flush=True)
            time.sleep(pause)

    class Progress(dsinga.extensions.Extension):
        trigger = dsinga.extensions.EverySteps(100)

        def run(self, loop: Any) -> None:
            print(f"step {loop.step} at {time.monotonic():.1f} s", flush=True)
            if loop.step >= 200:
                begun.set()

    threading.Thread(target=cut, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        conf = with_synthetic_records(conf, Path(folder))
        result = dsinga.train(conf, client, progress=False, extensions=[Progress()])
    print(f"done at step {result.step}, restarts: {len(result.history.phase('recovery'))}")


@click.command()
@click.option("--loss", "raw", type=click.Path(path_type=Path), help="Folder of CIFAR-10: print losses by step.")
@click.option("--steps", default=400, show_default=True, help="A fourth of it for DDP, and at 10 Mbit/s.")
@click.option("--cut", type=float, help="Seconds for which the second host is cut off.")
def main(raw: Path | None, steps: int, cut: float | None) -> None:
    """Print losses by step, or the milliseconds of a step of each setup."""
    if raw is not None:
        print_losses(raw, steps, 2)
        return
    if "HOSTS" not in os.environ:
        for rate, delay in LINKS:
            command = ["tools/benchmarks/hosts.sh", "2", f"python -m tools.benchmarks.bench_site_links --steps {steps}"]
            subprocess.run(command, env={**os.environ, "RATE": rate, "DELAY": delay}, check=True)
        return
    namespaces = os.environ["HOSTS"].split()
    with Client(os.environ["SCHEDULER"]) as client:
        if cut is not None:
            print_cut(client, len(namespaces), steps, cut)
            return
        # Rows come at the ends of rounds of a second, so that few steps say little where steps are fast.
        slow = 4 if os.environ["RATE"] == "1e7" else 1
        figures = {
            "sites": milliseconds(client, "sites", len(namespaces), steps),
            "synchronous": milliseconds(client, "synchronous", len(namespaces), steps // slow),
            "DDP": statistics.median(ddp("cifar10", namespaces, steps // 4)),
        }
    link = f"{os.environ['RATE']}, {os.environ.get('DELAY') or 0} s"
    print(f"| {link} | " + " | ".join(f"{name} {value:.1f} ms" for name, value in figures.items()) + " |", flush=True)


if __name__ == "__main__":
    main()
