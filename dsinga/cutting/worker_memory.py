"""Predicts the memory that a worker needs, from the shapes of its net and what back-propagation keeps.

One iteration is simulated: each array of a layer is allocated, and freed after its last use, to its pool
(``dsinga.base.buffers``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from dsinga.base.buffers import LARGEST
from dsinga.base.registry import implements, register
from dsinga.job import Job, Precision
from dsinga.job.enums import PRECISIONS
from dsinga.layers.connection import Split
from dsinga.layers.dense.activation import ElementwiseFunction
from dsinga.layers.dense.innerproduct import InnerProduct
from dsinga.layers.images.convolution import Convolution
from dsinga.layers.interface.declarations import Bfloat16, Keeps
from dsinga.layers.interface.layer import FLOAT_BYTES
from dsinga.layers.sequences.timedistributed import TimeDistributed
from dsinga.net import NeuralNet, Stage
from dsinga.net.layer_cost import feature_sizes, rows_of
from dsinga.ops import cpu_ops
from dsinga.ops.block_sums import most_waiting
from dsinga.passes.device_backend import DeviceMemory
from dsinga.reading.batch_reader import BatchReader
from dsinga.training import create_updater

FIXED = 120 << 20  # interpreter, numpy, zarr, Dask and compiled kernels; about the same for all nets
BATCHES = 5  # three are read ahead, one is being read, one is being computed
DENSE = InnerProduct, TimeDistributed  # their feature is float32, unless it is rounded


class Memory(NamedTuple):
    """Bytes of memory that a worker needs, by purpose.

    Attributes:
        params: values: the worker's own copy, and its server's.
        passing: ``gradients`` that are too large for the pool, and freed after the update.
        workspaces: other arrays of an iteration: what layers save for backward, and gradients of features.
        records: batches read ahead, and decoded chunks.
        handed_out: the copy of the params that a checkpoint, or the end of a run, makes.
        fixed: the interpreter and the libraries.
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
        """The most bytes at any time: large gradients are freed before params are handed out."""
        iteration = self.gradients + self.features + self.workspaces + self.records
        return self.fixed + self.params + self.state + iteration + max(0, self.handed_out - self.passing)

    def figures(self) -> dict[str, int]:
        """Return the bytes by purpose and their peak, for JSON."""
        return {**self._asdict(), "peak": self.peak}


def worker_memory(
    net: NeuralNet,
    slots: int,
    workers: int = 1,
    record_bytes: int = 0,
    kept_bytes: int = 0,
    bf16: bool = False,
    micro_batches: int = 1,
) -> Memory:
    """Predict the memory that one of ``workers`` workers needs to train ``net``, in its own process.

    ``slots`` is the number of arrays that the updater keeps for each param, ``record_bytes`` the worker's part of a
    batch as stored, ``kept_bytes`` the most bytes of decoded records. ``net`` and ``record_bytes`` are of one
    micro-batch.
    """
    params = FLOAT_BYTES * sum(param.size for param in net.params.values())
    copied = params if workers > 1 else 0
    served = params // workers
    gradients = [FLOAT_BYTES * p.size for p in net.params.values() if p.trainable and not p.spec.sparse]
    features, most = _iteration_memory(net.fused, bf16)
    large = [size for size in gradients if size > LARGEST]
    added = 0  # gradients of a micro-batch, each added to the previous ones' sum
    if micro_batches > 1:
        added = sum({size for size in gradients if size <= LARGEST}) + max(large, default=0)
    return Memory(
        params=copied + served,
        gradients=sum(gradients) + added,
        passing=sum(large),
        state=slots * served,
        features=features,
        workspaces=most - features,
        records=BATCHES * record_bytes + kept_bytes,
        handed_out=params,
    )


def slots_and_bf16(job: Job) -> tuple[int, bool]:
    """Return how many arrays a job's updater keeps for each param, and whether features are bfloat16 here."""
    bf16 = job.precision is Precision.kBF16 and cpu_ops(PRECISIONS[job.precision]).has_bf16_features
    return len(create_updater(job.updater).state_slots), bf16


def training_memory(job: Job, locals_: Sequence[NeuralNet], reader: BatchReader) -> list[Memory]:
    """Predict the memory of each worker of a group from their training nets.

    A single worker computes the job's ``blocks`` in turns, and adds up their gradients.
    """
    slots, bf16 = slots_and_bf16(job)
    in_turns = job.blocks if len(locals_) == 1 else 0
    sums = in_turns or job.passes
    memories = [worker_memory(local, slots, len(locals_), *reader.sizes(local), bf16, sums) for local in locals_]
    if not in_turns:
        return memories
    (whole,) = memories
    return [
        whole._replace(
            features=whole.features * job.blocks_at_once // in_turns,
            workspaces=whole.workspaces * job.blocks_at_once // in_turns,
            gradients=whole.gradients * max(1, most_waiting(in_turns)),
        )
    ]


def team_memory(blocks: Sequence[Memory], at_once: int) -> Memory:
    """Predict the memory of a thread that computes several blocks, at most ``at_once`` of them at the same time."""
    most, count = max(blocks, key=lambda block: block.peak), min(len(blocks), at_once)
    if len(blocks) == 1:
        return most
    return most._replace(
        params=most.handed_out + len(blocks) * (most.params - most.handed_out),  # the copy, and what servers keep
        state=most.state * len(blocks),
        gradients=most.gradients * most_waiting(len(blocks)),
        features=most.features * count,
        workspaces=most.workspaces * count,
        records=most.records * len(blocks),
    )


@register("hook", "device_memory")
@implements(DeviceMemory)
def device_memory(net: NeuralNet, slots: int, micro_batches: int) -> int:
    """Predict the bytes on its device that a worker needs to train ``net`` with ``slots`` updater arrays."""
    memory = worker_memory(net, slots, micro_batches=micro_batches)
    return memory.params + memory.gradients + memory.state + memory.features + memory.workspaces


def snapshot_memory(net: NeuralNet, slots: int) -> int:
    """Predict the most bytes of a net's snapshots in the driver's process.

    There are three: the newest snapshot, the arriving slices of the next one, and the arrays that they are joined to.
    """
    return 3 * FLOAT_BYTES * sum((1 + slots * param.trainable) * param.size for param in net.params.values())


class _SimulatedPool:
    """Counts the bytes of a buffer pool; ``most`` is their peak."""

    def __init__(self) -> None:
        self._in_use = self.most = 0

    def allocate(self, sizes: list[int]) -> None:
        self._in_use += sum(sizes)
        self.most = max(self.most, self._in_use)

    def free(self, sizes: list[int]) -> None:
        self._in_use -= sum(sizes)


def _bf16_positions(net: NeuralNet) -> set[int]:
    """Find the layers with bfloat16 features in a kBF16 job: convolutions, products that round, and their users."""
    narrow: set[int] = set()
    for stage in net.stages:
        layer = stage.layer
        gives = isinstance(layer, Convolution) or layer.rounds_feature
        passes_on = bool(stage.edges) and stage.edges[0].node in narrow
        if layer.bf16 is Bfloat16.kFeatures and (gives or (passes_on and not isinstance(layer, DENSE))):
            narrow.add(stage.position)
    return narrow


def _iteration_memory(net: NeuralNet, bf16: bool) -> tuple[int, int]:
    """Simulate an iteration; return the bytes of features kept for backward, and the peak of all arrays."""
    stages, pool = net.stages, _SimulatedPool()
    narrow = _bf16_positions(net) if bf16 else set()

    def sizes(stage: Stage, of_float32: list[int]) -> list[int]:
        """Return the sizes of a layer's arrays, halved if it computes in bfloat16."""
        return [size // 2 for size in of_float32] if stage.position in narrow else of_float32

    features = {stage.position: sizes(stage, feature_sizes(stage)) for stage in stages}
    saved = {stage.position: stage.layer.saved_sizes(rows_of(stage)) if stage.backward else [] for stage in stages}
    for stage in stages if narrow else ():
        if isinstance(stage.layer, ElementwiseFunction):
            saved[stage.position] = sizes(stage, saved[stage.position])
        if stage.backward and stage.layer.bf16 is not Bfloat16.kFeatures:  # it keeps copies in float32
            read = (edge.node for edge in stage.edges[: stage.layer.keeps.sources] if edge.node in narrow)
            saved[stage.position] += [2 * size for node in read for size in features[node]]
    last_uses = _last_backward_uses(net)
    kept = [node for node in last_uses if not stages[node].recompute]
    freed = {stage.position for stage in stages if stage.recompute}
    for stage in stages:
        pool.allocate(features[stage.position])
        pool.allocate(saved[stage.position])
        for node in stage.releases:
            if node not in last_uses or node in freed:
                pool.free(features[node])
        if stage.position in freed:
            pool.free(saved[stage.position])
    gradients: dict[int, list[int]] = {}
    for stage in reversed(stages):
        position = stage.position
        scratch: list[int] = []
        for node in _recomputed_for(stage, stages, freed) if stage.backward else ():
            pool.allocate([*features[node], *saved[node]])
            freed.discard(node)
        if stage.backward:
            scratch = sizes(stage, stage.layer.backward_sizes(rows_of(stage)))
            pool.allocate(scratch)
            for _, edge in stage.feeds:
                if edge.node not in gradients:
                    gradients[edge.node] = [] if isinstance(stage.layer, Split) else features[edge.node]
                    pool.allocate(gradients[edge.node])
        pool.free([*scratch, *saved[position], *gradients.pop(position, [])])
        for node, last_use in last_uses.items():
            if last_use == position:
                pool.free(features[node])
    return sum(sum(features[node]) for node in kept), pool.most


def _recomputed_for(stage: Stage, stages: Sequence[Stage], freed: Collection[int]) -> list[int]:
    found, pending = set[int](), [stage.position, *(edge.node for edge in stage.edges)]
    while pending:
        position = pending.pop()
        if position in freed and position not in found:
            found.add(position)
            pending += [edge.node for edge in stages[position].edges]
    return sorted(found)


def _last_backward_uses(net: NeuralNet) -> dict[int, int]:
    """Return for each layer the last layer, backwards, with a gradient that reads its feature."""
    last_uses: dict[int, int] = {}
    for stage in reversed(net.stages):
        if stage.backward:
            keeps = Keeps() if stage.recompute else stage.layer.keeps
            nodes = [edge.node for edge in stage.edges[: keeps.sources]]
            for node in nodes + [stage.position] * keeps.feature:
                while net.stages[node].layer.part_shapes:  # which has views of its source
                    node = net.stages[node].edges[0].node
                last_uses[node] = stage.position
    return last_uses
