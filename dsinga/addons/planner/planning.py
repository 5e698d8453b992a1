"""Predicts a job's iteration time, and compares the prediction with a finished run, part by part."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from distributed.system import MEMORY_LIMIT

from dsinga.addons.planner.fitting import price_of, whole_job
from dsinga.addons.planner.link import ENDS, GIGABIT, INSIDE, LOOPBACK, SHARED_MEMORY, Link, Links, parse_network
from dsinga.addons.planner.plan import Plan, price_sites
from dsinga.addons.planner.pricing import CostModels, describe_link, make_plan, plan_net
from dsinga.addons.planner.processes import ProcessMap
from dsinga.addons.planner.rate_store import RateStore, rates_file
from dsinga.addons.planner.search import by_rows
from dsinga.addons.planner.simulate import Prediction
from dsinga.api.argument_types import typed
from dsinga.api.jobs_with_data import job_with_data, roots
from dsinga.base.arguments import counted
from dsinga.base.errors import UserError
from dsinga.base.settings import read_setting
from dsinga.cutting.partitioned import SPACE, LayerCut
from dsinga.job import Job, Phase, SlicingMethod
from dsinga.job.writer import job_signature
from dsinga.loop.timings_file import RunTimings, read_timings
from dsinga.monitor.standard_streams import error_stream
from dsinga.reading.checked_job import CheckedJob, check_job


@typed()
def plan(
    job: Job | str | os.PathLike[str],
    *,
    data: Any = None,
    workers: int | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    memory: str | None = None,
    sites: int | None = None,
    data_root: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Plan:
    """Predict the time of an iteration for each way to partition the net of a job.

    Layers are timed on this machine once and cached (dask config ``dsinga.cache``).

    Args:
        job: a Job, or the path of a job file. Its stores may be missing if it gives the shapes of their records.
        data: arrays that the input layer of phase "train" reads instead of its store; see :func:`dsinga.train`.
        workers: the workers of the worker group, which need not exist; defaults to the job's, else one a core.
        bandwidth: between machines, such as "1Gbit" or "100MB/s".
        latency: between machines, such as "0.1ms". With a bandwidth or a latency, workers are on machines like this
            one. Without both, they are on this machine as far as it has cores.
        memory: of each worker, such as "2GB". Micro-batches and recomputation then make each alternative fit, if
            possible (:class:`dsinga.addons.planner.fitting.MemoryFit`).
        sites: the number of sites that average their params (``sync_method: kMean``), each with such a group on this
            machine. Bandwidth and latency are then between sites.
        data_root: where relative paths of the job are looked up last.
        progress: report measurements on standard error.

    Raises UserError for bad input, and if the net cannot be trained in ``memory``.
    """
    job = job_with_data(job, data, Phase.kTrain, data_root)
    limit = None if memory is None else parse_size(memory)
    machine = _machine(job, bandwidth, latency, data_root, progress)
    if sites is None:
        return make_plan(job, workers=workers, memory=MEMORY_LIMIT, limit=limit, **machine)
    link = machine.pop("network") or GIGABIT
    numbers = sum(
        param.size for param in plan_net(check_job(whole_job(job), machine["roots"], [Phase.kTrain])).params.values()
    )
    price_sites(sites, numbers, 1.0, link)  # refuses bad input before anything is timed
    plan = make_plan(job, workers=workers, memory=MEMORY_LIMIT, limit=limit, network=None, **machine)
    seconds = plan.alternatives[0].prediction.seconds
    return dataclasses.replace(plan, sites=price_sites(sites, numbers, seconds, link))


def parse_size(text: str) -> int:
    """Parse a size such as "2GB" or "1.5 GiB"; return bytes. Raises UserError for other text, and below 1 MiB."""
    try:
        size = int(parse_bytes(text))
    except ValueError:
        size = 0
    if size < 1 << 20:
        raise UserError(f"memory must be a size such as 2GB or 512MiB, not {text!r}")
    return size


@typed()
def compare_with_plan(
    job: Job | str | os.PathLike[str],
    workspace: str | os.PathLike[str],
    *,
    data: Any = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    data_root: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Comparison:
    """Compare the finished run in a workspace with its prediction, part by part.

    ``parts`` of the result are computing, updating params, exchange and waiting, and reading records, each with
    ``predicted`` and ``measured`` seconds of an iteration. The prediction is for the run's workers, servers and cuts,
    on machines like this one. ``bandwidth`` and ``latency`` are between its hosts; the other arguments are as for
    :func:`plan`.

    Raises UserError for bad input, a workspace without a finished run, and a run of another job.
    """
    job = job_with_data(job, data, Phase.kTrain, data_root)
    return compare_run(job, Path(workspace), **_machine(job, bandwidth, latency, data_root, progress))


def _machine(
    job: Job, bandwidth: str | None, latency: str | None, data_root: str | os.PathLike[str] | None, progress: bool
) -> dict[str, Any]:
    return {
        "cores": CPU_COUNT,
        "network": parse_network(bandwidth, latency),
        "roots": roots(job, data_root),
        "cache": read_setting("cache"),
        "announce": partial(print, file=error_stream(), flush=True) if progress else None,
    }


class Part(NamedTuple):
    """A part of an iteration: its name, and its predicted and measured seconds."""

    name: str
    predicted: float
    measured: float

    @property
    def miss(self) -> float:
        """The measured seconds less the predicted ones."""
        return self.measured - self.predicted


class Comparison(NamedTuple):
    """A finished run compared with its prediction, part by part.

    ``where`` names the workers' place, ``steps`` is the number of measured iterations.
    """

    job: str
    where: str
    steps: int
    parts: Sequence[Part]
    warning: str = ""

    @property
    def iteration(self) -> Part:
        """The whole iteration, as the sum of its parts."""
        return Part("iteration", sum(part.predicted for part in self.parts), sum(part.measured for part in self.parts))

    @property
    def verdict(self) -> str:
        """A sentence that says how well the iteration was predicted, and where the largest miss is."""
        worst = max(self.parts, key=lambda part: abs(part.miss))
        error = self.iteration.predicted / self.iteration.measured - 1
        more = "more" if worst.miss > 0 else "less"
        return (
            f"the prediction is {error:+.0%} off; the largest miss is {worst.name}: {1e3 * worst.measured:,.2f} ms, "
            f"{1e3 * abs(worst.miss):,.2f} ms {more} than predicted"
        )

    def figures(self) -> dict[str, Any]:
        """Return the comparison as a dict of figures for JSON."""
        rows = [
            {"part": part.name, "predicted_ms": 1e3 * part.predicted, "measured_ms": 1e3 * part.measured}
            for part in (*self.parts, self.iteration)
        ]
        texts = {"job": self.job, "where": self.where, "steps": self.steps, "verdict": self.verdict}
        return {**texts, "parts": rows} | ({"warning": self.warning} if self.warning else {})


def compare(prediction: Prediction, run: RunTimings, where: str, warning: str = "") -> Comparison:
    """Compare the measured times of a run with a prediction; reading records is not predicted."""
    seconds = run.seconds
    waiting = prediction.seconds - prediction.compute - prediction.update
    measured_waiting = seconds["total"] - seconds["compute"] - seconds["update"] - seconds["data"]
    parts = [
        Part("computing layers", prediction.compute, seconds["compute"]),
        Part("updating params", prediction.update, seconds["update"]),
        Part("exchange and waiting", max(waiting, 0.0), max(measured_waiting, 0.0)),
        Part("reading records", 0.0, seconds["data"]),
    ]
    return Comparison(run.job, where, run.steps, parts, warning)


def compare_run(
    job: Job,
    workspace: Path,
    cores: int,
    *,
    network: Link | None = None,
    roots: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
    announce: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare a workspace's run with its prediction, for machines like this one joined by ``network``."""
    run = read_timings(workspace)
    check_same_job(job, run, workspace)
    places, net = run.places, plan_net(CheckedJob(whole_job(job), roots))
    workers = len(places.workers)
    models = CostModels(job, net, cores, RateStore(rates_file(cache), announce), job.precision)
    barrier, link = models.barrier(), network or GIGABIT
    slicing = job.cluster.slicing if job.cluster else SlicingMethod.kSinga
    processes = ProcessMap(tuple(places.workers), tuple(places.servers), slicing, several_hosts=places.hosts > 1)
    if places.hosts > 1:
        links, where = (
            Links(INSIDE, ENDS, link, False, barrier, barrier),
            f"{places.hosts} hosts, {describe_link(link)}",
        )
    else:
        links = Links(INSIDE, SHARED_MEMORY, LOOPBACK, True, barrier, barrier)
        count = len({*places.workers, *places.servers})
        where = f"{count} process{'es' if count > 1 else ''} of one host"
    model = models.create(processes.first, -(-workers // places.hosts), links, places.threads)
    names = {node.layer.name for node in net.nodes}
    fits = all(dim <= 4 and 0 <= location < workers for dim, location in run.cuts.values())
    if workers > 1 and not (fits and run.cuts.keys() == names):
        raise UserError(f"the cuts in {workspace} are not those of this job's layers; train the job again")
    grid = tuple(job.neuralnet.partition_grid) or (workers,)
    cuts = {
        name: LayerCut(dim, location, grid=grid if dim >= SPACE else ()) for name, (dim, location) in run.cuts.items()
    }
    if workers == 1:
        cuts = by_rows(net, 1)
    prediction = model.predict(cuts, workers).computing(price_of(job, net.nodes[0].layer.shape[0], workers))
    models.store.save()
    return compare(prediction, run, f"{counted(workers, 'worker')} in {where}", models.store.warning)


def check_same_job(job: Job, run: RunTimings, workspace: object) -> None:
    """Raise UserError if a workspace's run is of another job, or of a kind that no plan predicts."""
    if run.signature != job_signature(job):
        name = "another job" if run.job == job.name else f"the job {run.job!r}"
        raise UserError(
            f"the run in {workspace} is of {name}: its layers, batch size, updater, exchange or precision differ; give "
            "the workspace of this job"
        )
    if run.places.groups > 1:
        raise UserError(f"the run in {workspace} has {run.places.groups} worker groups; a plan predicts those of one")
    if run.places.unpredicted:
        raise UserError(f"the run in {workspace} {run.places.unpredicted}, which no plan predicts; train without it")


def print_comparison(figures: Mapping[str, Any], console: rich.console.Console) -> None:
    """Print a comparison from the figures of ``Comparison.figures``."""
    console.print(f"{figures['job']}: {figures['where']}; an iteration, medians of {figures['steps']}:")
    table = rich.table.Table("part", box=rich.box.SIMPLE, padding=(0, 1))
    for name in ("predicted ms", "measured ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in figures["parts"]:
        table.add_row(row["part"], f"{row['predicted_ms']:,.2f}", f"{row['measured_ms']:,.2f}")
    console.print(table)
    console.print(figures["verdict"])
    if "warning" in figures:
        console.print(f"warning: {figures['warning']}")
