"""Measured peaks of a training process beside the planner's: over micro-batches, recomputation, and given memories.

``python -m tools.benchmarks.bench_memory curve`` trains nets in 1, 2, 4 and 8 micro-batches, and with recomputation;
``python -m tools.benchmarks.bench_memory fit`` lets the planner fit ten nets into three memories each, and trains them
so. Each run has a process of its own, one worker, without Dask. A peak is the largest resident memory of the process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import dsinga
from dsinga.addons.planner.fitting import USABLE, NetVariants, fit
from dsinga.data import write_store
from dsinga.job import Job, Phase
from dsinga.reading.checked_job import CheckedJob
from tools.benchmarks.ours import job as job_of_case

STEPS = 7
MB = 1e6
# The batch sizes of nets on images, and the shapes of their records.
NETS = {
    "mlp": (64, (28, 28)),
    "cifar10": (256, (3, 32, 32)),
    "mnist": (128, (28, 28)),
    "resnet": (64, (3, 32, 32)),
    "vgg": (64, (3, 32, 32)),
    "lenet": (256, (28, 28)),
    "softmax_regression": (256, (28, 28)),
    "alexnet": (32, (3, 227, 227)),
    "autoencoder": (100, (28, 28)),
    "convnet": (128, (3, 32, 32)),
}
CURVE = ("cifar10", "mlp", "vgg", "alexnet")
RECOMPUTED = ("resnet", "vgg", "cifar10")
SHARES = (0.8, 0.5, 0.2)  # of what lies between the least memory and that of whole batches


def training_job(net: str, folder: Path) -> Job:
    """Return the job of a net on random images, with the store that it reads."""
    batch, shape = NETS[net]
    job = job_of_case(net, batch)
    rng, store = np.random.default_rng(0), folder / f"{net}.zarr"
    conf = job.neuralnet.layer[0].store_conf
    shape = tuple(conf.shape) if conf is not None and conf.shape else shape
    count = 2 * batch
    if not store.exists():
        write_store(store, [(rng.integers(0, 256, (count, *shape)).astype(np.uint8), rng.integers(0, 10, count))])
    for layer in job.neuralnet.layer:
        if layer.store_conf is not None and layer.in_phase(Phase.kTrain):
            layer.store_conf = layer.store_conf.replace(path=str(store), mean_file=None, std_file=None)
    fields = dict.fromkeys(("epochs", "test_freq", "validate_freq", "checkpoint_freq"), 0)
    return job.replace(train_steps=STEPS, disp_freq=1, cluster=None, checkpoint_path=[], **fields)


def variants_of(job: Job) -> NetVariants:
    reader = CheckedJob(job).reader(Phase.kTrain)
    return NetVariants.of(job, reader)


def train(net: str, micro_batches: int, recompute: int, folder: Path) -> dict[str, float]:
    """Train a net in this process; return its peak in MB, the predicted one, and the milliseconds of an iteration."""
    job = training_job(net, folder)
    predicted = variants_of(job).memory(micro_batches, recompute).peak
    net_conf = job.neuralnet.replace(recompute=recompute)
    job = job.replace(micro_batches=micro_batches, neuralnet=net_conf)
    times = [row["time"] for row in dsinga.train(job, progress=False).history if row["phase"] == "train"]
    seconds = (times[-1] - times[0]) / (STEPS - 1)
    return {"mb": peak() / MB, "predicted": predicted / MB, "ms": 1e3 * seconds}


def peak() -> int:
    """Return the largest resident memory of this process in bytes; getrusage's also counts that of its parent."""
    status = Path("/proc/self/status").read_text("utf-8")
    return 1024 * int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0])


def measure(net: str, micro_batches: int, recompute: int, folder: Path) -> dict[str, float]:
    """Train in a process of its own, and return what :func:`train` returns."""
    command = [sys.executable, "-m", __spec__.name, net, str(micro_batches), str(recompute), str(folder)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def print_row(net: str, micro_batches: int, recompute: int, folder: Path, limit: float | None = None) -> None:
    row = measure(net, micro_batches, recompute, folder)
    share = row["predicted"] / row["mb"]
    limited = "" if limit is None else f" {limit / MB:,.0f} |"
    print(
        f"| {net} |{limited} {micro_batches} | {recompute} | {row['mb']:,.0f} | {row['predicted']:,.0f} | {share:.2f} "
        f"| {row['ms']:,.0f} |",
        flush=True,
    )


def fitted(nets: Iterable[str], folder: Path) -> None:
    """Print for each net how it is trained in three memories, and its peak there."""
    for net in nets:
        variants = variants_of(training_job(net, folder))
        least, most = fit(variants, 0)[0].memory.peak / USABLE, variants.memory(1, 0).peak / USABLE
        for share in SHARES:
            limit = int(least + share * (most - least))
            found, _ = fit(variants, limit)
            print_row(net, found.micro_batches, found.recompute, folder, limit)


def main(what: str, *nets: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if what == "curve":
            for net in nets or CURVE:
                for count in (1, 2, 4, 8):
                    print_row(net, count, 0, folder)
            for net in nets or RECOMPUTED:
                for stretches in (0, 2, 4, 8):
                    print_row(net, 1, stretches, folder)
        else:
            fitted(nets or NETS, folder)


if __name__ == "__main__":
    if sys.argv[1] in ("curve", "fit"):
        main(*sys.argv[1:])
    else:
        print(json.dumps(train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
