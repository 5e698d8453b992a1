"""The uncut nets of a job for numpy arrays: those of each phase, for batches of any size, with and without labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsinga.engine.local_cut import KEPT_NETS
from dsinga.engine.local_records import Batch, infos_of_arrays
from dsinga.job import Job, LayerConf, LayerType, Phase, StoreConf
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from dsinga.net.needed_layers import needed_layers
from dsinga.worker.batch_reader import open_batch_reader

FEATURE_BYTES = 1 << 25  # of all layers in one pass of predict and evaluate: enough rows that kernels are fast


class LocalNets:
    """The uncut nets of a job, built when they are asked for; the last KEPT_NETS are kept.

    Args:
        job: the job.
        shapes: records and labels like those that the nets will compute, None for the shapes of the job's stores.
        roots: where relative paths in the job are looked up after the working directory.
    """

    def __init__(self, job: Job, shapes: tuple[Batch, Batch] | None, roots: Sequence[str]):
        self._job, self._shapes, self._roots = job, shapes, roots
        self._infos: dict[Phase, dict[str, RecordInfo]] = {}
        self._nets: dict[Any, NeuralNet] = {}

    def net(
        self,
        phase: Phase,
        unlabelled: tuple[str, ...] | None = None,
        rows: int = 0,
        *,
        gradients: tuple[str, ...] = (),
    ) -> NeuralNet:
        """Return the net of a phase; where names are given, only what these layers need, without labels.

        It computes batches of any size. To cut it, it must be made for ``rows`` rows. With ``gradients`` it has what
        these layers need, without labels, an input layer for the gradient of each, named by :func:`gradient_input`,
        and a loss with this gradient. Raises UserError for what is wrong with the job.
        """
        key = phase, unlabelled, rows, gradients
        if key not in self._nets:
            if len(self._nets) >= KEPT_NETS:
                del self._nets[next(iter(self._nets))]
            conf, infos = self._job.neuralnet, self.infos(phase, gradients)
            if rows:
                infos = {name: replace(info, batchsize=rows) for name, info in infos.items()}
            if unlabelled is not None or gradients:
                conf = needed_layers(conf, phase, gradients or unlabelled or ())
                conf = conf.replace(layer=[*conf.layer, *(layer for name in gradients for layer in _loss_of(name))])
                names = {layer.name for layer in conf.layer}
                infos = {name: info for name, info in infos.items() if name in names}
            self._nets[key] = create_net(conf, phase, infos)
        return self._nets[key]

    def infos(self, phase: Phase, gradients: tuple[str, ...] = ()) -> dict[str, RecordInfo]:
        """Return the description of the records of each input layer of a phase, those for ``gradients`` included."""
        if phase not in self._infos:
            if self._shapes is None:
                self._infos[phase] = dict(open_batch_reader(self._job, phase, 1, self._roots).infos)
            else:
                self._infos[phase] = infos_of_arrays(self._job, phase, *self._shapes, self._roots)
        infos = self._infos[phase]
        if gradients:
            shapes = {name: self.net(phase, gradients).layer(name).shape for name in gradients}
            given = {
                gradient_input(name): RecordInfo(shape[1:], shape[0], has_labels=False)
                for name, shape in shapes.items()
            }
            infos = {**infos, **given}
        return infos


def gradient_input(name: str) -> str:
    """Return the name of the input layer that takes the gradient of the feature of layer ``name``."""
    return f"gradient of {name}"


def _loss_of(name: str) -> list[LayerConf]:
    """Return a loss with a given gradient of layer ``name``, and the input layer that takes it."""
    given = gradient_input(name)
    return [
        LayerConf(name=given, type=LayerType.kRecordInput, store_conf=StoreConf()),
        LayerConf(name=f"loss of {name}", type=LayerType.kMeanLoss, srclayers=[name, given]),
    ]


def last_layers(net: NeuralNet) -> tuple[str, ...]:
    """Return the names of the layers that are no sources of others."""
    sources = {source for node in net.nodes for source in node.sources}
    return tuple(node.layer.name for position, node in enumerate(net.nodes) if position not in sources)


def batch_rows(net: NeuralNet) -> int:
    """Return how many rows to compute at a time, so that the features of all layers take FEATURE_BYTES or less."""
    row_bytes = 4 * sum(math.prod(node.layer.shape) // node.layer.shape[0] for node in net.nodes)
    return max(1, FEATURE_BYTES // max(1, row_bytes))
