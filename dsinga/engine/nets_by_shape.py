"""Builds and keeps the nets of a job that are needed for numpy arrays of some shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from dsinga.base.registry import lookup
from dsinga.job import ClusterConf, Job, LayerConf, LayerType, Phase, StoreConf
from dsinga.job.enums import PRECISIONS
from dsinga.layers import Context, RecordInfo, Records
from dsinga.net import NeuralNet, create_net, input_layers
from dsinga.net.needed_layers import needed_layers
from dsinga.passes.opened_job import OpenedJob
from dsinga.passes.predictor import Predictor
from dsinga.reading.bind_records import Batch, infos_of_arrays
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import Algorithm, Metrics, Push, Updater

KEPT_NETS = 8  # a net is made anew for each phase and shape of its inputs


class CutNets(Protocol):
    """The type of the engine ``cut``, which computes nets that are cut for several workers."""

    def open(self, opened: OpenedJob, updater: Updater) -> None:
        """Cut all nets of a job. Raises JobError if that is not possible."""

    def predictor(self, net: NeuralNet, seed: int) -> Predictor:
        """Return a predictor of a net that is cut for the workers."""

    def backward(
        self, algorithm: Algorithm, net: NeuralNet, values: Mapping[str, np.ndarray], records: Mapping[str, Records],
        ctx: Context, push: Push, *, memory: Mapping[int, Sequence[np.ndarray]] = MappingProxyType({}),
    ) -> Metrics:  # fmt: skip
        """Push the gradients of whole params, and return the metrics, for the rows ``ctx.rows``."""


def open_cut_nets(
    job: Job, workers: int, count_threads: Callable[[NeuralNet], int], cores: int | None = None
) -> CutNets:
    """Return what computes a job's nets cut for ``workers`` workers in this process, on at most ``cores`` cores."""
    gather = (job.cluster or ClusterConf()).fullc_gather
    stores = (layer.store_conf for layer in input_layers(job.neuralnet, Phase.kTrain))
    sizes = next((store.batchsize for store in stores if store and len(store.batchsize) == workers), ())
    nets: CutNets = lookup("engine", "cut")(
        workers, count_threads, gather, PRECISIONS[job.precision], cores, bool(job.blocks),
        job.blocks_at_once or None, sizes,
    )  # fmt: skip
    return nets


class NetsByShape:
    """A job's nets, each built when it is needed; the last KEPT_NETS are kept.

    Args:
        shapes: example records and labels for the nets, None for the shapes of the job's stores.
        create_predictor: returns the predictor of a net, cut if the second argument is true.
    """

    def __init__(
        self,
        checked: CheckedJob,
        shapes: tuple[Batch, Batch] | None,
        create_predictor: Callable[[NeuralNet, bool], Predictor],
    ):
        self._job, self._checked, self._shapes = checked.job, checked, shapes
        self._create_predictor = create_predictor
        self._infos: dict[Phase, dict[str, RecordInfo]] = {}
        self._predictors: dict[Any, Predictor] = {}

    def predictor(
        self, phase: Phase, unlabelled: tuple[str, ...] | None = None, rows: int = 0, *, gradients: tuple[str, ...] = ()
    ) -> Predictor:
        """Return the predictor of a phase's net, or only of the layers ``unlabelled`` and their sources.

        To be cut, it must be built for ``rows`` rows. With ``gradients`` it has these layers and their sources. Each of
        them gets an input layer for its gradient (:func:`gradient_input`) and a loss with this gradient.
        """
        key = phase, unlabelled, rows, gradients
        if key not in self._predictors:
            if len(self._predictors) >= KEPT_NETS:
                del self._predictors[next(iter(self._predictors))]
            conf, infos = self._job.neuralnet, self.infos(phase, gradients)
            if rows:
                infos = {name: replace(info, batchsize=rows) for name, info in infos.items()}
            if unlabelled is not None or gradients:
                conf = needed_layers(conf, phase, gradients or unlabelled or ())
                conf = conf.replace(layer=[*conf.layer, *(layer for name in gradients for layer in _loss_of(name))])
                names = {layer.name for layer in conf.layer}
                infos = {name: info for name, info in infos.items() if name in names}
            self._predictors[key] = self._create_predictor(create_net(conf, phase, infos), rows > 0)
        return self._predictors[key]

    def infos(self, phase: Phase, gradients: tuple[str, ...] = ()) -> dict[str, RecordInfo]:
        """Describe the arrays that each input layer of a phase reads, including ``gradients``."""
        if phase not in self._infos:
            if self._shapes is None:
                self._infos[phase] = dict(self._checked.reader(phase).infos)
            else:
                infos = infos_of_arrays(self._job, phase, *self._shapes, self._checked.roots)
                count = self._job.passes if phase is Phase.kTrain else 1
                self._infos[phase] = {name: replace(info, micro_batches=count) for name, info in infos.items()}
        infos = self._infos[phase]
        if gradients:
            shapes = {name: self.predictor(phase, gradients).net.layer(name).shape for name in gradients}
            given = {
                gradient_input(name): RecordInfo(shape[1:], shape[0], has_labels=False)
                for name, shape in shapes.items()
            }
            infos = {**infos, **given}
        return infos


def gradient_input(name: str) -> str:
    """Return the name of the input layer that gets a caller's gradient for a layer."""
    return f"gradient of {name}"


def _loss_of(name: str) -> list[LayerConf]:
    given = gradient_input(name)
    return [
        LayerConf(name=given, type=LayerType.kRecordInput, store_conf=StoreConf()),
        LayerConf(name=f"loss of {name}", type=LayerType.kMeanLoss, srclayers=[name, given]),
    ]


def last_layers(net: NeuralNet) -> tuple[str, ...]:
    """Return the names of the layers that no layer reads."""
    sources = {source for node in net.nodes for source in node.sources}
    return tuple(node.layer.name for position, node in enumerate(net.nodes) if position not in sources)
