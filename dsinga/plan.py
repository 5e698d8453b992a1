"""Pricing the partitionings of a job, on this machine or on a cluster that is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import dask.config
from dask.system import CPU_COUNT

from dsinga.api import roots
from dsinga.cluster.link_probe import meetings_inside
from dsinga.cluster.units import parse_bandwidth, parse_latency
from dsinga.errors import UserError
from dsinga.job import AlgType, ClusterConf, Job, JobError, LayerConf, PartitionMethod, Phase, check
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, choose_cuts, create_net, input_layers, partition
from dsinga.net.cut import LayerCut
from dsinga.ops import get_ops
from dsinga.planner.forecast import EXACT_WORKERS, Forecast
from dsinga.planner.hosts import Hosts, hosts
from dsinga.planner.link import ENDS, INSIDE, LOOPBACK, Link, Links
from dsinga.planner.machine import Machine, measured_machine
from dsinga.planner.meetings import PUNCTUAL, Lateness
from dsinga.planner.memory import FIXED, Memory, worker_memory
from dsinga.planner.search import Search, own_layers
from dsinga.planner.simulate import Prediction
from dsinga.planner.store import RateStore, rates_file
from dsinga.planner.strategies import by_features, by_layer, by_rows, hybrid, in_words
from dsinga.training import create_updater
from dsinga.worker.batch_reader import open_batch_reader

NETWORK = Link(100e-6, 125e6)  # an ordinary switched gigabit network
CURVE = (1, 2, 4, 8, 16, 32, 64, 128)

Cuts = Mapping[str, LayerCut]


class Alternative(NamedTuple):
    """A partitioning over ``workers``: its name, in words, its price, and t1 / (n·tn).

    ``memory`` is what the worker needs that needs most; None where many workers make the net too long to cut.
    """

    name: str
    workers: int
    words: str
    prediction: Prediction
    efficiency: float
    memory: Memory | None = None

    def figures(self) -> dict[str, Any]:
        """Return what it costs, under plain names."""
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
    """Alternatives for a number of workers, cheapest first, and some of them for others (``curve``).

    ``where`` and ``scaling`` say where the workers of either are.
    """

    job: str
    batch: int
    where: str
    alternatives: Sequence[Alternative]
    scaling: str
    curve: Sequence[Alternative]

    def figures(self) -> dict[str, Any]:
        """Return all of it as plain numbers and words, for JSON."""
        rows = {name: [one.figures() for one in getattr(self, name)] for name in ("alternatives", "curve")}
        words = {"job": self.job, "batch": self.batch, "where": self.where, "scaling": self.scaling}
        return {**words, **rows}

    def speedups(self) -> dict[str, list[tuple[int, float]]]:
        """Return (workers, speedup) of each strategy of the curve; all of them begin at one worker."""
        lines: dict[str, list[tuple[int, float]]] = {}
        for one in self.curve:
            lines.setdefault(one.name, [(1, 1.0)] if one.workers > 1 else []).append(
                (one.workers, one.efficiency * one.workers)
            )
        return lines


def predict(job: Job, *, workers: int | None = None, network: Link | None = None, data_root: str | None = None) -> Plan:
    """Price the partitionings of a job.

    Args:
        job: the job; its ``cluster`` says how many servers there are and how many workers share a process.
        workers: how many; by default the job's, else one for each core of this machine. They need not be there.
        network: what joins machines like this one, of which each has the workers of one process: as many as the job's
            nworkers_per_procs, or one a core. Without it, as many workers as there are cores are threads of one process
            here, and more are joined by a gigabit network.
        data_root: where relative paths of the job are looked up last. A store that is not there is done without.

    Raises UserError for bad input.
    """
    check(job, [Phase.kTrain])
    if job.train_one_batch.alg is AlgType.kCD:
        raise job.error("plans are of back-propagation; the layers of kCD are cut by rows", "train_one_batch")
    conf = job.cluster
    count = workers if workers is not None else (conf.nworkers_per_group if conf else CPU_COUNT)
    net = _net(job, data_root)
    batch = net.nodes[0].layer.shape[0]
    if not 1 <= count <= batch:
        raise UserError(f"a batch of {batch} can be cut over 1 to {batch} workers, not {count}")
    here = network is None and count <= CPU_COUNT
    forecasts = _Forecasts(job, net)
    late = forecasts.lateness()
    near = forecasts.at(_in_one_process, count, Links(INSIDE, ENDS, LOOPBACK, late_inside=late))
    per_process = conf.nworkers_per_procs if conf else CPU_COUNT
    link = network or NETWORK
    far = forecasts.at(_spread(conf), per_process, Links(INSIDE, ENDS, link, late_inside=late, late=late))
    forecast = near if here else far
    found = _alternatives(job, forecast, count)
    curve = [
        _price(far, name, cuts, number)
        for number in CURVE
        if number <= batch
        for name, cuts in _named(far, number).items()
    ]
    forecasts.store.save()
    there = f"machines of {_count(per_process)}, joined by {_words(link)}"
    return Plan(job.name, batch, "threads of one process" if here else there, found, there, curve)


def network(bandwidth: str | None, latency: str | None) -> Link | None:
    """Return the network that a user describes, None where nothing is said. Raises UserError for bad figures."""
    if bandwidth is None and latency is None:
        return None
    return Link(
        parse_latency(latency) if latency is not None else NETWORK.latency,
        parse_bandwidth(bandwidth) if bandwidth is not None else NETWORK.bandwidth,
    )


class _Forecasts:
    """Makes forecasts that share what has been measured."""

    def __init__(self, job: Job, net: NeuralNet):
        self.store = RateStore(rates_file(dask.config.get("dsinga.cache", None)))
        self._net, self._updater = net, create_updater(job.updater)

    def lateness(self) -> Lateness:
        """Return what meetings cost the workers of one process here; elsewhere they are taken to be as punctual."""
        return Lateness(*self.store.get("meetings", meetings_inside)) if CPU_COUNT > 1 else PUNCTUAL

    def at(self, hosts: Callable[[int], Hosts], each: int, links: Links) -> Forecast:
        """Return a forecast for workers that live so, up to ``each`` on a machine with the cores of this one."""
        each = min(each, CPU_COUNT)

        def homes(workers: int) -> Hosts:
            return hosts(workers)._replace(whole=bool(self._updater.conf.clip_norm))

        def machine(workers: int) -> Machine:
            crowd = min(workers, each)
            return measured_machine(self._net, self._updater, get_ops(), CPU_COUNT // each, crowd, crowd, self.store)

        return Forecast(self._net, machine, links, homes)


def _in_one_process(workers: int) -> Hosts:
    return hosts(workers, workers, 1)


def _spread(conf: ClusterConf | None) -> Callable[[int], Hosts]:
    """Return who lives where on several machines: servers in the job's proportion, or one a machine."""

    def of(workers: int) -> Hosts:
        if conf is None:
            return hosts(workers, CPU_COUNT, -(-workers // CPU_COUNT))
        servers = max(1, conf.nservers_per_group * workers // conf.nworkers_per_group)
        return hosts(workers, conf.nworkers_per_procs, servers, conf.slicing)

    return of


def _named(forecast: Forecast, workers: int, fixed: Collection[str] = ()) -> dict[str, Cuts]:
    """Return the cuts that are compared for any number of workers, by name."""
    if workers == 1:
        return {"data": by_rows(forecast.net, 1)}
    return {
        "data": by_rows(forecast.net, workers),
        "hybrid": hybrid(forecast.net, workers),
        "auto": Search(forecast.net, forecast.price, fixed).cuts(workers),
    }


def _alternatives(job: Job, forecast: Forecast, workers: int) -> list[Alternative]:
    """Return the priced alternatives, cheapest first."""
    net = forecast.net
    rows = by_rows(net, 1)
    alone = _with_memory(job, net, _price(forecast, "one worker", rows, 1), rows)
    if workers == 1:
        return [alone]
    fixed = own_layers(job.neuralnet) if job.neuralnet.partition is PartitionMethod.auto else ()
    named = _named(forecast, workers, fixed)
    named |= {"feature": by_features(net, workers), "layers": by_layer(net, workers)}
    with contextlib.suppress(JobError):  # layers that cannot be cut over so many workers
        named["as the job says"] = choose_cuts(net, workers)
    priced = ((_price(forecast, name, cuts, workers), cuts) for name, cuts in named.items())
    found = [alone, *(_with_memory(job, net, one, cuts) for one, cuts in priced)]
    return sorted(found, key=lambda one: one.prediction.seconds)


def _price(forecast: Forecast, name: str, cuts: Cuts, workers: int) -> Alternative:
    prediction = forecast.predict(cuts, workers)
    efficiency = forecast.efficiency(prediction, workers)
    return Alternative(name, workers, in_words(forecast.net, cuts), prediction, efficiency)


def _with_memory(job: Job, net: NeuralNet, one: Alternative, cuts: Cuts) -> Alternative:
    """Return an alternative with what a worker needs of memory, but for records: their store may not be there."""
    if one.workers > EXACT_WORKERS:
        return one
    slots = len(create_updater(job.updater).slots)
    locals_ = partition(net, one.workers, cuts=cuts).locals
    memories = [worker_memory(local, slots, one.workers) for local in locals_]
    return one._replace(memory=max(memories, key=lambda memory: memory.peak))


def _net(job: Job, data_root: str | None) -> NeuralNet:
    """Return the training net; where its stores are not there, of the shapes that the job gives."""
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
