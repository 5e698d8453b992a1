"""Sites on slow links beside synchronous training by dsinga and by PyTorch's DDP: convnet, char-rnn and small GPT.

    python -m tools.benchmarks.bench_site_links --loss RAW             # steps to a test loss, on real images
    python -m tools.benchmarks.bench_site_links --hosts 4 --net gpt    # as root: a table of links of several rates
    RATE=1e8 DELAY=0.02 tools/benchmarks/hosts.sh 2 python -m tools.benchmarks.bench_site_links --cut 30

RAW is a folder with the files of CIFAR-10, which may be compressed by xz. What a synchronous run computes, of sites or
of one group, does not depend on the link: so the time to a loss is the steps to it times the seconds of a step, and its
ratio to that at 10 Gbit/s is the ratio of the seconds of a step. Those of dsinga are of the clock, with all that is
between iterations; those of DDP, which has the convnet only, are the median of its iterations. ``--cut`` trains
asynchronous sites, cuts the second host off for so many seconds, and prints the steps of the first.
"""

from __future__ import annotations

import itertools
import json
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
from dsinga import models, nn
from dsinga.addons.planner.benchmark import with_synthetic_records
from dsinga.job import Job
from tools.benchmarks.bench_hosts import ddp
from tools.benchmarks.ours import batch_is

BATCHES = {"convnet": 64, "char-rnn": 16, "gpt": 8}  # records of a site in a step
PERIOD = 25  # steps between outer steps
MEAN = {"compression": "kInt4", "updater": nn.SGD(0.7, momentum=0.5, nesterov=True)}
LINKS = [("10gbit", ""), ("1e9", "0.02"), ("1e8", "0.02"), ("1e7", "0.02")]  # rate, seconds of delay one way
SLOWER = {"10gbit": 4, "1e9": 4, "1e8": 8, "1e7": 16}  # by which synchronous runs have fewer steps
SETUPS = ("sites", "synchronous", "DDP")
ROW_SECONDS = 0.01  # less than a step takes
NEVER = dict.fromkeys(("epochs", "test_freq", "validate_freq", "checkpoint_freq"), 0)


def job(net: str, setup: str, hosts: int, steps: int, **fields: Any) -> Job:
    """Return the job of a net and a setup, "sites" or "synchronous", for so many hosts."""
    batch = BATCHES[net] if setup == "sites" else BATCHES[net] * hosts
    if net == "convnet":
        conf = dsinga.load("datasets/cifar10/convnet.conf", batch_is(batch)).replace(updater=nn.AdamW(1e-3))
    elif net == "char-rnn":
        conf = models.char_rnn(101, batchsize=batch)
    else:
        conf = models.gpt(65, width=128, steps=128, batchsize=batch)
    sites = nn.Cluster(sites=hosts, sync_freq=PERIOD, mean_conf=MEAN)
    cluster = sites if setup == "sites" else nn.Cluster(workers=hosts, servers=hosts)
    return conf.replace(cluster=cluster, train_steps=steps, **NEVER | fields)


def images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images, bytes (n, 3, 32, 32), and the classes (n,) of a file of CIFAR-10."""
    rows = np.frombuffer(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes(), np.uint8)
    rows = rows.reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def print_losses(raw: Path, steps: int, hosts: int) -> None:
    """Print the test loss of each setup by step."""
    data = {"train": images(next(raw.glob("data_batch_1*"))), "test": images(next(raw.glob("test_batch*")))}
    for setup in ("synchronous", "sites"):
        conf = job("convnet", setup, hosts, steps, test_freq=2 * PERIOD)
        for layer in conf.neuralnet.layer:
            if layer.store_conf is not None:
                layer.store_conf = layer.store_conf.replace(path=None, mean_file=None, mean_value=120.0, std_value=64.0)
        rows = dsinga.train(conf, data=data, progress=False).history.phase("test")
        print(setup, " ".join(f"{row['step']}:{row['loss']:.3f}" for row in rows), flush=True)


def milliseconds(client: Client, net: str, setup: str, hosts: int, steps: int) -> float:
    """Return the milliseconds of a step by the clock, from the end of a round in the second period on."""
    conf = job(net, setup, hosts, steps, disp_freq=1)
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        rows = list(dsinga.train(with_synthetic_records(conf, Path(folder)), client, progress=False).history)
    ends = [(row["step"], row["time"]) for row in rows if row["phase"] == "train"]
    # The rows of a round come at its end, all at once.
    ends = [end for end, after in itertools.pairwise([*ends, (0, float("inf"))]) if after[1] - end[1] > ROW_SECONDS]
    begun = next(end for end in ends if end[0] >= min(PERIOD, steps // 4))
    return 1e3 * (ends[-1][1] - begun[1]) / (ends[-1][0] - begun[0])


def print_cut(client: Client, hosts: int, steps: int, seconds: float) -> None:
    """Train asynchronous sites, cut off the second host for so many seconds, and print the first one's progress."""
    conf = job("convnet", "sites", hosts, steps, disp_freq=20)
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


def measure(client: Client, net: str, setups: tuple[str, ...], namespaces: list[str], steps: int) -> dict[str, float]:
    """Return the milliseconds of a step of each setup on the link of these hosts."""
    figures = {}
    for setup in setups:
        if setup == "sites":
            figures[setup] = milliseconds(client, net, setup, len(namespaces), steps)
        elif setup == "synchronous":
            figures[setup] = milliseconds(client, net, setup, len(namespaces), steps // SLOWER[os.environ["RATE"]])
        elif net == "convnet":
            figures[setup] = statistics.median(ddp("cifar10", namespaces, max(4, steps // 20)))
    return figures


def print_table(arguments: list[str], hosts: int) -> None:
    """Measure on each link, and print a row for each: milliseconds, and for sites the ratio to the first link."""
    first = 0.0
    for rate, delay in LINKS:
        command = ["tools/benchmarks/hosts.sh", str(hosts), "python -m tools.benchmarks.bench_site_links", *arguments]
        output = subprocess.run(
            command, env={**os.environ, "RATE": rate, "DELAY": delay}, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        figures = json.loads(output.splitlines()[-1])
        first = first or figures.get("sites", 0.0)
        ratio = f" {figures['sites'] / first:.2f} |" if first else ""
        cells = " | ".join(f"{name} {value:.1f} ms" for name, value in figures.items())
        print(f"| {rate}, {delay or 0} s | {cells} |{ratio}", flush=True)


@click.command()
@click.option("--loss", "raw", type=click.Path(path_type=Path), help="Folder of CIFAR-10: print losses by step.")
@click.option("--net", type=click.Choice(list(BATCHES)), default="convnet", show_default=True)
@click.option("--hosts", default=2, show_default=True, help="How many, where this command makes them.")
@click.option("--setup", "setups", multiple=True, type=click.Choice(SETUPS), default=SETUPS)
@click.option("--steps", default=400, show_default=True, help="Fewer for synchronous training on slow links, and DDP.")
@click.option("--cut", type=float, help="Seconds for which the second host is cut off.")
def main(raw: Path | None, net: str, hosts: int, setups: tuple[str, ...], steps: int, cut: float | None) -> None:
    """Print losses by step, or the milliseconds of a step of each setup."""
    if raw is not None:
        print_losses(raw, steps, hosts)
    elif "HOSTS" not in os.environ:
        print_table([f"--net={net}", f"--steps={steps}", *(f"--setup={setup}" for setup in setups)], hosts)
    else:
        namespaces = os.environ["HOSTS"].split()
        with Client(os.environ["SCHEDULER"]) as client:
            if cut is not None:
                print_cut(client, len(namespaces), steps, cut)
            else:
                print(json.dumps(measure(client, net, setups, namespaces, steps)), flush=True)


if __name__ == "__main__":
    main()
