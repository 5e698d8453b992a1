"""Cuts the nets of all phases of a job alike, so that they share the params of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.cutting.partitioned import ROWS, LayerCut, ParamPart, PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.cutting.strategy import choose_cuts
from dsinga.job import Phase
from dsinga.layers import Rows
from dsinga.net import NeuralNet
from dsinga.passes.opened_job import OpenedJob
from dsinga.passes.predictor import EvaluationPass
from dsinga.reading.batch_reader import BatchReader
from dsinga.training import Updater


def cut_nets(
    nets: Mapping[Phase, NeuralNet],
    readers: Mapping[Phase, BatchReader],
    gather: bool = False,
    requested_cuts: Mapping[str, int | LayerCut] | None = None,
) -> dict[Phase, PartitionedNet]:
    """Divide the nets of all phases over the workers of a group, with params cut as in training.

    ``requested_cuts`` replaces the job's dimensions, by layer. Raises JobError, naming layer and field, if a layer
    cannot be cut as the job asks.
    """
    net, rows = nets[Phase.kTrain], readers[Phase.kTrain].parts
    train = partition(net, len(rows), rows, choose_cuts(net, len(rows), requested_cuts), None, gather)
    return {
        phase: train if phase is Phase.kTrain else cut_like(train, net, readers[phase].parts, requested_cuts)
        for phase, net in nets.items()
    }


def cut_like(
    train: PartitionedNet,
    net: NeuralNet,
    rows: Sequence[Rows],
    requested_cuts: Mapping[str, int | LayerCut] | None = None,
) -> PartitionedNet:
    """Divide another phase's net over the workers, with params cut as in training."""
    axes = {part.param: part.axis for part in train.parts.values()}
    if requested_cuts is not None:  # the layers that training lacks are cut like their sources
        requested_cuts = dict(requested_cuts)
        for node in net.nodes:
            if node.layer.name not in train.cuts and node.sources:
                source = net.nodes[node.sources[0]].layer.name
                requested_cuts[node.layer.name] = requested_cuts.get(source, train.cuts.get(source, LayerCut(ROWS)))
    return partition(net, len(rows), rows, choose_cuts(net, len(rows), requested_cuts, axes), axes)


def evaluation_passes(
    opened: OpenedJob, nets: Mapping[Phase, PartitionedNet], requested_cuts: Mapping[str, int | LayerCut] | None = None
) -> dict[Phase, tuple[EvaluationPass, ...]]:
    """Return the passes of each phase that is evaluated over all records; ``nets`` are cut."""
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


def check_whole(updater: Updater, parts: Mapping[str, ParamPart], net: NeuralNet, in_blocks: bool) -> None:
    """Raise JobError if partitioning cuts a param that its updater needs whole; ``clip_norm`` does ``in_blocks``."""
    for part in parts.values():
        param = net.params[part.param]
        if part.axis is None or not param.trainable:
            continue
        of_param = updater.of(param.name, param.shape)
        if of_param.whole:
            kind = updater.conf.user_type or updater.conf.type.name
            what, instead, field = f"{kind} updates whole params", "choose another updater", "type"
        elif in_blocks and of_param.conf.clip_norm:
            what, instead, field = "with blocks, clip_norm is for whole params", "give clip_global_norm", "clip_norm"
        else:
            continue
        raise updater.conf.error(
            f"{what}, but {param.name!r} is cut by features; give its layer partition_dim: 0 (rows) or a location (one "
            f"worker), or {instead}",
            field,
        )
