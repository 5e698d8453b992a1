"""What a worker needs of memory, before a run: by the shapes of its net, and by what back-propagation keeps and when.

An iteration is gone through once, without numbers: each array that a layer makes is taken, and let go of when the last
who needs it has run. Arrays come from a pool that keeps one for each size and taker (``dsinga.ops.buffers``), so what
counts of a size is how many are wanted at once; what is too large for the pool counts as long as it is there.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from dsinga.layers.batchnorm import RectifiedBatchNorm
from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.layers.connection import Slice, Split
from dsinga.layers.dropout import Dropout
from dsinga.layers.innerproduct import InnerProduct
from dsinga.layers.layernorm import LayerNorm
from dsinga.layers.lrn import LRN
from dsinga.layers.pooling import Pooling
from dsinga.layers.recurrent import Recurrent
from dsinga.net import NeuralNet, Stage
from dsinga.ops.buffers import LARGEST
from dsinga.ops.numpy_cells import CELLS
from dsinga.ops.numpy_recurrent import GAP

FLOAT_BYTES = 4
# Interpreter, numpy, zarr, Dask and its threads, compiled kernels: the same for nets of all sizes, within 10 MB (Python
# 3.11 on Linux x86-64).
FIXED = 120 << 20
BATCHES_AHEAD = 5  # three wait, one is read, one is computed with
CACHED = 128 << 20  # of decoded chunks, see dsinga.data.chunk_cache


class Memory(NamedTuple):
    """Bytes that a worker needs, by what they are for.

    ``params`` are values: the worker's own and those that its server keeps; ``state`` is the updater's. ``passing`` are
    those of the ``gradients`` that are too large for the pool, and gone after the update. ``features`` are those that
    backward needs, ``workspaces`` what else an iteration makes: what layers save for backward, and gradients of
    features. ``handed_out`` is the copy of the params that a checkpoint, and the end of a run, makes.
    """

    params: int = 0
    gradients: int = 0
    passing: int = 0
    state: int = 0
    features: int = 0
    workspaces: int = 0
    records: int = 0
    handed_out: int = 0
    fixed: int = FIXED

    @property
    def peak(self) -> int:
        """The most at once: large gradients have been let go of when params are handed out."""
        iteration = self.gradients + self.features + self.workspaces + self.records
        return self.fixed + self.params + self.state + iteration + max(0, self.handed_out - self.passing)

    def figures(self) -> dict[str, int]:
        """Return the parts and their peak under plain names, for JSON."""
        return {**self._asdict(), "peak": self.peak}


def worker_memory(net: NeuralNet, slots: int, workers: int = 1, record_bytes: int = 0, store_bytes: int = 0) -> Memory:
    """Return what one of ``workers`` needs to train its ``net``, in a process of its own.

    Args:
        net: the net of this worker.
        slots: arrays that the updater keeps for each param.
        workers: of the group. Above 1 a worker has values beside those that its server keeps: a share of all.
        record_bytes: of the worker's part of a batch, as stored; 0 where nothing is read.
        store_bytes: of all records of the store, as far as they are cached.
    """
    params = FLOAT_BYTES * sum(param.size for param in net.params.values())
    own = params if workers > 1 else 0
    served = params // workers
    gradients = [FLOAT_BYTES * p.size for p in net.params.values() if p.trainable and not p.spec.sparse]
    features, most = _walk(net.fused)
    return Memory(
        params=own + served,
        gradients=sum(gradients),
        passing=sum(size for size in gradients if size > LARGEST),
        state=slots * served,
        features=features,
        workspaces=most - features,
        records=BATCHES_AHEAD * record_bytes + min(CACHED, store_bytes),
        handed_out=params,
    )


class _Arrays:
    """Arrays that are taken and let go of; ``most`` are the bytes that the pool comes to have, and the largest ones."""

    def __init__(self) -> None:
        self._now: Counter[int] = Counter()
        self._most: Counter[int] = Counter()
        self._large = self._most_large = 0

    def take(self, sizes: list[int]) -> None:
        for size in sizes:
            self._now[size] += 1
            self._most[size] = max(self._most[size], self._now[size])
            self._large += size if size > LARGEST else 0
        self._most_large = max(self._most_large, self._large)

    def drop(self, sizes: list[int]) -> None:
        for size in sizes:
            self._now[size] -= 1
            self._large -= size if size > LARGEST else 0

    @property
    def most(self) -> int:
        return self._most_large + sum(size * count for size, count in self._most.items() if size <= LARGEST)


def _walk(net: NeuralNet) -> tuple[int, int]:
    """Return the bytes of the features that are kept for backward, and all that an iteration comes to have."""
    stages, arrays = net.stages, _Arrays()
    made = {stage.position: feature_sizes(stage) for stage in stages}
    saved = {stage.position: saved_sizes(stage) if stage.backward else [] for stage in stages}
    freed = _freed(net)
    for stage in stages:
        arrays.take(made[stage.position])
        arrays.take(saved[stage.position])
        for node in stage.releases:
            if node not in freed:
                arrays.drop(made[node])
    gradients: dict[int, list[int]] = {}
    for stage in reversed(stages):
        here = stage.position
        scratch: list[int] = []
        if stage.backward:
            scratch = backward_sizes(stage)
            arrays.take(scratch)
            for _, edge in stage.feeds:
                if edge.node not in gradients:
                    gradients[edge.node] = _gradient_sizes(stages[edge.node], stage)
                    arrays.take(gradients[edge.node])
        arrays.drop([*scratch, *saved[here], *gradients.pop(here, [])])
        for node, last in freed.items():
            if last == here:
                arrays.drop(made[node])
    return sum(sum(made[node]) for node in freed), arrays.most


def _freed(net: NeuralNet) -> dict[int, int]:
    """Return, of each feature that backward needs, the layer whose backward pass is the last to do so."""
    last: dict[int, int] = {}
    for stage in reversed(net.stages):
        if stage.backward:
            for node in (stage.position, *(edge.node for edge in stage.edges)):
                last[node] = stage.position
    return last


def _gradient_sizes(source: Stage, stage: Stage) -> list[int]:
    """Return the sizes of the gradient that a stage makes for a source; those of parts are handed on as they are."""
    return [] if isinstance(stage.layer, Split) else feature_sizes(source)


def own_rows(stage: Stage) -> int:
    """Return how many rows of its batch a worker computes at a node."""
    return stage.rows.stop - stage.rows.start if stage.rows else stage.layer.shape[0]


def feature_sizes(stage: Stage) -> list[int]:
    """Return the sizes in bytes of the arrays that a layer makes for its feature; parts are views."""
    layer = stage.layer
    if isinstance(layer, (Split, Slice, BridgeSrc)) or layer.is_output:
        return []
    rows = layer.shape[0] if isinstance(layer, BridgeDst) else own_rows(stage)
    return [FLOAT_BYTES * rows * math.prod(layer.shape[1:])]


def saved_sizes(stage: Stage) -> list[int]:
    """Return the sizes in bytes of what a layer saves for its backward pass, beside its feature."""
    layer, source = stage.layer, _source_bytes(stage)
    match layer:
        case LRN():
            return [source, source]  # the norm, and its power
        case Pooling(takes_maximum=True):
            return [feature_sizes(stage)[0] // FLOAT_BYTES]  # a byte says which of the window
        case Dropout():
            return [source]
        case InnerProduct() if len(layer.source_shapes[0]) > 2:
            return [source]  # an image, its rows laid flat
        case LayerNorm():
            return [source]
        case Recurrent():
            cell, one = CELLS[layer.cell], _by_step(layer, stage)
            return layer.directions * [cell.width * one, cell.parts * one, source]
    return []


def backward_sizes(stage: Stage) -> list[int]:
    """Return the sizes in bytes of what a layer needs during its backward pass alone."""
    layer = stage.layer
    if isinstance(layer, Recurrent):
        one = _by_step(layer, stage)
        width = CELLS[layer.cell].width
        gap = one // layer.size * GAP  # between rows of the gradients of gates
        turned = FLOAT_BYTES * width * layer.size**2  # the gradient of a weight, as the product makes it
        return [width * one + gap, one, one, turned]  # the first those of gates, then of states, the states before
    if isinstance(layer, RectifiedBatchNorm):
        return feature_sizes(stage)  # the gradient where the feature is above 0
    return []


def _by_step(layer: Recurrent, stage: Stage) -> int:
    """Return the bytes of an array of the width of the state for each step of each row."""
    return FLOAT_BYTES * own_rows(stage) * math.prod(layer.shape[1:-1]) * layer.size


def _source_bytes(stage: Stage) -> int:
    shapes = stage.layer.source_shapes
    return FLOAT_BYTES * own_rows(stage) * math.prod(shapes[0][1:]) if shapes else 0
