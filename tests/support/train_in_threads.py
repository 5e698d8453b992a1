"""Training a job in threads of this process, with servers and workers as on a cluster, but without Dask."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsinga.base.arrays import ParamArrays
from dsinga.cluster.server import Shard
from dsinga.cluster.server.service import ShardService
from dsinga.cluster.transport.endpoints import Endpoint, close_endpoints, connect
from dsinga.cluster.worker.config import RoundReport, ServerKey, WorkerConfig, WorkerKey, new_run_name
from dsinga.cluster.worker.configure import configure
from dsinga.cluster.worker.group_worker import GroupWorker
from dsinga.cluster.worker.param_slices import replica_values, slice_specs, sliced_values, whole_values
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.cluster_topology import topology as create_topology
from dsinga.cutting.phases import cut_nets
from dsinga.job import ClusterConf, Job, Phase
from dsinga.ops import Processor
from dsinga.passes.opened_job import open_job
from dsinga.reading.checked_job import CheckedJob, check_job, resolve_epochs
from dsinga.training import Metrics, add_metrics, create_updater, initial_values

TIMEOUT_SECONDS = 60.0  # of one wait of a worker


class ThreadRun(NamedTuple):
    """The outcome of a run: whole params by name, and the metrics of each step."""

    params: ParamArrays
    metrics: list[Metrics]


def train_in_threads(job: Job, roots: Sequence[str] = ()) -> ThreadRun:
    """Train the first and only worker group of a job for its train_steps or epochs; return params and metrics.

    The params are, to the bit, those of :func:`dsinga.train` on any cluster. Nothing is validated, tested or written.
    Raises UserError for what is wrong with the job or its stores, and for more than one worker group.
    """
    job = resolve_epochs(check_job(job, roots)).job
    topology = create_topology(job, 1, 1)
    if topology.groups > 1:
        raise (job.cluster or job).error("threads train one worker group; train several on a cluster", "nworker_groups")
    config, values = prepare(job, topology, roots)
    with running(config) as workers:
        shards = create_servers(config, values)
        workers += create_workers(config, values)
        reports = train(workers, 0, job.train_steps)
        metrics = [add_metrics(parts) for parts in zip(*(report.metrics for report in reports), strict=True)]
        return ThreadRun(_params(config, shards, workers, job.train_steps), metrics)


def prepare(job: Job, topology: Topology, roots: Sequence[str]) -> tuple[WorkerConfig, ParamArrays]:
    """Return what the workers of a job need, and the initial params."""
    opened = open_job(CheckedJob(job, roots), topology.workers, topology.groups)
    nets = cut_nets(opened.nets, opened.readers, (job.cluster or ClusterConf()).fullc_gather)
    updater = create_updater(job.updater)
    config = configure(job, topology, opened, nets, updater, run=new_run_name(), timeout=TIMEOUT_SECONDS)
    return config, initial_values(opened.nets[Phase.kTrain].params, job.seed)


@contextlib.contextmanager
def running(config: WorkerConfig) -> Iterator[list[GroupWorker]]:
    """Give a list of workers; end those that are in it, and the servers."""
    workers: list[GroupWorker] = []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.abort("the run has ended")
        close_endpoints(lambda name: name.startswith(config.run), "the run has ended")
        for worker in workers:
            worker.close()


def train(workers: Sequence[GroupWorker], start: int, stop: int) -> list[RoundReport]:
    """Let the workers of a group train from one step to another; return their reports."""
    rounds = [worker.thread.submit(worker.train, start, stop) for worker in workers]
    return [round.result(TIMEOUT_SECONDS) for round in rounds]


def create_servers(config: WorkerConfig, values: ParamArrays, gpu: Processor | None = None) -> list[Shard]:
    """Return the shards of the first server group, which have the initial params, in host memory or on a GPU."""
    specs, (pieces, _) = slice_specs(config), sliced_values(config, values, None)
    shards = []
    for server in range(config.topology.servers):
        kept = [spec for spec in specs if spec.slice.server == server]
        shard = Shard(kept, config.updater, range(config.topology.groups), gpu=gpu)
        shard.put({spec.slice.id: pieces[spec.slice.id].copy() for spec in kept})
        service = ShardService(shard, config.options.codec())
        Endpoint(_server_key(config, server).name, service, to_host=False)
        shards.append(shard)
    return shards


def create_workers(
    config: WorkerConfig,
    values: ParamArrays,
    group: int = 0,
    generation: int = 0,
    step: int = 0,
    processor: Processor = Processor(1),  # noqa: B008
) -> list[GroupWorker]:
    """Return the workers of a generation of a group, which begin at a step."""
    servers = {_server_key(config, server): None for server in range(config.topology.servers)}
    keys = [
        WorkerKey(config.run, generation, group, partition, "threads") for partition in range(config.topology.workers)
    ]
    workers = [GroupWorker(key, config, servers, processor, step) for key in keys]
    for key, worker in zip(keys, workers, strict=True):
        Endpoint(key.name, worker.peers.mailbox, to_host=False)
    for worker in workers:
        worker.peers.connect([connect(key.name) for key in keys])
        worker.set_replica(replica_values(config, values, None))
    return workers


def _params(config: WorkerConfig, shards: Sequence[Shard], workers: Sequence[GroupWorker], step: int) -> ParamArrays:
    pieces = {id: value for shard in shards for id, value in shard.snapshot(step, TIMEOUT_SECONDS).values.items()}
    replicas = [worker.replica_state() for worker in workers] if config.replicated else []
    return whole_values(config, pieces, {}, replicas)[0]


def _server_key(config: WorkerConfig, server: int) -> ServerKey:
    return ServerKey(config.run, 0, 0, server)
