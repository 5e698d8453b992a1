"""Prepares a job for a cluster: places it on Dask workers, configures it, and checks it there before it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from distributed import Client

from dsinga.base.registry import lookup
from dsinga.base.settings import read_setting
from dsinga.cluster.dask.dask_workers import on_several_hosts, process
from dsinga.cluster.dask.placement import Placement, place
from dsinga.cluster.placing.devices import choose_run_devices, keeps_params_on_gpu
from dsinga.cluster.placing.memory import ChooseTraining, check_memory, warn_of_memory
from dsinga.cluster.placing.room import await_room
from dsinga.cluster.preflight.check import check_workers_ready
from dsinga.cluster.queue.claims import Claim, Request, claim_workers
from dsinga.cluster.queue.usable_workers import ANYWHERE, WorkerSelection
from dsinga.cluster.server import slicing
from dsinga.cluster.worker.config import WorkerConfig, new_run_name
from dsinga.cluster.worker.configure import configure
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.partitioned import LayerCut, ParamPart
from dsinga.cutting.phases import cut_nets, evaluation_passes
from dsinga.cutting.turns import check_turns
from dsinga.job import ClusterConf, Job, PartitionMethod, Phase, Precision
from dsinga.job.epochs import Epochs
from dsinga.loop.cancellation import Cancellation
from dsinga.net import NeuralNet
from dsinga.net.neuralnet import usable_threads
from dsinga.ops.types import Devices
from dsinga.passes.opened_job import OpenedJob, open_job
from dsinga.reading.checked_job import CheckedJob, check_job, planning
from dsinga.training import Updater, algorithm, check_patterns, create_updater

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedRun:
    """A job that is checked, configured and placed: ready to run on a cluster.

    Attributes:
        claim: the threads of Dask workers that the run holds.
        check_ready: raises UserError unless the Dask workers at these addresses can train the job.
        choose_devices: returns the GPU of each worker for another placement.
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
    job: Job | CheckedJob,
    client: Client,
    roots: Sequence[str] = (),
    *,
    selection: WorkerSelection = ANYWHERE,
    max_threads: int | None = None,
    cancellation: Cancellation | None = None,
    announce: Callable[[str], None] | None = None,
) -> Iterator[PreparedRun]:
    """Check a job if necessary, open its stores, build its nets, and place it on the cluster.

    Seven stages follow: :func:`dsinga.cluster.placing.room.await_room`, :func:`open_in_memory`,
    :func:`dsinga.cluster.queue.claims.claim_workers`, :func:`place_workers`, :func:`check_readiness`,
    :func:`fit_partition` and :func:`configure_run`.

    The run holds its threads of Dask workers as long as the context lasts. Raises UserError, before anything runs, for
    all faults of the job, the stores or the size of the cluster.
    """
    checked = check_job(job, roots)
    job = checked.job
    announce, cancellation = announce or _log.info, cancellation or Cancellation()
    with await_room(job, client, selection, cancellation, announce) as topology:
        opened = open_in_memory(checked, topology, client)
        request = Request(new_run_name(), job.name, topology, selection)
        with claim_workers(client, request, cancellation, announce) as claim:
            placed = Placed(job, topology, opened, place_workers(topology, opened, claim, max_threads))
            updater = make_updater(job, opened)
            check_ready = check_readiness(placed, updater, client)
            if job.neuralnet.partition is PartitionMethod.auto:
                placed = fit_partition(placed, checked, updater, client, claim, max_threads)
            config, choose_devices, placement = configure_run(placed, updater, client, request.run)
            yield PreparedRun(
                placed.job, placed.topology, placement, config, updater, claim, check_ready, choose_devices,
                cancellation,
            )  # fmt: skip


class Placed(NamedTuple):
    """A job between the stages of preparation: with topology, open stores, nets and placement.

    ``fitted`` is whether ``partition: auto`` has fitted it into their memory, with the cuts ``cuts``.
    """

    job: Job
    topology: Topology
    opened: OpenedJob
    placement: Placement
    cuts: Mapping[str, LayerCut] | None = None
    fitted: bool = False


def open_in_memory(checked: CheckedJob, topology: Topology, client: Client) -> OpenedJob:
    """Open the stores of a job and build its nets.

    If the job gives the cuts, raises UserError for a net that needs more memory than this host and any Dask worker
    have.
    """
    opened = open_job(checked, topology.workers, topology.groups)
    if checked.job.neuralnet.partition is not PartitionMethod.auto:
        check_memory(client, opened.nets.values(), topology.workers)
    return opened


def place_workers(topology: Topology, opened: OpenedJob, claim: Claim, max_threads: int | None) -> Placement:
    """Place a job on the claimed Dask workers, with each worker's kernel threads."""
    threads = usable_threads(opened.nets[Phase.kTrain], topology.workers)
    if topology.threads is not None:  # their number must not depend on the machines: results may depend on it
        threads = 1
    return place(topology, claim.workers).with_threads(threads, max_threads)


def make_updater(job: Job, opened: OpenedJob) -> Updater:
    """Make a job's updater; raise JobError if its settings for params match none."""
    check_patterns(job.updater, opened.nets[Phase.kTrain].params)
    if job.cluster is not None and job.cluster.mean_conf is not None:
        check_patterns(job.cluster.mean_conf.updater, opened.nets[Phase.kTrain].params)
        create_updater(job.cluster.mean_conf.updater)  # so that a fault in it shows before training
    return create_updater(job.updater)


def check_readiness(placed: Placed, updater: Updater, client: Client) -> Callable[[Collection[str]], bool]:
    """Check that a placement's Dask workers can train a job; return the check for others."""
    job, opened = placed.job, placed.opened
    alg = algorithm(job.train_one_batch)
    objects = {"the updater": updater, "the learning rate's schedule": updater.schedule, "the algorithm": alg}
    on_gpus = job.gpu or read_setting("device") == "gpu"  # a GPU computes the same with any processor
    check_ready = partial(
        check_workers_ready, client, nets=opened.nets.values(), objects=objects, readers=opened.readers.values(),
        precision=Precision.kFloat32 if on_gpus else job.precision,
    )  # fmt: skip
    return partial(check_ready, has_bf16=check_ready(placed.placement.addresses))


def fit_partition(
    placed: Placed, checked: CheckedJob, updater: Updater, client: Client, claim: Claim, max_threads: int | None
) -> Placed:
    """Let ``partition: auto`` choose the cuts of a job; return it with new nets if its batches changed."""
    with planning(placed.job):
        choose_training: ChooseTraining = lookup("hook", "choose_training")
    job, topology, cuts = choose_training(placed.job, placed.topology, placed.opened, updater, client, placed.placement)
    if job == placed.job:
        return Placed(job, topology, placed.opened, placed.placement, cuts, fitted=True)
    claim.keep(place(topology, claim.workers))
    opened = open_job(checked.with_job(job), topology.workers, topology.groups)
    return Placed(job, topology, opened, place_workers(topology, opened, claim, max_threads), cuts, fitted=True)


def configure_run(
    placed: Placed, updater: Updater, client: Client, run: str
) -> tuple[WorkerConfig, Callable[[Placement], Devices], Placement]:
    """Cut the nets and choose the workers' GPUs; return the configuration of a run's workers.

    Also returns the function that chooses the GPUs, and the placement with its choice.
    """
    job, topology, opened, placement, cuts, fitted = placed
    nets = cut_nets(opened.nets, opened.readers, (job.cluster or ClusterConf()).fullc_gather, cuts)
    if job.blocks_at_once < job.blocks:
        check_turns(nets[Phase.kTrain])
    choose_devices = partial(choose_run_devices, job, client, topology, nets, updater)
    placement = placement._replace(devices=choose_devices(placement))
    config = configure(
        job,
        topology,
        opened,
        nets,
        updater,
        passes=evaluation_passes(opened, nets, cuts),
        run=run,
        served=not keeps_params_on_gpu(job, topology, placement),
        find_preferred_servers=partial(preferred_servers, placement=placement),
        overlap=read_setting("overlap"),
        timeout=read_setting("timeout"),
        piece_bytes=slicing.PIECE_BYTES if on_several_hosts(placement.addresses) else None,
    )
    if not fitted:
        warn_of_memory(job, opened, config, client, placement)
    return config, choose_devices, placement


def preferred_servers(parts: Mapping[str, ParamPart], placement: Placement) -> dict[str, int]:
    """Return for each part with a single user a server in the user's process, if any, so that it is not sent."""
    near: dict[str, list[int]] = {}
    for server, address in enumerate(placement.servers[0]):
        near.setdefault(process(address), []).append(server)
    preferred = {}
    for number, (name, part) in enumerate(parts.items()):
        servers = near.get(process(placement.workers[0][part.users[0]]))
        if len(part.users) == 1 and servers:
            preferred[name] = servers[number % len(servers)]
    return preferred
