"""Compare the planner's predictions with measured times.

    python tests/benchmarks/bench_plan.py [PART OF A NAME ...]

Trains nets with random records on one and two workers, as threads and as processes, cut in different ways, and compares
the median time of an iteration with the prediction. If two strategies for the same net on the same workers differ by
more than 15 %, the planner must predict which one is faster. Each of ``--turns`` turns measures the machine's rates
right before and right after the measured iterations, and takes the mean of the two predictions; medians of the turns
are compared, since the speed of a shared machine changes within a minute. As for ``partition: auto``, the first worker
measures the rates. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import click
from distributed import Client

from dsinga import models
from dsinga.api import with_workers
from dsinga.cluster import connect
from dsinga.cluster.dask.dask_workers import available_workers, count_processes
from dsinga.cluster.dask.placement import Placement, place
from dsinga.cluster.placing.automatic import machine_of, measure_links, process_map_of
from dsinga.cluster.run.benchmark import measure
from dsinga.job import ClusterConf, Job, Phase, SlicingMethod
from dsinga.job.topology import topology
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net, input_layers
from dsinga.net.cut import LayerCut
from dsinga.ops import get_ops
from dsinga.planner import choice
from dsinga.planner.choice import Cuts, PricedCuts
from dsinga.planner.cost_model import CostModel
from dsinga.planner.link import Links
from dsinga.planner.rate_store import RateStore
from dsinga.training import Updater, create_updater
from tests.benchmarks.ours import job as case_job

STEPS = 40
WITHIN, APART = 0.25, 0.15


class Case(NamedTuple):
    """A configuration: net, batch, workers, whether they are processes, strategy."""

    net: str
    batch: int
    workers: int
    processes: bool
    strategy: str

    def __str__(self) -> str:
        where = "processes" if self.processes else "threads"
        return f"{self.net} batch {self.batch}, {self.workers} {where}, {self.strategy}"


NETS: dict[str, Callable[[int], Job]] = {
    "cifar10": partial(case_job, "cifar10"),
    "mlp": lambda batch: models.mlp([2500, 2000, 1500], batchsize=batch, learning_rate=0.001),
    "alexnet-fc": lambda batch: models.mlp([4096, 4096], 9216, 1000, batchsize=batch, learning_rate=0.001),
}
CASES = [
    Case("cifar10", 64, 1, False, "data"),
    *(Case("cifar10", 128, 2, apart, how) for apart in (False, True) for how in ("data", "hybrid", "feature", "auto")),
    Case("mlp", 64, 1, False, "data"),
    *(Case("mlp", 64, 2, apart, how) for apart in (False, True) for how in ("data", "feature", "auto")),
    *(Case("alexnet-fc", batch, 2, True, how) for batch in (32, 128, 256) for how in ("data", "feature", "auto")),
]


def with_cuts(job: Job, cuts: Mapping[str, LayerCut]) -> Job:
    """Return the job with the partition_dim of each layer set."""
    layers = [
        layer.replace(partition_dim=cuts[layer.name].dim) if layer.name in cuts else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def build(job: Job) -> NeuralNet:
    """Return the training net, in the shapes that the job gives."""
    confs = [layer.store_conf for layer in input_layers(job.neuralnet, Phase.kTrain)]
    names = [layer.name for layer in input_layers(job.neuralnet, Phase.kTrain)]
    infos = {n: RecordInfo(tuple(c.shape), sum(c.batchsize)) for n, c in zip(names, confs, strict=True) if c}
    return create_net(job.neuralnet, Phase.kTrain, infos)


def predict_on_cluster(
    job: Job, client: Client, cuts: Cuts | None = None, one_worker: bool = False
) -> dict[str, PricedCuts]:
    """Return what an iteration costs by freshly measured rates: of each strategy by its name, or of ``cuts`` as "".

    ``one_worker`` says whether "auto" may be one worker.
    """
    addresses = available_workers(client)
    job_topology = topology(job, len(addresses), count_processes(addresses))
    placement = place(job_topology, addresses)
    links = measure_links(client, placement.workers[0])
    arguments = (build(job), create_updater(job.updater), placement, job_topology.slicing, links, cuts, one_worker)
    choices: dict[str, PricedCuts] = client.submit(
        predict, *arguments, workers=[placement.workers[0][0]], pure=False
    ).result()
    return choices


def predict(
    net: NeuralNet,
    updater: Updater,
    placement: Placement,
    slicing: SlicingMethod,
    links: Links,
    cuts: Cuts | None,
    one_worker: bool,
) -> dict[str, PricedCuts]:
    """Task: return what :func:`predict_on_cluster` returns."""
    machine = partial(machine_of, net, updater, get_ops(), placement, RateStore())
    process_map = process_map_of(placement, slicing)
    model, workers = CostModel(net, machine, links, process_map.first), len(process_map.workers)
    return (
        {"": choice.predict(model, cuts, workers)} if cuts else choice.compared(model, workers, one_worker=one_worker)
    )


def run(case: Case) -> tuple[float, float]:
    """Return predicted and measured milliseconds."""
    job = with_workers(NETS[case.net](case.batch), case.workers)
    if case.processes:
        job = job.replace(cluster=(job.cluster or ClusterConf()).replace(nservers_per_group=case.workers))
    with connect(workers=case.workers, separate_processes=case.processes) as client:
        before = predict_on_cluster(job, client)[case.strategy]
        figures = measure(with_cuts(job, before.cuts), client, steps=STEPS, synthetic=True)
        after = predict_on_cluster(job, client, before.cuts)[""]
    return 500 * (before.prediction.seconds + after.prediction.seconds), figures["ms_per_iteration"]


def misranked(times: Mapping[Case, tuple[float, float]]) -> list[tuple[Case, Case]]:
    """Return the pairs of strategies of which the planner did not predict the faster one."""
    wrong = []
    for first, second in itertools.combinations(times, 2):
        if first._replace(strategy="") != second._replace(strategy=""):
            continue
        (p1, m1), (p2, m2) = times[first], times[second]
        if max(m1, m2) > (1 + APART) * min(m1, m2) and (p1 < p2) != (m1 < m2):
            wrong.append((first, second))
    return wrong


@click.command()
@click.argument("names", nargs=-1)
@click.option("--turns", default=3, show_default=True)
def main(names: tuple[str, ...], turns: int) -> None:
    """Run the cases, or those whose names contain one of NAMES, and print the errors of the predictions."""
    cases = [case for case in CASES if not names or any(name in str(case) for name in names)]
    times: dict[Case, tuple[float, float]] = {}
    click.echo(f"{'':52} predicted  measured   error   in each turn")
    for case in cases:
        pairs = [run(case) for _ in range(turns)]
        predicted, measured = times[case] = tuple(map(statistics.median, zip(*pairs, strict=True)))
        each = " ".join(f"{prediction / ms - 1:+.0%}" for prediction, ms in pairs)
        click.echo(f"{case!s:52} {predicted:9.2f} {measured:9.2f} {predicted / measured - 1:+7.0%}   {each}")
    errors = {case: abs(predicted / measured - 1) for case, (predicted, measured) in times.items()}
    worst = max(errors, key=lambda case: errors[case])
    within = sum(error <= WITHIN for error in errors.values())
    click.echo(f"worst: {worst}, {errors[worst]:.0%}; {within} of {len(errors)} within {WITHIN:.0%}")
    for first, second in misranked(times):
        click.echo(f"misranked: {first} and {second}")


if __name__ == "__main__":
    main()
