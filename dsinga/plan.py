"""Pricing the partitionings of a job, on this machine or on a cluster that need not exist."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import dask.config
from dask.system import CPU_COUNT

from dsinga.api import roots
from dsinga.cluster.link_probe import measure_barrier
from dsinga.cluster.units import parse_bandwidth, parse_latency
from dsinga.errors import UserError
from dsinga.job import AlgType, ClusterConf, Job, JobError, LayerConf, PartitionMethod, Phase, check
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, choose_cuts, create_net, input_layers, partition
from dsinga.net.cut import LayerCut
from dsinga.ops import get_ops
from dsinga.planner.barrier import FREE_BARRIER, BarrierCost
from dsinga.planner.cost_model import EXACT_WORKERS, CostModel
from dsinga.planner.link import ENDS, INSIDE, LOOPBACK, Link, Links
from dsinga.planner.machine import MachineModel, measure_machine
from dsinga.planner.memory import FIXED, Memory, worker_memory
from dsinga.planner.processes import ProcessMap, process_map
from dsinga.planner.rate_store import RateStore, rates_file
from dsinga.planner.search import Search, explicitly_cut_layers
from dsinga.planner.simulate import Prediction
from dsinga.planner.strategies import by_features, by_layer, by_rows, describe_cuts, hybrid
from dsinga.training import create_updater
from dsinga.worker.batch_reader import open_batch_reader

NETWORK = Link(100e-6, 125e6)  # a switched gigabit network
CURVE = (1, 2, 4, 8, 16, 32, 64, 128)  # numbers of workers

Cuts = Mapping[str, LayerCut]


class Alternative(NamedTuple):
    """A priced partitioning over ``workers`` workers.

    Attributes:
        name: the name of the strategy.
        workers: the number of workers.
        words: the cuts as text.
        prediction: the cost of an iteration.
        efficiency: t1 / (n·tn).
        memory: that of the worker that needs most; None where the net is approximated, not partitioned.
    """

    name: str
    workers: int
    words: str
    prediction: Prediction
    efficiency: float
    memory: Memory | None = None

    def figures(self) -> dict[str, Any]:
        """Return the alternative as plain numbers and text, for JSON."""
        return {
            "name": self.name,
            "workers": self.workers,
            "ms_per_iteration": 1e3 * self.prediction.seconds,
            "compute_ms": 1e3 * self.prediction.compute,
            "sent_bytes": self.prediction.sent,
            "received_bytes": self.prediction.received,
            "memory_bytes": self.memory.peak if self.memory else self.prediction.memory + FIXED,
            "speedup": self.efficiency * self.workers,
            "efficiency": self.efficiency,
            "partitioning": self.words,
        }


@dataclass(frozen=True)
class Plan:
    """The priced partitionings of a job.

    Attributes:
        job: the name of the job.
        batch: rows of a batch.
        where: a text that says where the workers of ``alternatives`` run.
        alternatives: those for one number of workers, cheapest first.
        scaling: a text that says where the workers of ``curve`` run.
        curve: some strategies for 1, 2, 4, ... workers.
    """

    job: str
    batch: int
    where: str
    alternatives: Sequence[Alternative]
    scaling: str
    curve: Sequence[Alternative]

    def figures(self) -> dict[str, Any]:
        """Return the plan as plain numbers and text, for JSON."""
        rows = {
            name: [alternative.figures() for alternative in getattr(self, name)] for name in ("alternatives", "curve")
        }
        return {"job": self.job, "batch": self.batch, "where": self.where, "scaling": self.scaling, **rows}

    def speedups(self) -> dict[str, list[tuple[int, float]]]:
        """Return the points (workers, speedup) of each strategy of the curve, beginning with one worker."""
        lines: dict[str, list[tuple[int, float]]] = {}
        for alternative in self.curve:
            points = lines.setdefault(alternative.name, [(1, 1.0)] if alternative.workers > 1 else [])
            points.append((alternative.workers, alternative.efficiency * alternative.workers))
        return lines


def predict(job: Job, *, workers: int | None = None, network: Link | None = None, data_root: str | None = None) -> Plan:
    """Price the partitionings of a job.

    Args:
        job: the job; its ``cluster`` says how many servers there are and how many workers share a process.
        workers: the number of workers, which may exceed the cores of this machine; by default the job's, else one for
            each core.
        network: the network between machines like this one. Each machine then runs the workers of one process:
            nworkers_per_procs of the job, else one for each core. Without it, up to as many workers as there are cores
            are threads of one process, and more workers are on machines joined by a gigabit network.
        data_root: where relative paths of the job are looked up last. A store may be missing if the job gives the
            shape of its records.

    Raises UserError for bad input.
    """
    check(job, [Phase.kTrain])
    if job.train_one_batch.alg is AlgType.kCD:
        raise job.error("a plan needs a job trained by back-propagation; kCD is always cut by rows", "train_one_batch")
    conf = job.cluster
    count = workers if workers is not None else (conf.nworkers_per_group if conf else CPU_COUNT)
    net = _net(job, data_root)
    batch = net.nodes[0].layer.shape[0]
    if not 1 <= count <= batch:
        raise UserError(f"a batch of {batch} can be cut over 1 to {batch} workers, not {count}")
    in_one_process = network is None and count <= CPU_COUNT
    models = _CostModels(job, net)
    barrier = models.barrier()
    local = models.create(_in_one_process, count, Links(INSIDE, ENDS, LOOPBACK, barrier_inside=barrier))
    per_process = conf.nworkers_per_procs if conf else CPU_COUNT
    link = network or NETWORK
    links = Links(INSIDE, ENDS, link, barrier_inside=barrier, barrier_between=barrier)
    remote = models.create(_on_machines(conf), per_process, links)
    alternatives = _alternatives(job, local if in_one_process else remote, count)
    curve = [
        _price(remote, name, cuts, number)
        for number in CURVE
        if number <= batch
        for name, cuts in _strategies(remote, number).items()
    ]
    models.store.save()
    machines = f"machines of {_count(per_process)}, joined by {_words(link)}"
    where = "threads of one process" if in_one_process else machines
    return Plan(job.name, batch, where, alternatives, machines, curve)


def network(bandwidth: str | None, latency: str | None) -> Link | None:
    """Return the network that a user describes, None without a description.

    A missing figure is that of a gigabit network. Raises UserError for bad figures.
    """
    if bandwidth is None and latency is None:
        return None
    return Link(
        parse_latency(latency) if latency is not None else NETWORK.latency,
        parse_bandwidth(bandwidth) if bandwidth is not None else NETWORK.bandwidth,
    )


class _CostModels:
    """Creates cost models of a job that share what has been measured."""

    def __init__(self, job: Job, net: NeuralNet):
        self.store = RateStore(rates_file(dask.config.get("dsinga.cache", None)))
        self._net, self._updater = net, create_updater(job.updater)

    def barrier(self) -> BarrierCost:
        """Return the cost of a barrier of workers of one process here; other machines are assumed to be alike."""
        return BarrierCost(*self.store.get("barrier", measure_barrier)) if CPU_COUNT > 1 else FREE_BARRIER

    def create(self, processes: Callable[[int], ProcessMap], per_machine: int, links: Links) -> CostModel:
        """Return a cost model for up to ``per_machine`` workers on each machine with as many cores as this one."""
        per_machine = min(per_machine, CPU_COUNT)

        def unsliced_if_clipped(workers: int) -> ProcessMap:
            return processes(workers)._replace(whole=bool(self._updater.conf.clip_norm))

        def machine(workers: int) -> MachineModel:
            count, threads = min(workers, per_machine), CPU_COUNT // per_machine
            return measure_machine(self._net, self._updater, get_ops(), threads, count, count, self.store)

        return CostModel(self._net, machine, links, unsliced_if_clipped)


def _in_one_process(workers: int) -> ProcessMap:
    return process_map(workers, workers, 1)


def _on_machines(conf: ClusterConf | None) -> Callable[[int], ProcessMap]:
    """Return a function of the number of workers: their processes, with servers in the job's proportion or one each."""

    def processes(workers: int) -> ProcessMap:
        if conf is None:
            return process_map(workers, CPU_COUNT, -(-workers // CPU_COUNT))
        servers = max(1, conf.nservers_per_group * workers // conf.nworkers_per_group)
        return process_map(workers, conf.nworkers_per_procs, servers, conf.slicing)

    return processes


def _strategies(model: CostModel, workers: int, fixed: Collection[str] = ()) -> dict[str, Cuts]:
    """Return the strategies that are compared for every number of workers, by name."""
    if workers == 1:
        return {"data": by_rows(model.net, 1)}
    return {
        "data": by_rows(model.net, workers),
        "hybrid": hybrid(model.net, workers),
        "auto": Search(model.net, model.price, fixed).cuts(workers),
    }


def _alternatives(job: Job, model: CostModel, workers: int) -> list[Alternative]:
    """Return the priced alternatives for a number of workers, cheapest first."""
    net = model.net
    rows = by_rows(net, 1)
    one_worker = _with_memory(job, net, _price(model, "one worker", rows, 1), rows)
    if workers == 1:
        return [one_worker]
    fixed = explicitly_cut_layers(job.neuralnet) if job.neuralnet.partition is PartitionMethod.auto else ()
    strategies = _strategies(model, workers, fixed)
    strategies |= {"feature": by_features(net, workers), "layers": by_layer(net, workers)}
    with contextlib.suppress(JobError):  # layers that cannot be cut over so many workers
        strategies["as the job says"] = choose_cuts(net, workers)
    priced = ((_price(model, name, cuts, workers), cuts) for name, cuts in strategies.items())
    alternatives = [one_worker, *(_with_memory(job, net, alternative, cuts) for alternative, cuts in priced)]
    return sorted(alternatives, key=lambda alternative: alternative.prediction.seconds)


def _price(model: CostModel, name: str, cuts: Cuts, workers: int) -> Alternative:
    prediction = model.predict(cuts, workers)
    efficiency = model.efficiency(prediction, workers)
    return Alternative(name, workers, describe_cuts(model.net, cuts), prediction, efficiency)


def _with_memory(job: Job, net: NeuralNet, alternative: Alternative, cuts: Cuts) -> Alternative:
    """Return the alternative with a worker's memory, without that for records, whose store may be missing."""
    if alternative.workers > EXACT_WORKERS:
        return alternative
    slots = len(create_updater(job.updater).slots)
    locals_ = partition(net, alternative.workers, cuts=cuts).locals
    memories = [worker_memory(local, slots, alternative.workers) for local in locals_]
    return alternative._replace(memory=max(memories, key=lambda memory: memory.peak))


def _net(job: Job, data_root: str | None) -> NeuralNet:
    """Return the training net; without its stores, in the shapes that the job gives."""
    try:
        infos = open_batch_reader(job, Phase.kTrain, 1, roots(job, data_root)).infos
    except UserError as error:
        layers = input_layers(job.neuralnet, Phase.kTrain)
        if any(layer.store_conf is None or not layer.store_conf.shape for layer in layers):
            error.add_note("without its store, a plan needs the shape of the records in store_conf")
            raise
        infos = {layer.name: _info(layer) for layer in layers}
    return create_net(job.neuralnet, Phase.kTrain, infos)


def _info(layer: LayerConf) -> RecordInfo:
    conf = layer.store_conf
    assert conf is not None
    return RecordInfo(tuple(conf.shape), sum(conf.batchsize))


def _words(link: Link) -> str:
    return f"{8 * link.bandwidth / 1e9:g} Gbit/s, {1e3 * link.latency:g} ms"


def _count(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''}"
