"""Cuts the nets of a job for the workers of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.base.errors import UserError
from dsinga.data import RecordNames, check_names
from dsinga.job import ClusterConf, Job, Phase
from dsinga.layers import Rows
from dsinga.net import NeuralNet, choose_cuts, create_net
from dsinga.net.cut import ROWS, LayerCut
from dsinga.net.partitioned import PartitionedNet
from dsinga.net.partitioning import partition
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.checked_job import check_job


def build_partitioned_net(job: Job, phase: Phase, workers: int, roots: Sequence[str] = ()) -> PartitionedNet:
    """Return the net of a phase, cut for the workers of a group; its params are cut as those of the training net.

    Raises UserError for what is wrong with the job or its stores.
    """
    phases = list(dict.fromkeys([Phase.kTrain, phase]))
    checked = check_job(job, roots, phases)
    readers = {name: checked.reader(name, workers) for name in phases}
    nets = {name: create_net(job.neuralnet, name, reader.infos) for name, reader in readers.items()}
    check_same_params(nets)
    return cut_nets(nets, readers, (job.cluster or ClusterConf()).fullc_gather)[phase]


def cut_nets(
    nets: Mapping[Phase, NeuralNet],
    readers: Mapping[Phase, BatchReader],
    gather: bool = False,
    requested_cuts: Mapping[str, int | LayerCut] | None = None,
) -> dict[Phase, PartitionedNet]:
    """Return the nets of all phases, cut for the workers of a group; all have the training net's param parts.

    ``requested_cuts`` maps layers to dimensions or cuts, in place of those of the job. Raises JobError, naming layer
    and field, where a layer cannot be cut as the job wants it.
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
    """Return a net of another phase with these ``rows`` for each worker, and with the training net's param parts."""
    axes = {part.param: part.axis for part in train.parts.values()}
    if requested_cuts is not None:  # the layers that training lacks are cut like their sources
        requested_cuts = dict(requested_cuts)
        for node in net.nodes:
            if node.layer.name not in train.cuts and node.sources:
                source = net.nodes[node.sources[0]].layer.name
                requested_cuts[node.layer.name] = requested_cuts.get(source, train.cuts.get(source, LayerCut(ROWS)))
    return partition(net, len(rows), rows, choose_cuts(net, len(rows), requested_cuts, axes), axes)


def check_same_params(nets: Mapping[Phase, NeuralNet]) -> None:
    """Raise UserError where a net has a param that the training net lacks, or has in another shape."""
    train = nets[Phase.kTrain].params
    for phase, net in nets.items():
        for name, param in net.params.items():
            if name not in train or train[name].shape != param.shape:
                raise UserError(
                    f"param {name!r} of the {phase.name} net has no counterpart of shape {param.shape} in the "
                    "training net; nets of all phases share their params by name"
                )


def check_same_names(readers: Mapping[Phase, BatchReader]) -> None:
    """Raise UserError where codes of a text, labels or columns stand for others than in training.

    Only names that are known in both phases are compared, but for the words of a text.
    """
    for phase, reader in readers.items():
        for name, store in reader.stores.items():
            train = readers[Phase.kTrain].stores.get(name)
            if train is not None and store.vocabulary != train.vocabulary:
                raise UserError(
                    f"{store.location}, which phase {phase.name} reads, has another vocabulary than {train.location}; "
                    "import all parts of a text at once (--held-out), or the later ones with --vocabulary"
                )
            if train is not None:
                check_names(store, RecordNames.of(train), phase.name or "")
