"""Configures the workers of a run: which params they have, and how servers slice them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from dsinga.cluster.server import cut_into_pieces, slice_for_servers
from dsinga.cluster.worker.config import WorkerConfig
from dsinga.cluster.worker.exchange_options import ExchangeOptions
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.partitioned import ParamPart, PartitionedNet
from dsinga.cutting.phases import check_whole
from dsinga.job import ClusterConf, Compression, Job, Phase, UpdatePlace
from dsinga.job.enums import PRECISIONS
from dsinga.net import NeuralNet
from dsinga.passes.opened_job import OpenedJob
from dsinga.passes.predictor import EvaluationPass
from dsinga.training import Updater, algorithm, create_updater

NEVER = (1 << 31) - 1  # steps

# Takes the parts of params that servers keep; returns the server for each part that should stay whole, by its name.
FindPreferredServers = Callable[[Mapping[str, ParamPart]], Mapping[str, int]]


def configure(
    job: Job, topology: Topology, opened: OpenedJob, nets: Mapping[Phase, PartitionedNet], updater: Updater, *,
    passes: Mapping[Phase, Sequence[EvaluationPass]] | None = None, run: str, served: bool = True,
    find_preferred_servers: FindPreferredServers = lambda parts: {}, overlap: bool = True, timeout: float = 300.0,
    piece_bytes: int | None = None,
) -> WorkerConfig:  # fmt: skip
    """Decide which params each worker has and how servers slice them; return the configuration of the workers.

    ``nets`` are cut for the workers of a group; ``passes`` are the passes over all records, of phases that are
    evaluated over them. Without ``served`` the only worker keeps all params. ``find_preferred_servers`` chooses servers
    for parts that should stay whole. ``piece_bytes`` is the size of the pieces of params between hosts; sums over whole
    slices, as for ``clip_norm`` and compression by kOneBit and kTopK, leave them whole.
    """
    conf, average = job.cluster or ClusterConf(), job.updater.ema_conf
    if average is not None and topology.mean is not None and topology.server_groups > 1:
        # Sites keep a moving average of their outer params, not of each site's steps.
        updater = create_updater(job.updater.replace(ema_conf=average.replace(every=NEVER)))
    parts = shared_parts(nets)
    check_whole(updater, parts, nets[Phase.kTrain].whole, topology.threads is not None)
    has_any_servers = topology.threads is not None and bool(job.updater.clip_global_norm)
    needs_whole = updater.needs_whole_params or outer_needs_whole_params(topology) or has_any_servers
    sizes = {name: math.prod(part.shape) for name, part in parts.items() if served and not part.gathered}
    widths = row_widths(opened.nets[Phase.kTrain], parts, updater)
    preferred = find_preferred_servers({name: parts[name] for name in sizes})
    slices = slice_for_servers(
        sizes, topology.servers, topology.slicing, preferred, widths, needs_whole, topology.block_size,
        topology.block_rows,
    )  # fmt: skip
    if needs_whole or not conf.compression.by_number:
        piece_bytes = None
    if piece_bytes is not None:
        dense = {name for name, part in parts.items() if len(part.users) > 1 and name not in widths}
        slices = cut_into_pieces(slices, piece_bytes // 4, dense)
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
        blocks_at_once=job.blocks_at_once,
        joins_blocks=topology.threads is not None and conf.compression is Compression.kNone,
    )


def outer_needs_whole_params(topology: Topology) -> bool:
    """Whether the optimizer that averages sites needs whole params, not slices."""
    return topology.mean is not None and create_updater(topology.mean.updater).needs_whole_params


def row_widths(net: NeuralNet, parts: Mapping[str, ParamPart], updater: Updater) -> dict[str, int]:
    """Return the row length of each part of a param with gradients that may be sparse rows."""
    params = {name: net.params[part.param] for name, part in parts.items()}
    return {
        name: math.prod(parts[name].shape[1:])
        for name, param in params.items()
        if param.spec.sparse and param.spec.trainable and not updater.of(param.name, param.shape).whole
    }


def shared_parts(nets: Mapping[Phase, PartitionedNet]) -> dict[str, ParamPart]:
    """Return the param parts of all phases, by name, the training net's first, with all their users.

    A worker that only tests with a part joins its exchange, too: otherwise the part would change while it reads.
    """
    users: dict[str, set[int]] = {}
    for net in nets.values():
        for location, local in enumerate(net.locals):
            for name in local.params:
                users.setdefault(name, set()).add(location)
    train = nets[Phase.kTrain].parts
    return {name: part._replace(users=tuple(sorted(users[name] | {*part.users}))) for name, part in train.items()}
