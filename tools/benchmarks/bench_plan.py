"""Compare the planner's predictions with measured times.

    python -m tools.benchmarks.bench_plan [PART OF A NAME ...] [--json FILE] [--table] [--picture FILE]

Trains nets with random records in both precisions, on one worker, on two threads, on two processes, and on two network
namespaces joined by a link of 1 or 10 Gbit/s (as root), cut in different ways, and compares the median time of an
iteration with the prediction. The first worker measures the machine's rates, as for ``partition: auto``, before and
after the iterations, and the mean of the two predictions counts. Run it on an otherwise idle machine.

With ``--json`` each setup's figures are added to the file as soon as they are measured, so that a part of the setups
can be run at a time; the table is of all figures in the file. ``--table`` measures nothing and prints that table only.
Of a setup that was measured several times, medians count. If two strategies for the same net on the same workers differ
by more than 15 %, the planner must predict which one is faster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from distributed import Client

from dsinga import models
from dsinga.addons.planner import cost_model
from dsinga.addons.planner.automatic import machine_of, machines_of, measure_links, process_map_of
from dsinga.addons.planner.benchmark import measure, with_synthetic_records
from dsinga.addons.planner.cost_model import CostModel, Cuts, PricedCuts
from dsinga.addons.planner.link import Links
from dsinga.addons.planner.rate_store import RateStore
from dsinga.api import with_workers
from dsinga.cluster import connect
from dsinga.cluster.dask.dask_workers import available_workers, count_processes
from dsinga.cluster.dask.placement import Placement, place
from dsinga.cutting.cluster_topology import topology
from dsinga.cutting.partitioned import LayerCut
from dsinga.job import ClusterConf, Job, Phase, Precision, SlicingMethod
from dsinga.job.enums import PRECISIONS
from dsinga.net import NeuralNet, create_net
from dsinga.ops import cpu_ops
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import Updater, create_updater
from tools.benchmarks.ours import job as case_job
from tools.benchmarks.plan_report import Figures, draw, table

SECONDS = 3.0  # of the measured iterations of a strategy, about
LEAST_STEPS, MOST_STEPS = 12, 100
THREADS, PROCESSES, GIGABIT, TEN_GIGABIT = "threads", "processes", "1gbit", "10gbit"
WHERE = {THREADS: "threads", PROCESSES: "processes", GIGABIT: "hosts, 1 Gbit/s", TEN_GIGABIT: "hosts, 10 Gbit/s"}


class Setup(NamedTuple):
    """A net, its batch, the workers and where they run, the precision, and the strategies that are compared."""

    net: str
    batch: int
    workers: int
    where: str
    precision: str
    strategies: tuple[str, ...]

    def __str__(self) -> str:
        where = WHERE[self.where] if self.workers > 1 else "thread"
        return f"{self.net} batch {self.batch}, {self.workers} {where}, {self.precision}"


NETS: dict[str, Callable[[int], Job]] = {
    "cifar10": partial(case_job, "cifar10"),
    "resnet": partial(case_job, "resnet"),
    "char-rnn": partial(case_job, "char_rnn"),
    "mlp": lambda batch: models.mlp([2500, 2000, 1500], batchsize=batch, learning_rate=0.001),
    "alexnet-fc": lambda batch: models.mlp([4096, 4096], 9216, 1000, batchsize=batch, learning_rate=0.001),
}
SETUPS = [
    Setup(net, batch, workers, where, precision, strategies)
    for net, batch, workers, where, strategies in (
        ("cifar10", 64, 1, THREADS, ("data",)),
        ("mlp", 64, 1, THREADS, ("data",)),
        ("resnet", 64, 1, THREADS, ("data",)),
        ("char-rnn", 50, 1, THREADS, ("data",)),
        ("cifar10", 128, 2, THREADS, ("data", "hybrid")),
        ("mlp", 64, 2, THREADS, ("data", "feature")),
        ("cifar10", 128, 2, PROCESSES, ("data", "hybrid", "feature")),
        ("mlp", 64, 2, PROCESSES, ("data", "feature")),
        ("alexnet-fc", 32, 2, PROCESSES, ("data", "feature")),
        ("cifar10", 128, 2, GIGABIT, ("data", "hybrid")),
        ("mlp", 128, 2, GIGABIT, ("data", "feature")),
        ("cifar10", 128, 2, TEN_GIGABIT, ("data", "hybrid")),
        ("mlp", 128, 2, TEN_GIGABIT, ("data", "feature")),
    )
    for precision in ("fp32", "bf16")
]


def with_cuts(job: Job, cuts: Mapping[str, LayerCut]) -> Job:
    """Return the job with the partition_dim of each layer set."""
    layers = [
        layer.replace(partition_dim=cuts[layer.name].dim) if layer.name in cuts else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def build(job: Job, folder: str) -> NeuralNet:
    """Return the training net of a job with random records, which are written to a folder."""
    reader = CheckedJob(with_synthetic_records(job, Path(folder))).reader(Phase.kTrain)
    return create_net(job.neuralnet, Phase.kTrain, reader.infos)


def predict_on_cluster(
    job: Job, client: Client, cuts: Mapping[str, Cuts] | None = None, one_worker: bool = False
) -> dict[str, PricedCuts]:
    """Return what an iteration costs by freshly measured rates: of each strategy, or of some ``cuts``, by name.

    ``one_worker`` says whether "auto" may be one worker.
    """
    addresses = available_workers(client)
    job_topology = topology(job, len(addresses), count_processes(addresses))
    placement = place(job_topology, addresses)
    links = measure_links(client, placement.workers[0])
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        net = build(job, folder)
    arguments = (net, create_updater(job.updater), PRECISIONS[job.precision], placement, job_topology.slicing)
    machines = machines_of(client, placement.workers[0])
    choices: dict[str, PricedCuts] = client.submit(
        predict, *arguments, machines, links, cuts, one_worker, workers=[placement.workers[0][0]], pure=False
    ).result()
    return choices


def predict(
    net: NeuralNet,
    updater: Updater,
    precision: str,
    placement: Placement,
    slicing: SlicingMethod,
    machines: Sequence[str],
    links: Links,
    cuts: Mapping[str, Cuts] | None,
    one_worker: bool,
) -> dict[str, PricedCuts]:
    """Task: return what :func:`predict_on_cluster` returns."""
    machine = partial(machine_of, net, updater, cpu_ops(precision), placement, machines, RateStore())
    process_map = process_map_of(placement, slicing)
    model, workers = CostModel(net, machine, links, process_map.first), len(process_map.workers)
    if cuts is None:
        return cost_model.compared(model, workers, one_worker=one_worker)
    return {name: cost_model.predict(model, cut, workers) for name, cut in cuts.items()}


def job_of(setup: Setup) -> Job:
    """Return the job of a setup, which as threads has one server, else one for each process."""
    job = with_workers(NETS[setup.net](setup.batch), setup.workers)
    servers = 1 if setup.where == THREADS else setup.workers
    cluster = (job.cluster or ClusterConf()).replace(nservers_per_group=servers)
    return job.replace(cluster=cluster, precision=Precision.kBF16 if setup.precision == "bf16" else Precision.kFloat32)


def run(setup: Setup, client: Client) -> list[Figures]:
    """Return predicted and measured figures of the strategies of a setup."""
    job = job_of(setup)
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        net = build(job, folder)
    cuts = cost_model.named_strategies(net, setup.workers, names=setup.strategies)
    before = predict_on_cluster(job, client, cuts)
    measured = {}
    for name, predicted in before.items():
        steps = int(min(MOST_STEPS, max(LEAST_STEPS, SECONDS / predicted.prediction.seconds)))
        measured[name] = measure(with_cuts(job, cuts[name]), client, steps=steps, synthetic=True)
    after = predict_on_cluster(job, client, cuts)
    return [
        Figures(
            str(setup),
            name,
            500 * (before[name].prediction.seconds + after[name].prediction.seconds),
            figures["ms_per_iteration"],
            500 * (before[name].prediction.compute + after[name].prediction.compute),
            figures["compute_ms"],
        )
        for name, figures in measured.items()
    ]


def cluster_of(setup: Setup) -> AbstractContextManager[Client]:
    """Return the cluster of a setup; that of hosts is there already."""
    if setup.where in (THREADS, PROCESSES):
        return connect(workers=setup.workers, separate_processes=setup.where == PROCESSES)
    client: Client = Client(os.environ["SCHEDULER"])
    return client


def run_on_hosts(setup: Setup, file: Path) -> None:
    """Run this program beside a cluster of hosts, for one setup."""
    script = Path(__file__).with_name("hosts.sh")
    command = f"{sys.executable} -m tools.benchmarks.bench_plan '{setup}' --json {file}"
    subprocess.run([script, str(setup.workers), command], env={**os.environ, "RATE": setup.where}, check=True)


def read(file: Path) -> list[Figures]:
    """Return the figures in a file."""
    return [Figures(**json.loads(line)) for line in file.read_text().splitlines()]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File to which figures are added, a line each.")
@click.option("--table", "table_only", is_flag=True, help="Measure nothing; print the table of the file.")
@click.option("--picture", type=click.Path(path_type=Path), help="SVG file to draw predicted by measured times to.")
def main(names: tuple[str, ...], file: Path | None, table_only: bool, picture: Path | None) -> None:
    """Run the setups, or those whose names contain one of NAMES, and print the errors of the predictions."""
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        file = file or Path(folder) / "figures.jsonl"
        for setup in [] if table_only else SETUPS:
            if names and not any(name in str(setup) for name in names):
                continue
            if setup.where in (GIGABIT, TEN_GIGABIT) and "SCHEDULER" not in os.environ:
                run_on_hosts(setup, file)
                continue
            with cluster_of(setup) as client:
                rows = run(setup, client)
            with file.open("a") as lines:
                lines.writelines(json.dumps(row._asdict()) + "\n" for row in rows)
            for row in rows:
                click.echo(row.line(), err=True)
        if "SCHEDULER" not in os.environ:
            click.echo(table(read(file)))
            if picture:
                picture.write_text(draw(read(file)), encoding="utf-8")


if __name__ == "__main__":
    main()
