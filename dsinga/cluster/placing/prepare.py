"""Preparing a job for a cluster: placed on Dask workers, configured, and checked there before anything runs."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from distributed import Client
from distributed.system import MEMORY_LIMIT

from dsinga.base.errors import TooFewWorkers
from dsinga.base.settings import read_setting
from dsinga.cluster.connecting.adaptive import keep_workers
from dsinga.cluster.connecting.expected_workers import await_workers
from dsinga.cluster.dask.dask_workers import Workers, available_workers, count_processes, on_several_hosts, process
from dsinga.cluster.dask.placement import Devices, Placement, place
from dsinga.cluster.placing.devices import choose_run_devices, keeps_params_on_gpu
from dsinga.cluster.placing.memory_limits import choose_training, warn_of_memory
from dsinga.cluster.preflight.check import check_workers_ready
from dsinga.cluster.queue.claims import Claim, Request, claim_workers
from dsinga.cluster.queue.usable_workers import ANYWHERE, WorkerSelection, check_room, usable_workers
from dsinga.job import ClusterConf, Job, PartitionMethod, Phase, Precision, check
from dsinga.job.topology import Topology
from dsinga.job.topology import topology as create_topology
from dsinga.loop.cancellation import Cancellation
from dsinga.net import NeuralNet, memory_check
from dsinga.net.neuralnet import usable_threads
from dsinga.net.partitioned import ParamPart
from dsinga.reading.epochs import Epochs
from dsinga.reading.nets import cut_nets
from dsinga.server import slicing
from dsinga.training import Updater, algorithm, check_patterns, create_updater
from dsinga.worker.config import WorkerConfig, new_run_name
from dsinga.worker.configure import configure, evaluation_passes, open_job

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedRun:
    """A job that is checked, configured and placed: ready to run on a cluster.

    Attributes:
        job: the job.
        topology: the numbers of groups, workers and servers.
        placement: what is on which Dask worker.
        config: the configuration of the workers.
        updater: the job's updater.
        claim: the threads of Dask workers that the run holds.
        check_ready: raises UserError unless the Dask workers at these addresses can train the job.
        choose_devices: returns the GPU of each worker for another placement.
        cancellation: the request to end the run.
    """

    job: Job
    topology: Topology
    placement: Placement
    config: WorkerConfig
    updater: Updater
    claim: Claim
    check_ready: Callable[[Collection[str]], bool]
    choose_devices: Callable[[Placement], Devices]
    cancellation: Cancellation

    @property
    def net(self) -> NeuralNet:
        """The training net."""
        return self.config.nets[Phase.kTrain].whole

    @property
    def epochs(self) -> Epochs | None:
        """The epochs of the run, None for a job without ``epochs``."""
        return self.config.readers[Phase.kTrain].epochs if self.job.epochs else None


@contextlib.contextmanager
def prepare_run(
    job: Job,
    client: Client,
    roots: Sequence[str] = (),
    *,
    selection: WorkerSelection = ANYWHERE,
    max_threads: int | None = None,
    cancellation: Cancellation | None = None,
    announce: Callable[[str], None] | None = None,
) -> Iterator[PreparedRun]:
    """Check a job, open its stores, build its nets, and place it on the cluster.

    The run holds the threads of Dask workers that it needs as long as the context lasts. It waits for Dask workers that
    are still to come, as :func:`dsinga.cluster.connecting.expected_workers.await_workers` explains, and for threads
    that other runs hold (:func:`dsinga.cluster.queue.claims.claim_workers`). ``max_threads`` limits the kernel threads
    of each worker.

    Raises UserError, before anything runs, for whatever is wrong with the job, the stores or the size of the cluster.
    """
    check(job)
    available_workers(client)  # raises UserError for what is no client that can be waited for
    announce, cancellation = announce or _log.info, cancellation or Cancellation()
    with await_room(job, client, selection, cancellation, announce) as topology:
        opened = open_job(job, topology, roots)
        is_automatic = job.neuralnet.partition is PartitionMethod.auto
        if not is_automatic:
            check_memory(client, opened.nets.values(), topology.workers)
        request = Request(new_run_name(), job.name, topology, selection)
        with claim_workers(client, request, cancellation, announce) as claim:
            threads = usable_threads(opened.nets[Phase.kTrain], topology.workers)
            placement = place(topology, claim.workers).with_threads(threads, max_threads)
            check_patterns(job.updater, opened.nets[Phase.kTrain].params)
            updater, alg = create_updater(job.updater), algorithm(job.train_one_batch)
            objects = {"the updater": updater, "the learning rate's schedule": updater.rate, "the algorithm": alg}
            whole_nets, readers = opened.nets.values(), opened.readers.values()
            on_gpus = job.gpu or read_setting("device") == "gpu"  # a GPU computes alike beside any processor
            precision = Precision.kFloat32 if on_gpus else job.precision
            check_ready = partial(
                check_workers_ready, client, nets=whole_nets, objects=objects, readers=readers, precision=precision
            )
            check_ready = partial(check_ready, has_bf16=check_ready(placement.addresses))
            cuts = None
            if is_automatic:
                given = job
                job, topology, cuts = choose_training(job, topology, opened, updater, client, placement)
                if job != given:  # one worker is faster, or the memory needs micro-batches or recomputation
                    claim.keep(place(topology, claim.workers))
                    opened = open_job(job, topology, roots)
                    threads = usable_threads(opened.nets[Phase.kTrain], topology.workers)
                    placement = place(topology, claim.workers).with_threads(threads, max_threads)
            nets = cut_nets(opened.nets, opened.readers, (job.cluster or ClusterConf()).fullc_gather, cuts)
            if not is_automatic:
                warn_of_memory(job, opened, nets[Phase.kTrain].locals, updater, client, placement)
            choose = partial(choose_run_devices, job, client, topology, nets, updater)
            placement = placement._replace(devices=choose(placement))
            config = configure(
                job,
                topology,
                opened,
                nets,
                updater,
                passes=evaluation_passes(opened, nets, cuts),
                run=request.run,
                served=not keeps_params_on_gpu(job, topology, placement),
                find_preferred_servers=partial(preferred_servers, placement=placement),
                overlap=read_setting("overlap"),
                timeout=read_setting("timeout"),
                piece_bytes=slicing.PIECE_BYTES if on_several_hosts(placement.addresses) else None,
            )
            yield PreparedRun(job, topology, placement, config, updater, claim, check_ready, choose, cancellation)


@contextlib.contextmanager
def await_room(
    job: Job, client: Client, selection: WorkerSelection, cancellation: Cancellation, announce: Callable[[str], None]
) -> Iterator[Topology]:
    """Wait until a cluster has room for a job, whatever other runs hold; yield the job's topology there.

    An adaptive cluster keeps the Dask workers of the job as long as the context lasts. Raises what
    :func:`dsinga.cluster.connecting.expected_workers.await_workers` raises.
    """
    wanted, patience = wanted_processes(job), (job.cluster or ClusterConf()).patience
    choose_topology, shortage = _topology_choice(job, client, selection, wanted)
    with keep_workers(client, int(wanted) if job.cluster else 1):
        yield await_workers(
            client, choose_topology, patience=patience, shortage=shortage, cancellation=cancellation, announce=announce
        )


def wanted_processes(job: Job) -> float:
    """Return the number of Dask workers that a job is spread over, if there are so many.

    Without ``cluster`` it takes all of them (infinity): those that a cluster object has requested, or that come.
    """
    conf = job.cluster
    if conf is None:
        return math.inf
    servers = -(-conf.nserver_groups * conf.nservers_per_group // conf.nservers_per_procs)
    workers = -(-conf.nworker_groups * conf.nworkers_per_group // conf.nworkers_per_procs)
    return workers + (servers if conf.server_worker_separate else 0)


def _topology_choice(
    job: Job, client: Client, selection: WorkerSelection, wanted: float
) -> tuple[Callable[[Workers], Topology], Callable[[Topology, Workers], str]]:
    """Return functions of the Dask workers of a cluster: the topology of a job on them, and what it lacks, or ""."""

    def choose_topology(workers: Workers) -> Topology:
        usable = usable_workers(client, selection, workers)
        topology = create_topology(job, len(usable), count_processes(usable))
        check_room(topology, usable, selection)
        least = min(job.cluster.min_workers, wanted) if job.cluster else 1
        if len(usable) < least:
            raise TooFewWorkers(
                f"the run begins with {least} Dask workers, as cluster.min_workers says, but the Dask cluster has "
                f"{len(usable)}; start more Dask workers, or set fewer"
            )
        return topology

    def shortage(_: Topology, workers: Workers) -> str:
        count = len(usable_workers(client, selection, workers))
        of_how_many = "" if math.isinf(wanted) else f" of {wanted}"
        return "" if count >= wanted else f"{count}{of_how_many} Dask worker{'s are' if count > 1 else ' is'} there"

    return choose_topology, shortage


def preferred_servers(parts: Mapping[str, ParamPart], placement: Placement) -> dict[str, int]:
    """Return for each part with a single user a server in that user's process, if there is any."""
    near: dict[str, list[int]] = {}
    for server, address in enumerate(placement.servers[0]):
        near.setdefault(process(address), []).append(server)
    preferred = {}
    for number, (name, part) in enumerate(parts.items()):
        servers = near.get(process(placement.workers[0][part.users[0]]))
        if len(part.users) == 1 and servers:
            preferred[name] = servers[number % len(servers)]
    return preferred


def check_memory(client: Client, nets: Iterable[NeuralNet], workers: int) -> None:
    """Raise UserError where a net needs more memory than this host, and any Dask worker, has."""
    limits = [info.get("memory_limit") or 0 for info in available_workers(client).values()]
    memory_check.check_memory(nets, workers, max([MEMORY_LIMIT, *limits]))
