"""Making a job ready for a cluster: stores opened, nets built, places given. What can be refused is refused here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dask.config
import dask.utils
from distributed import Client

from dsinga.cluster.cluster_run import new_run
from dsinga.cluster.devices import Devices, check_precision, choose_devices
from dsinga.cluster.placement import Placement, place, process, processes, workers_at_hand
from dsinga.cluster.preflight import check_stores, check_travels
from dsinga.job import (
    AlgType,
    ClusterConf,
    Compression,
    Job,
    PartitionMethod,
    Phase,
    UpdatePlace,
    check,
    training_phases,
)
from dsinga.job.topology import Topology, topology
from dsinga.net import NeuralNet, create_net
from dsinga.net.partitioned import ParamPart, PartitionedNet
from dsinga.server import slice_for_servers
from dsinga.training import Updater, algorithm, create_updater
from dsinga.worker.batch_reader import open_batch_reader
from dsinga.worker.config import WorkerConfig
from dsinga.worker.exchange_options import ExchangeOptions
from dsinga.worker.nets import check_same_params, check_same_vocabularies, cut_nets
from dsinga.worker.processor import PRECISIONS


@dataclass(frozen=True)
class PreparedRun:
    """A job made ready for a cluster: everything that can be refused has been checked."""

    job: Job
    topology: Topology
    placement: Placement
    config: WorkerConfig
    updater: Updater

    @property
    def net(self) -> NeuralNet:
        """The training net."""
        return self.config.nets[Phase.kTrain].whole


def prepare_run(job: Job, client: Client, roots: Sequence[str] = ()) -> PreparedRun:
    """Check a job, open its stores, build its nets, and place it on the cluster.

    Raises UserError, before anything runs, for whatever is wrong with the job, the stores or the size of the cluster.
    """
    check(job)
    at_hand = workers_at_hand(client)
    wanted = topology(job, len(at_hand), processes(at_hand))
    placement = place(wanted, at_hand)
    groups = {Phase.kTrain: wanted.groups}  # one group alone validates and tests
    readers = {p: open_batch_reader(job, p, wanted.workers, roots, groups.get(p, 1)) for p in training_phases(job)}
    nets = {phase: create_net(job.neuralnet, phase, reader.infos) for phase, reader in readers.items()}
    check_same_params(nets)
    check_same_vocabularies(readers)
    alg = job.train_one_batch.alg
    if alg in (AlgType.kBP, AlgType.kBPTT) and not nets[Phase.kTrain].losses:
        raise job.neuralnet.error(f"the net has no loss layer in phase kTrain: {alg.name} has no gradient to follow")
    conf = job.cluster or ClusterConf()
    updater = create_updater(job.updater)
    requested_cuts = None
    if job.neuralnet.partition is PartitionMethod.auto and wanted.workers > 1:
        from dsinga.cluster.automatic import automatic_cuts  # the planner is for those who ask for it

        requested_cuts = automatic_cuts(job.neuralnet, nets[Phase.kTrain], updater, client, placement, wanted.slicing)
    cut = cut_nets(nets, readers, conf.fullc_gather, requested_cuts)
    parts = shared_parts(cut)
    placement = placement._replace(devices=_devices(job, client, placement, wanted, cut, updater))
    sizes = {name: math.prod(part.shape) for name, part in parts.items() if not part.gathered}
    if wanted.workers == 1 and placement.device(0, 0) is not None and _updates_there(wanted, conf):
        sizes = {}  # the only worker keeps all params on its GPU: servers could only copy them
    homes = find_homes({name: parts[name] for name in sizes}, placement)
    config = WorkerConfig(
        run=new_run(),
        generation=0,
        seed=job.seed,
        topology=wanted,
        nets=cut,
        parts=parts,
        readers=readers,
        algorithm=algorithm(job.train_one_batch),
        updater=updater,
        slices=slice_for_servers(
            sizes,
            wanted.servers,
            wanted.slicing,
            homes,
            row_widths(nets[Phase.kTrain], parts),
            bool(job.updater.clip_norm),
        ),
        replicated=frozenset(parts if conf.update is UpdatePlace.kWorker else parts.keys() - sizes.keys()),
        options=ExchangeOptions(
            conf.pull,
            bool(dask.config.get("dsinga.overlap", True)),
            conf.compression,
            conf.topk_share,
            dask.utils.parse_timedelta(dask.config.get("dsinga.timeout", "5 minutes")),
        ),
        skip_bad_batches=job.skip_bad_batches,
        precision=PRECISIONS[job.precision],
    )
    others = {"the updater": updater, "the learning rate's schedule": updater.rate, "the algorithm": config.algorithm}
    check_travels(client, placement.addresses, nets.values(), others)
    check_stores(client, placement.addresses, readers.values())
    return PreparedRun(job, wanted, placement, config, updater)


def _devices(
    job: Job,
    client: Client,
    placement: Placement,
    wanted: Topology,
    nets: Mapping[Phase, PartitionedNet],
    updater: Updater,
) -> Devices:
    """Return the GPU of each partition, None for CPU cores; see :func:`choose_devices`."""
    slots = len(updater.slots) if _updates_there(wanted, job.cluster or ClusterConf()) else 0
    locals_ = nets[Phase.kTrain].locals

    def needs(number: int) -> int:
        from dsinga.planner.memory import worker_memory  # the planner is for those who want a GPU

        memory = worker_memory(locals_[number], slots)
        return memory.params + memory.gradients + memory.state + memory.features + memory.workspaces

    devices = choose_devices(job, client, placement.partitions, needs)
    check_precision(job, devices)
    return devices


def _updates_there(wanted: Topology, conf: ClusterConf) -> bool:
    """Whether a worker on a GPU would update params there: the only one, or all of them, each for itself."""
    alone = wanted.groups == wanted.workers == 1 and not wanted.separate and conf.compression is Compression.kNone
    return alone or conf.update is UpdatePlace.kWorker


def row_widths(net: NeuralNet, parts: Mapping[str, ParamPart]) -> dict[str, int]:
    """Return the length of a row of each part of a param whose gradients may come as rows."""
    specs = {name: net.params[part.param].spec for name, part in parts.items()}
    return {name: math.prod(parts[name].shape[1:]) for name, spec in specs.items() if spec.sparse and spec.trainable}


def find_homes(parts: Mapping[str, ParamPart], placement: Placement) -> dict[str, int]:
    """Return the server that is to keep each part with a sole user: one in that user's process, if there is any."""
    near: dict[str, list[int]] = {}
    for server, address in enumerate(placement.servers[0]):
        near.setdefault(process(address), []).append(server)
    homes = {}
    for number, (name, part) in enumerate(parts.items()):
        servers = near.get(process(placement.partitions[0][part.users[0]]))
        if len(part.users) == 1 and servers:
            homes[name] = servers[number % len(servers)]
    return homes


def shared_parts(nets: Mapping[Phase, PartitionedNet]) -> dict[str, ParamPart]:
    """Return the param parts of all phases, by name, the training net's first.

    Their users are all workers that have them in the net of any phase. One that only tests with a part must take part
    in its exchange too, or its value would change while it reads.
    """
    users: dict[str, set[int]] = {}
    for net in nets.values():
        for location, local in enumerate(net.locals):
            for name in local.params:
                users.setdefault(name, set()).add(location)
    train = nets[Phase.kTrain].parts
    return {name: part._replace(users=tuple(sorted(users[name] | {*part.users}))) for name, part in train.items()}
