"""Lazy prediction: the feature of a layer as a dask array, computed block by block wherever Dask computes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask
import dask.array as da
import numpy as np

from dsinga.cluster.inference.inference import open_inference
from dsinga.data.conversion import as_records
from dsinga.engine.local_nets import batch_rows
from dsinga.errors import UserError
from dsinga.job import Job, Phase
from dsinga.layers import Context, Records, Rows
from dsinga.net import NeuralNet
from dsinga.ops import Array, Ops, get_ops
from dsinga.registry import nearest
from dsinga.training import forward
from dsinga.worker.param_slices import Arrays


def predict_lazily(
    job: Job, params: Arrays, layer: str, x: Any, phase: Phase = Phase.kTest, roots: Sequence[str] = ()
) -> Any:
    """Return the feature of ``layer`` for the records of the dask array ``x``, as a dask array (len(x), ...).

    The input layer of the job must be bound to ``x``. Each chunk of ``x`` is one task, which computes it in batches
    that take bounded memory. The net and its params are one object in the task graph, which Dask sends to each worker
    once. Raises UserError for what is wrong with the job, ``x`` or the params.
    """
    if not isinstance(x, da.Array):
        raise UserError(f"predict_lazily takes a dask array, not a {type(x).__name__}; use predict")
    net, _ = open_inference(job, params, phase, roots, layer)
    if layer not in (known := [node.layer.name for node in net.nodes]):
        raise UserError(f"the {phase.name} net has no layer {layer!r}{nearest(layer, known)}")
    names = [node.layer.name for node in net.nodes if node.layer.is_input]
    if len(names) > 1:
        raise UserError(f"lazy prediction takes nets with one input layer, but phase {phase.name} has {names}")
    block_forward = BlockForward(net, {name: params[name] for name in net.params}, names[0], layer, job.seed)
    sample = block_forward(np.zeros((1, *x.shape[1:]), x.dtype))
    if len(sample) != 1:
        raise UserError(f"layer {layer!r} does not have one row for each record; use predict_batches")
    shared = dask.delayed(block_forward, name=f"dsinga-net-{uuid.uuid4().hex}", traverse=False)
    return map_chunks(_forward_block, x, shared, sample)


def map_chunks(task: Any, x: Any, shared: Any, sample: np.ndarray, **arguments: Any) -> Any:
    """Return the dask array of ``task(chunk, shared, **arguments)`` for each chunk of records of the dask array ``x``.

    ``task`` gets numpy arrays. ``shared`` is a delayed object, and ``sample`` (1, ...) the result for one record.
    """
    return x.map_blocks(
        task,
        shared,
        **arguments,
        dtype=sample.dtype,
        chunks=(x.chunks[0], *((size,) for size in sample.shape[1:])),
        drop_axis=list(range(1, x.ndim)),
        new_axis=list(range(1, sample.ndim)) or None,
        meta=np.empty((0,) * sample.ndim, sample.dtype),
    )


def _forward_block(block: np.ndarray, block_forward: BlockForward) -> np.ndarray:
    """Task: the feature of the records of one chunk."""
    return block_forward(block)


@dataclass(eq=False)
class BlockForward:
    """Computes the feature of ``layer`` for records; callable in any thread of any process.

    ``input_layer`` is the name of the layer that takes the records. Each thread keeps kernels of its own.
    """

    net: NeuralNet
    params: Mapping[str, np.ndarray]
    input_layer: str
    layer: str
    seed: int
    _by_thread: dict[int, tuple[Ops, dict[str, Array]]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_by_thread": {}}

    def __call__(self, records: np.ndarray) -> np.ndarray:
        """Return the feature (n, ...) of records (n, ...)."""
        size = batch_rows(self.net)
        parts = [self._forward(records[start : start + size]) for start in range(0, len(records), size)]
        return np.concatenate(parts) if parts else self._forward(np.zeros((1, *records.shape[1:]), records.dtype))[:0]

    def _forward(self, records: np.ndarray) -> np.ndarray:
        ops, values = self._kernels()
        ctx = Context(ops, self.net.phase, Rows(0, len(records), len(records)), self.seed)
        batch = {self.input_layer: Records(as_records(np.asarray(records)), None)}
        outputs, _ = forward(self.net, values, batch, ctx, (self.layer,))
        return np.ascontiguousarray(ops.to_numpy(outputs[self.layer].feature))

    def _kernels(self) -> tuple[Ops, Mapping[str, Array]]:
        thread = threading.get_ident()
        if thread not in self._by_thread:
            ops = get_ops().for_worker()
            ops.enter()
            self._by_thread[thread] = ops, {name: ops.asarray(value) for name, value in self.params.items()}
        ops, values = self._by_thread[thread]
        ops.enter()
        ops.set_threads(1)  # Dask runs as many tasks at a time as there are cores
        return ops, values
