"""Evaluates and predicts records with trained params."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsinga.api.argument_types import typed
from dsinga.api.engines import awaitable, find_runner, runner_of
from dsinga.api.jobs_with_data import Result, job_with_data, roots, warn_of_overlaps
from dsinga.api.workspaces import trained_params
from dsinga.base.advice import option
from dsinga.base.arguments import format_bytes
from dsinga.base.arrays import ParamArrays
from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import UserError
from dsinga.job import Job, LayerConf, Phase
from dsinga.job.enums import PHASES, find_phase
from dsinga.layers import Records
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.net import NeuralNet
from dsinga.passes import inference
from dsinga.passes.inference import write_outputs
from dsinga.passes.predictor import Forward
from dsinga.passes.predictor import evaluate as evaluate_batches
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.bind_records import has_no_rows, row_of_zeros
from dsinga.training import add_metrics

if TYPE_CHECKING:  # Dask is imported only when needed
    from distributed import Client


class OpenPhase(NamedTuple):
    """A net with its records and params, ready to evaluate or predict, within a ``with`` block.

    Attributes:
        layer: the predicted layer, None for an evaluation.
        forward: computes forward passes, here or on the cluster.
        compute: returns dask arrays as numpy arrays, computed where the forward passes are.
    """

    job: Job
    phase: Phase
    params: ParamArrays
    roots: Sequence[str]
    layer: str | None
    net: NeuralNet
    reader: BatchReader
    forward: Forward
    compute: Callable[[Sequence[Any]], Sequence[Any]]

    def evaluate(self) -> dict[str, float]:
        """Return the mean loss and metrics over all records; output layers write their files."""
        warn_of_overlaps(self.job, self.phase)
        sums = add_metrics(evaluate_batches([(self.net, self.reader, 0)], self.forward))
        write_outputs(self.net, self.reader, self.forward)
        return metric_values(sums)

    def batches(self) -> Iterator[Records]:
        """Yield the output of the layer and the labels, batch by batch, in order."""
        assert self.layer is not None
        self.net.position(self.layer)
        for features, _ in self.forward(self.net, self.reader, (self.layer,), 0):
            yield features[self.layer]
            del features  # free them while the next ones are computed

    def predict(self) -> np.ndarray:
        """Return the output of the layer for all records: (records, ...). Raises UserError if memory is too small."""
        from psutil import virtual_memory

        assert self.layer is not None
        rows, batch = len(self.reader), self.net.nodes[self.net.position(self.layer)].layer.shape
        nbytes, free = 4 * rows * math.prod(batch[1:]), virtual_memory().available
        if nbytes > free:
            raise UserError(
                f"the outputs of {rows:,} records need {format_bytes(nbytes)}, more than the {format_bytes(free)} of "
                "free memory; for a dask array call model.predict_lazily(x), for a job dsinga.predict_batches, or "
                "predict a part of the records"
            )
        return np.concatenate([batch.data for batch in self.batches()])


def _reads(layer: LayerConf, phase: Phase) -> bool:
    return layer.store_conf is not None and not layer.srclayers and layer.in_phase(phase)


@contextlib.contextmanager
def open_phase(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str | None,
    phase: str,
    client: Any,
    data: Any,
    data_root: str | os.PathLike[str] | None,
    resources: Mapping[str, float] | None,
    hosts: Sequence[str],
) -> Iterator[OpenPhase]:
    """Open net, records and params for an evaluation or prediction; arguments are :func:`dsinga.predict`'s.

    Without a ``layer`` the net is whole.
    """
    job_phase = find_phase(phase)
    job = job_with_data(job, None, job_phase, data_root)
    names = [name for name, each in PHASES.items() if any(_reads(layer, each) for layer in job.neuralnet.layer)]
    if names and phase not in names and data is None:
        raise UserError(f"the job has no records of phase {phase}; give {option('phase', ' or '.join(names))}")
    folders = roots(job, data_root)
    trained = trained_params(job, params, folders)
    job = job_with_data(job, data, job_phase, data_root, trained)
    runner = runner_of(find_runner(client, waits=True), bool(resources or hosts))
    with runner.forward(job, trained, resources, hosts) as passes, cleared_frames("dsinga"):
        net, reader = inference.open_phase(job, trained, job_phase, folders, layer)
        yield OpenPhase(job, job_phase, trained, folders, layer, net, reader, *passes)


@typed()
@awaitable
def evaluate(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None = None,
    phase: str = "test",
    client: Client | None = None,
    *,
    data: Any = None,
    data_root: str | os.PathLike[str] | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> dict[str, float]:
    """Return the mean loss and metrics of ``params`` over all records of ``phase``: "train", "val" or "test".

    ``params`` are arrays by name, a result, or the path of a checkpoint. The default is the newest checkpoint in the
    job's workspace, or else the job's ``checkpoint_path``. ``data``, such as a pair (x, y) of arrays, replace the
    phase's store. ``resources`` and ``hosts`` are as for :func:`dsinga.train`.

    Examples:
        >>> import numpy as np
        >>> import dsinga
        >>> x = np.random.default_rng(0).integers(0, 256, (200, 4), dtype=np.uint8)
        >>> y = (x[:, 0] > 127).astype(int)
        >>> job = dsinga.models.mlp(hidden=[8], inputs=4, classes=2, train_steps=50)
        >>> result = dsinga.train(job, data={"train": (x, y), "test": (x, y)}, progress=False)
        >>> sorted(dsinga.evaluate(job, result.params, data=(x, y)))
        ['accuracy', 'loss']
    """
    with open_phase(job, params, None, phase, client, data, data_root, resources, hosts) as opened:
        return opened.evaluate()


@typed()
@awaitable
def predict(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data: Any = None,
    data_root: str | os.PathLike[str] | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> np.ndarray:
    """Return the output of ``layer`` for every record of ``phase``, in the order of the store: (records, ...).

    Arguments are as for :func:`evaluate`; ``data`` may also be x alone. If records have no labels, layers that need
    some are left out of the net. Use :func:`predict_batches` if the result does not fit into memory.

    Examples:
        >>> import numpy as np
        >>> import dsinga
        >>> x = np.random.default_rng(0).integers(0, 256, (200, 4), dtype=np.uint8)
        >>> y = (x[:, 0] > 127).astype(int)
        >>> job = dsinga.models.mlp(hidden=[8], inputs=4, classes=2, train_steps=50)
        >>> result = dsinga.train(job, data={"train": (x, y), "test": (x, y)}, progress=False)
        >>> dsinga.predict(job, result.params, "ip", data=x).shape
        (200, 2)
    """
    is_empty = has_no_rows(data)
    rows = row_of_zeros(data) if is_empty else data
    with open_phase(job, params, layer, phase, client, rows, data_root, resources, hosts) as opened:
        return opened.predict()[: 0 if is_empty else None]


@typed()
def predict_batches(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data: Any = None,
    data_root: str | os.PathLike[str] | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> Iterator[np.ndarray]:
    """Predict batch by batch, in bounded memory: yield the output of ``layer``, (rows, ...).

    Arguments are as for :func:`predict`.
    """
    with open_phase(job, params, layer, phase, client, data, data_root, resources, hosts) as opened:
        for feature, _ in opened.batches():
            yield feature


@typed()
def predict_with_labels(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data: Any = None,
    data_root: str | os.PathLike[str] | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Predict batch by batch: yield the output of ``layer`` and the labels, (rows, ...), None without labels.

    Arguments are as for :func:`predict`. :func:`dsinga.data.write_store` accepts such pairs.
    """
    with open_phase(job, params, layer, phase, client, data, data_root, resources, hosts) as opened:
        yield from opened.batches()
