"""Evaluates and predicts in this process: opens records, runs forward passes in threads, writes output layers."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

import dsinga.data
from dsinga.base.arrays import ParamArrays
from dsinga.base.cores import available_cores
from dsinga.job import Job, LayerConf, LayerType, Phase
from dsinga.net import NeuralNet, create_net, without_labels
from dsinga.passes.predictor import BatchResult, Forward, Predictor
from dsinga.passes.processors import forward_processor
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.checked_job import check_job
from dsinga.training import check_params

# Layers that write files need a pass of their own for each.
OUTPUT_LAYERS = (LayerType.kCSVOutput, LayerType.kRecordOutput)


class PredictDataset(Protocol):
    """The type of the hook ``predict_dataset``, which predicts xarray Datasets."""

    def __call__(
        self, job: Job, params: ParamArrays, layer: str, dataset: Any, phase: Phase, roots: Sequence[str], *,
        leads: int | None = None,
    ) -> Any:  # fmt: skip
        """Predict a Dataset's windows: return a lazy Dataset of the targets."""


def open_phase(
    job: Job, params: ParamArrays, phase: Phase, roots: Sequence[str], layer: str | None = None
) -> tuple[NeuralNet, BatchReader]:
    """Open the net and the records of a phase, for an evaluation or prediction with ``params``.

    With a ``layer``, the net may lack layers that this layer does not need.
    """
    reader = check_job(job, roots, [phase]).reader(phase)
    conf = without_labels(job.neuralnet, phase, reader.infos, layer) if layer else job.neuralnet
    net = create_net(conf, phase, reader.infos)
    check_params(net, params)
    return net, reader


def output_layers(net: NeuralNet) -> list[LayerConf]:
    """Return the layers of a net that write their inputs to files."""
    return [node.layer.conf for node in net.nodes if node.layer.conf.type in OUTPUT_LAYERS]


def outputs_to_write(nets: Mapping[Phase, NeuralNet], phase: Phase) -> list[str]:
    """Return the output layers that write their files in a phase of a training run.

    Validation skips those that tests write.
    """
    layers = [layer.name for layer in output_layers(nets[phase])]
    tested = nets.get(Phase.kTest)
    if phase is Phase.kVal and tested is not None:
        written = {layer.name for layer in output_layers(tested)}
        layers = [name for name in layers if name not in written]
    return layers


def write_outputs(
    net: NeuralNet, reader: BatchReader, forward: Forward, batches: int = 0, layers: Sequence[str] | None = None
) -> None:
    """Let output layers write their files, for ``batches`` batches, 0 for all records.

    Each of ``layers`` (default: all) needs its own forward pass.
    """
    for conf in output_layers(net):
        if layers is not None and conf.name not in layers:
            continue
        computed = forward(net, reader, (conf.name,), batches)
        _write_output(conf, (features[conf.name].data for features, _ in computed))


def _write_output(layer: LayerConf, batches: Iterator[np.ndarray]) -> None:
    """Write an output layer's batches (rows, ...): kCSVOutput as CSV, others as a store."""
    conf = layer.store_conf
    assert conf is not None, "checked when the layer was created"
    assert conf.path, "checked when the layer was created"
    if layer.type is LayerType.kCSVOutput:
        dsinga.data.write_csv(conf.path, batches, conf.separator)
    else:
        dsinga.data.write_store(conf.path, ((batch, None) for batch in batches), overwrite=True)


def forward_in_threads(job: Job, params: ParamArrays) -> Forward:
    """Return a function for forward passes in this process: one thread per core, or one on a GPU."""
    return functools.partial(_forward_in_threads, job, params)


def _forward_in_threads(
    job: Job, params: ParamArrays, net: NeuralNet, reader: BatchReader, keep: Sequence[str], batches: int
) -> Iterator[BatchResult]:
    processor = forward_processor(job, net)
    predictor = Predictor(net, params, seed=job.seed)
    records = min(len(reader), batches * reader.batchsize) if batches else len(reader)

    def compute(start: int) -> BatchResult:
        stop = min(start + reader.batchsize, len(reader))
        return predictor.forward(reader.read_range(start, stop), stop - start, keep, processor=processor)

    threads = available_cores() if processor.device is None else 1
    in_flight: collections.deque[Future[BatchResult]] = collections.deque()
    executor = ThreadPoolExecutor(threads, thread_name_prefix="dsinga-forward")
    try:
        for start in range(0, records, reader.batchsize):
            in_flight.append(executor.submit(compute, start))
            if len(in_flight) > 2 * threads:  # enough to keep the threads busy while the caller takes a result
                yield in_flight.popleft().result()
        while in_flight:
            yield in_flight.popleft().result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
