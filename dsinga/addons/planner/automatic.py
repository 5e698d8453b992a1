"""Chooses how each layer is cut for ``partition: auto`` on the running cluster, by predicted times."""

from __future__ import annotations

import logging
import platform
import statistics
import sys
import time
import uuid
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from dsinga.addons.planner.cost_model import CostModel, compared, needs_several_workers
from dsinga.addons.planner.fitting import MemoryFit, NetVariants, cheapest_that_fits, fit_or_refuse, whole_job, with_fit
from dsinga.addons.planner.link import (
    ENDS,
    INSIDE,
    LOOPBACK,
    TIMEOUT_SECONDS,
    BarrierCost,
    Link,
    Links,
    measure_barrier,
    round_figure,
    rounded_cost,
    time_peer_barriers,
)
from dsinga.addons.planner.machine import MachineModel, measure_machine
from dsinga.addons.planner.processes import ProcessMap, wire_bytes
from dsinga.addons.planner.rate_store import RateStore, rates_file
from dsinga.addons.planner.search import explicitly_cut_layers, layers_with_whole_params
from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import RunError
from dsinga.base.registry import implements, register
from dsinga.base.settings import read_setting
from dsinga.cluster.dask.dask_workers import host, on_several_hosts, process
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.run_tasks import submit_to
from dsinga.cluster.dask.supervision import gather
from dsinga.cluster.dask.worker_memory import Packed
from dsinga.cluster.on_workers.connections import connection_to, serve_connections
from dsinga.cluster.placing.memory import PREDICTED, ChooseTraining, worker_limit
from dsinga.cluster.transport.endpoints import Endpoint, connect
from dsinga.cluster.transport.handshake import Secret
from dsinga.cluster.transport.interface import Items
from dsinga.cluster.transport.shared_memory import SharedMemoryTransport, connect_to_host
from dsinga.cluster.worker.exchange_options import Meter
from dsinga.cluster.worker.mailbox import GroupPeers
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.cluster_topology import topology as create_topology
from dsinga.cutting.partitioned import LayerCut
from dsinga.cutting.worker_memory import FIXED
from dsinga.job import ClusterConf, Job, PartitionMethod, Phase, SlicingMethod
from dsinga.job.enums import PRECISIONS
from dsinga.net import NeuralNet
from dsinga.ops import Ops, cpu_ops
from dsinga.passes.opened_job import OpenedJob
from dsinga.training import Updater

# The bytes that timed calls carry, and the number of calls by these bytes.
SMALL, LARGE = 1 << 16, 1 << 24
CALLS = {0: 40, SMALL: 20, LARGE: 5}
CONNECT_CHECK_SECONDS = 0.01  # between two attempts to connect to a task that may not have started

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux: changes with each start of the machine

_log = logging.getLogger(__name__)


@register("hook", "choose_training")
@implements(ChooseTraining)
def choose_training(
    job: Job, topology: Topology, opened: OpenedJob, updater: Updater, client: Client, placement: Placement
) -> tuple[Job, Topology, dict[str, LayerCut] | None]:
    """Choose cuts for ``partition: auto``: return the job, its topology and its cuts (None for one worker).

    The job gets the micro-batches and recomputation that memory requires.
    """
    is_predicted = job.train_one_batch.alg in PREDICTED and not job.gpu
    limit = worker_limit(client, placement, FIXED) if is_predicted else sys.maxsize
    variants = NetVariants.of(job, opened.readers[Phase.kTrain])
    if topology.workers == 1:
        return with_fit(job, fit_or_refuse(variants, limit), limit), topology, None
    net = opened.nets[Phase.kTrain] if whole_job(job) == job else variants.net(1, 0)
    return choose_cuts(job, topology, net, updater, client, placement, variants, limit)


def choose_cuts(
    job: Job,
    topology: Topology,
    net: NeuralNet,
    updater: Updater,
    client: Client,
    placement: Placement,
    variants: NetVariants,
    limit: int,
) -> tuple[Job, Topology, dict[str, LayerCut] | None]:
    """Choose the fastest cuts by layer according to the cost model; return them with the job and topology.

    The job fits into ``limit`` bytes a worker, if necessary with micro-batches and recomputation. If one worker is
    fastest, its groups have one worker, and the cuts are None. Layers with a partition_dim or a location are left out.
    """
    workers = placement.workers[0]
    links, processes = measure_links(client, workers), process_map_of(placement, topology.slicing)
    machines, folder = machines_of(client, workers), read_setting("cache")
    arguments = Packed((job, net, updater)), processes, links, placement, machines, folder, Packed((variants, limit))
    search = submit_to(client, workers[0], _search, *arguments)
    ((cuts, description, warning, found),) = gather(client, [search], workers)
    if warning:
        _log.warning("partition: auto: %s", warning)
    job = with_fit(job, found, limit)
    if cuts is None:
        _log.info("partition: auto trains with one worker, which is faster than %d", len(workers))
        conf = (job.cluster or ClusterConf()).replace(nworkers_per_group=1, nservers_per_group=1)
        job = job.replace(cluster=conf, neuralnet=job.neuralnet.replace(partition=PartitionMethod.manual))
        return job, create_topology(job, 1, 1), None
    _log.info("partition: auto cuts the net over %d workers so: %s", len(workers), description)
    return job, topology, cuts


def process_map_of(placement: Placement, slicing: SlicingMethod) -> ProcessMap:
    """Describe the processes of the first group for the planner."""
    return ProcessMap(*placement.processes, slicing, several_hosts=on_several_hosts(placement.workers[0]))


def machines_of(client: Client, addresses: Sequence[str]) -> list[str]:
    """Identify the machine of each Dask worker, so that containers on one machine are recognised."""
    return gather(client, [submit_to(client, address, _machine) for address in addresses], addresses)


def _machine() -> str:
    """Task: identify this machine by the id of its boot, or else the host name."""
    try:
        return BOOT_ID.read_text(encoding="ascii")
    except OSError:
        return platform.node()


def machine_of(
    net: NeuralNet,
    updater: Updater,
    ops: Ops,
    placement: Placement,
    machines: Sequence[str],
    store: RateStore,
    workers: int,
) -> MachineModel:
    """Measure the first worker's machine while ``workers`` workers of its group compute; return the model.

    Workers with equal ``machines`` share memory and caches.
    """
    together = machines[:workers].count(machines[0])
    return measure_machine(net, updater, ops, placement.threads[0][0], together, store)


@cleared_frames()
def _search(
    job_net_updater: Packed[tuple[Job, NeuralNet, Updater]],
    processes: ProcessMap,
    links: Links,
    placement: Placement,
    machines: Sequence[str],
    folder: str | None,
    variants_limit: Packed[tuple[NetVariants, int]],
) -> tuple[dict[str, LayerCut] | None, str, str, MemoryFit]:
    """Task: search cuts by layer (None for one worker); return them, a description, a warning, the memory fit."""
    job, net, updater = job_net_updater.unpack()
    ops, store = cpu_ops(PRECISIONS[job.precision]), RateStore(rates_file(folder))
    wire = wire_bytes(job, ops.precision == "bf16")
    processes = processes._replace(whole=updater.needs_whole_params, wire=wire)
    machine = partial(machine_of, net, updater, ops, placement, machines, store)
    cost_model = CostModel(net, machine, links, processes.first)
    excluded = explicitly_cut_layers(job.neuralnet) | layers_with_whole_params(net, updater)
    one_worker = not needs_several_workers(job.neuralnet)
    choices = compared(cost_model, len(processes.workers), excluded, one_worker)
    if not one_worker:
        del choices["one worker"]
    store.save()
    choice, found = cheapest_that_fits(choices, *variants_limit.unpack())
    cuts = {name: cut for name, cut in choice.cuts.items() if name not in excluded}
    return (cuts if choice.workers > 1 else None), choice.text(net), store.warning, found


class EchoService:
    """Accepts arrays and drops them, to time remote calls."""

    def handle(self, method: str, fields: Sequence[Any], items: Items) -> None:
        """Reply without arrays, so that only the message is timed."""

    def close(self, message: str) -> None:
        """Do nothing: there is no state to close."""


class EchoActor:
    """A Dask Actor that offers :class:`EchoService` as servers offer their shards."""

    def __init__(self, name: str, secret: Secret):
        serve_connections()
        weakref.finalize(self, Endpoint(name, EchoService(), secret=secret).close, "the measurement has ended")


def measure_links(client: Client, addresses: Sequence[str]) -> Links:
    """Measure the links between Dask workers; the first two processes' link stands for all.

    Rounded to a quarter of a power of two, so that noise seldom changes the partitioning.
    """
    process_addresses = list({process(address): address for address in reversed(addresses)}.values())[::-1]
    first = process_addresses[0]
    (inside,) = gather(client, [submit_to(client, first, measure_barrier)], [first])
    if len(process_addresses) < 2:
        return Links(INSIDE, ENDS, LOOPBACK, False, inside, inside)
    second = process_addresses[1]
    name, secret = uuid.uuid4().hex, Secret()
    echo = submit_to(client, second, EchoActor, name, secret, actor=True)  # it lives as long as this future
    calls = submit_to(client, first, _time_calls, second, name, secret, echo)
    seconds, shared_memory = gather(client, [calls], [first, second])[0]
    link = link_of(seconds)
    if host(first) != host(second):
        wire = link._replace(latency=max(link.latency - ENDS.latency, 0.0))
        return Links(INSIDE, ENDS, wire, False, inside, inside)
    between = _measure_barrier_between(client, first, second, link) if shared_memory else inside
    return Links(INSIDE, link, LOOPBACK, shared_memory, inside, between)


def _measure_barrier_between(client: Client, first: str, second: str, link: Link) -> BarrierCost:
    names, secret = (uuid.uuid4().hex, uuid.uuid4().hex), Secret()
    timings = [
        submit_to(client, first, _time_barriers, names[0], names[1], secret),
        submit_to(client, second, _time_barriers, names[1], names[0], secret),
    ]
    return rounded_cost(gather(client, timings, [first, second]), 2 * link.latency)


def link_of(seconds: dict[int, float]) -> Link:
    """Compute latency and bandwidth of a link from ``seconds`` a call, by bytes."""
    rate = (LARGE - SMALL) / max(seconds[LARGE] - seconds[SMALL], 1e-9)
    return Link(round_figure(seconds[0] / 2), round_figure(rate))


def _time_calls(address: str, name: str, secret: Secret, echo: Any) -> tuple[dict[int, float], bool]:
    """Task: measure the median seconds of a call by its bytes, and whether it uses shared memory."""
    transport = connect(name, connection_to(address, name), secret)
    medians = {}
    for size, calls in CALLS.items():
        array = np.zeros(size, np.uint8)
        transport.call("echo", (), [array]).result()
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            transport.call("echo", (), [array]).result()
            times.append(time.perf_counter() - started)
        medians[size] = statistics.median(times)
    transport.close()
    return medians, isinstance(transport, SharedMemoryTransport)


def _time_barriers(name: str, peer_name: str, secret: Secret) -> list[tuple[float, float]]:
    """Task: time computing and barriers with the process ``peer_name``."""
    peers = GroupPeers(TIMEOUT_SECONDS, Meter())
    endpoint = Endpoint(name, peers.mailbox, secret=secret)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (transport := connect_to_host(peer_name, secret)) is None:
            if time.monotonic() > deadline:
                raise RunError(f"waited {TIMEOUT_SECONDS:g} s for the other Dask worker to take part in a measurement")
            time.sleep(CONNECT_CHECK_SECONDS)
        return time_peer_barriers(peers, transport)
    finally:
        endpoint.close("the measurement has ended")
