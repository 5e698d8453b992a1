"""Configures the workers of a run: opens the stores of a checked job, builds its nets, slices its params."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dsinga.base.registry import listed
from dsinga.cluster.server import cut_into_pieces, slice_for_servers
from dsinga.cluster.worker.config import WorkerConfig
from dsinga.cluster.worker.exchange_options import ExchangeOptions
from dsinga.job import AlgType, ClusterConf, Job, Phase, UpdatePlace, training_phases
from dsinga.job.enums import PRECISIONS
from dsinga.job.topology import Topology
from dsinga.layers.dense.batchnorm import BatchNorm
from dsinga.net import NeuralNet, create_net
from dsinga.net.cut import LayerCut
from dsinga.net.partitioned import ParamPart, PartitionedNet
from dsinga.passes.evaluation import EvaluationPass
from dsinga.reading.all_records import count_batches, readers_of_all_records, tests_all_records
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.checked_job import CheckedJob
from dsinga.reading.nets import check_same_names, check_same_params, cut_like
from dsinga.training import Updater, algorithm, create_updater
from dsinga.training.bp import no_loss

_log = logging.getLogger(__name__)

NEVER = (1 << 31) - 1  # steps

# Takes the parts of params that servers keep; returns the server for each part that should stay whole, by its name.
FindPreferredServers = Callable[[Mapping[str, ParamPart]], Mapping[str, int]]


class OpenedJob(NamedTuple):
    """The batch reader and the whole net of each phase of a job.

    ``complete`` has the passes of the phases that are evaluated over all records. Reader and net of the first one are
    also those of the phase.
    """

    readers: Mapping[Phase, BatchReader]
    nets: Mapping[Phase, NeuralNet]
    complete: Mapping[Phase, Sequence[EvaluationPass]] = {}

    def passes(self, phase: Phase, batches: int) -> Sequence[EvaluationPass]:
        """Return the passes over the first ``batches`` batches of a phase; 0 means all records."""
        return [EvaluationPass(self.nets[phase], self.readers[phase], batches)] if batches else self.complete[phase]


def open_job(checked: CheckedJob, topology: Topology) -> OpenedJob:
    """Open the stores of a job and build its nets. Raises UserError for what is wrong with them."""
    job, groups = checked.job, {Phase.kTrain: topology.groups}  # a single group validates and tests
    readers = {phase: checked.reader(phase, topology.workers, groups.get(phase, 1)) for phase in training_phases(job)}
    complete = {
        phase: _passes_over_all_records(job, phase, reader)
        for phase, reader in readers.items()
        if tests_all_records(job, phase)
    }
    readers |= {phase: passes[0].reader for phase, passes in complete.items()}
    nets = {
        phase: complete[phase][0].net if phase in complete else create_net(job.neuralnet, phase, reader.infos)
        for phase, reader in readers.items()
    }
    check_same_params(nets)
    check_same_names(readers)
    alg = job.train_one_batch.alg
    if alg in (AlgType.kBP, AlgType.kBPTT) and not nets[Phase.kTrain].losses:
        raise job.neuralnet.error(no_loss("kTrain", alg.name))
    if job.micro_batches > 1:
        _announce_batch_statistics(nets[Phase.kTrain], job.micro_batches)
    return OpenedJob(readers, nets, complete)


def _passes_over_all_records(job: Job, phase: Phase, reader: BatchReader) -> list[EvaluationPass]:
    readers = readers_of_all_records(reader)
    nets = [create_net(job.neuralnet, phase, part.infos) for part in readers]
    return [EvaluationPass(*each) for each in zip(nets, readers, count_batches(readers), strict=True)]


def _announce_batch_statistics(net: NeuralNet, micro_batches: int) -> None:
    """Log a sentence where layers normalise by statistics of the rows that are computed at once."""
    layers = (node.layer for node in net.nodes)
    names = [layer.name for layer in layers if isinstance(layer, BatchNorm) and not layer.use_global_stats]
    if names:
        _log.warning(
            "batch normalisation (%s) takes its statistics of each of the %d micro_batches, not of the whole batch",
            listed(names), micro_batches,
        )  # fmt: skip


def evaluation_passes(
    opened: OpenedJob, nets: Mapping[Phase, PartitionedNet], requested_cuts: Mapping[str, int | LayerCut] | None = None
) -> dict[Phase, tuple[EvaluationPass, ...]]:
    """Return the passes over all records of each phase that is evaluated over all of them; ``nets`` are cut."""
    return {
        phase: tuple(
            each._replace(
                net=nets[phase]
                if each.net is opened.nets[phase]
                else cut_like(nets[Phase.kTrain], each.net, each.reader.parts, requested_cuts)
            )
            for each in passes
        )
        for phase, passes in opened.complete.items()
    }


def configure(
    job: Job,
    topology: Topology,
    opened: OpenedJob,
    nets: Mapping[Phase, PartitionedNet],
    updater: Updater,
    *,
    passes: Mapping[Phase, Sequence[EvaluationPass]] | None = None,
    run: str,
    served: bool = True,
    find_preferred_servers: FindPreferredServers = lambda parts: {},
    overlap: bool = True,
    timeout: float = 300.0,
    piece_bytes: int | None = None,
) -> WorkerConfig:
    """Return the configuration of the workers of a run.

    Args:
        job: the job, checked.
        topology: the numbers of groups, workers and servers.
        opened: the job's readers and whole nets.
        nets: the nets, cut for the workers of a group.
        updater: the job's updater.
        passes: the passes over all records of the phases that are evaluated over all of them.
        run: the name of the run, which no other run has.
        served: whether servers keep params; otherwise the only worker keeps all of them.
        find_preferred_servers: chooses servers for parts that should stay whole; by default for none.
        overlap: whether gradients are sent during the backward pass.
        timeout: seconds that a wait may last.
        piece_bytes: the size of the pieces of params that are exchanged between hosts; None to leave slices whole.
            Sums over whole slices, as for ``clip_norm`` and compression by kOneBit and kTopK, do that, too.
    """
    conf, average = job.cluster or ClusterConf(), job.updater.ema_conf
    if average is not None and topology.mean is not None and topology.server_groups > 1:
        # Params are averaged by the agreement of server groups, and not after each step of one of them.
        updater = create_updater(job.updater.replace(ema_conf=average.replace(every=NEVER)))
    parts = shared_parts(nets)
    check_whole(updater, parts, nets[Phase.kTrain].whole)
    sizes = {name: math.prod(part.shape) for name, part in parts.items() if served and not part.gathered}
    widths = row_widths(opened.nets[Phase.kTrain], parts, updater)
    slices = slice_for_servers(
        sizes,
        topology.servers,
        topology.slicing,
        find_preferred_servers({name: parts[name] for name in sizes}),
        widths,
        updater.needs_whole_params or outer_needs_whole_params(topology),
        topology.block_size,
        topology.block_rows,
    )
    if (
        piece_bytes is not None
        and conf.compression.by_number
        and not (updater.needs_whole_params or outer_needs_whole_params(topology))
    ):
        dense = {name for name, part in parts.items() if len(part.users) > 1 and name not in widths}
        slices = cut_into_pieces(slices, piece_bytes // 4, dense)
    else:
        piece_bytes = None
    return WorkerConfig(
        run=run,
        generation=0,
        seed=job.seed,
        topology=topology,
        nets=nets,
        parts=parts,
        readers=opened.readers,
        passes=passes or {},
        algorithm=algorithm(job.train_one_batch),
        updater=updater,
        outer_average=average,
        slices=slices,
        replicated=frozenset(parts if conf.update is UpdatePlace.kWorker else parts.keys() - sizes.keys()),
        options=ExchangeOptions(conf.pull, overlap, conf.compression, conf.topk_share, timeout, piece_bytes),
        skip_bad_batches=job.skip_bad_batches,
        precision=PRECISIONS[job.precision],
    )


def outer_needs_whole_params(topology: Topology) -> bool:
    """Whether server groups agree by an updater that needs whole params."""
    return topology.mean is not None and create_updater(topology.mean.updater).needs_whole_params


def row_widths(net: NeuralNet, parts: Mapping[str, ParamPart], updater: Updater) -> dict[str, int]:
    """Return the length of a row of each part of a param whose gradients may be sparse rows.

    An updater of whole params takes gradients that are dense.
    """
    params = {name: net.params[part.param] for name, part in parts.items()}
    return {
        name: math.prod(parts[name].shape[1:])
        for name, param in params.items()
        if param.spec.sparse and param.spec.trainable and not updater.of(param.name, param.shape).whole
    }


def check_whole(updater: Updater, parts: Mapping[str, ParamPart], net: NeuralNet) -> None:
    """Raise JobError for a param that partitioning cuts, and whose updater needs it whole."""
    for part in parts.values():
        param = net.params[part.param]
        if part.axis is not None and param.trainable and updater.of(param.name, param.shape).whole:
            kind = updater.conf.user_type or updater.conf.type.name
            raise updater.conf.error(
                f"{kind} updates whole params, but {param.name!r} is cut by features; give its layer partition_dim: 0 "
                "(rows) or a location (one worker), or choose another updater",
                "type",
            )


def shared_parts(nets: Mapping[Phase, PartitionedNet]) -> dict[str, ParamPart]:
    """Return the param parts of all phases, by name, the training net's first.

    The users of a part are all workers that have it in the net of any phase. A worker that only tests with a part takes
    part in its exchange, too; otherwise the part would change while that worker reads it.
    """
    users: dict[str, set[int]] = {}
    for net in nets.values():
        for location, local in enumerate(net.locals):
            for name in local.params:
                users.setdefault(name, set()).add(location)
    train = nets[Phase.kTrain].parts
    return {name: part._replace(users=tuple(sorted(users[name] | {*part.users}))) for name, part in train.items()}
