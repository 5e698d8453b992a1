"""Makes training fit in a given memory, by micro-batches and by recomputing activations.

The cheapest choice that fits wins. By a rule of thumb, a micro-batch costs the time of IDLE_ROWS rows, and
recomputation a forward pass of all stretches but the uppermost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dsinga.addons.planner.cost_model import PricedCuts
from dsinga.base.errors import UserError
from dsinga.base.registry import implements, register
from dsinga.cutting.partitioned import LayerCut
from dsinga.cutting.partitioning import partition
from dsinga.cutting.worker_memory import FIXED, Memory, slots_and_bf16, worker_memory
from dsinga.data import kept_bytes
from dsinga.job import AlgType, Job, NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.layers.dense.batchnorm import BatchNorm
from dsinga.net import NeuralNet, create_net
from dsinga.net.build import narrow_places
from dsinga.net.layer_cost import as_size
from dsinga.reading.batch_reader import BatchReader, batch_bytes
from dsinga.reading.checked_job import CheckedJob, FitToMemory

_log = logging.getLogger(__name__)

IDLE_ROWS = 6
USABLE = 0.92  # the share of a memory that predictions may reach: measured peaks are up to 8% above them
STRETCHES = (0, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of stretches that are tried


class MemoryFit(NamedTuple):
    """The micro-batches and recomputation with which training fits in a memory.

    ``recompute`` is the number of stretches of layers, 0 for no recomputation; ``memory`` is the neediest worker's.
    """

    micro_batches: int
    recompute: int
    memory: Memory

    def price(self, rows: int) -> float:
        """Return the iteration time with ``rows`` rows a worker, relative to whole batches without recomputation."""
        stretches = max(self.recompute, 1)
        return (1 + IDLE_ROWS * self.micro_batches / rows) / (1 + IDLE_ROWS / rows) * (4 - 1 / stretches) / 3

    def text(self) -> str:
        """Write the choice as fields of a job; "" if it changes nothing."""
        fields = {"micro_batches": self.micro_batches, "neuralnet.recompute": self.recompute}
        return ", ".join(f"{name}: {value}" for name, value in fields.items() if value > 1)

    def applied(self, job: Job) -> Job:
        """Apply the choice to a job."""
        return job.replace(micro_batches=self.micro_batches, neuralnet=job.neuralnet.replace(recompute=self.recompute))


def whole_job(job: Job) -> Job:
    """Remove micro-batches and recomputation from a job, for the cost model."""
    return job.replace(micro_batches=1, neuralnet=job.neuralnet.replace(recompute=0))


def price_of(job: Job, batch: int, workers: int) -> float:
    """Return a job's iteration time relative to :func:`whole_job`, for ``batch`` rows."""
    return MemoryFit(job.micro_batches, job.neuralnet.recompute, Memory()).price(max(1, batch // workers))


@dataclass(frozen=True)
class NetVariants:
    """Computes the memory of a job's training net for each choice of micro-batches and stretches.

    A process keeps at most ``kept_bytes`` of decoded records, the updater ``slots`` arrays for each param.
    """

    conf: NetConf
    infos: Mapping[str, RecordInfo]
    record_bytes: Mapping[str, tuple[int, int]]
    kept_bytes: int
    slots: int
    bf16: bool = False

    @classmethod
    def of(cls, job: Job, reader: BatchReader) -> NetVariants:
        """Create the variants of a job with the records of ``reader``."""
        sizes = {name: (store.record_bytes, store.label_bytes) for name, store in reader.stores.items()}
        kept = kept_bytes((store, 1.0) for store in reader.stores.values())
        return cls(job.neuralnet, dict(reader.infos), sizes, kept, *slots_and_bf16(job))

    @property
    def batchsize(self) -> int:
        """The rows of a batch."""
        info = next(iter(self.infos.values()))
        return info.batchsize * info.micro_batches

    def net(self, micro_batches: int, recompute: int) -> NeuralNet:
        """Create the net for one of ``micro_batches`` micro-batches."""
        size = self.batchsize // micro_batches
        infos = {name: replace(info, batchsize=size, micro_batches=micro_batches) for name, info in self.infos.items()}
        return create_net(self.conf.replace(recompute=recompute), Phase.kTrain, infos)

    def memory(
        self, micro_batches: int, recompute: int, workers: int = 1, cuts: Mapping[str, LayerCut] | None = None
    ) -> Memory:
        """Compute the largest memory among ``workers`` workers with the net cut by ``cuts``."""
        net = self.net(micro_batches, recompute)
        locals_ = [net] if workers == 1 else partition(net, workers, cuts=cuts).locals
        memories = (
            worker_memory(
                local, self.slots, workers, self._batch_bytes(local), self.kept_bytes, self.bf16, micro_batches
            )
            for local in locals_
        )
        return max(memories, key=lambda memory: memory.peak)

    def _batch_bytes(self, net: NeuralNet) -> int:
        inputs = [stage for stage in net.stages if stage.layer.name in self.record_bytes]
        return sum(batch_bytes(stage, *self.record_bytes[stage.layer.name]) for stage in inputs)

    def choices(self, workers: int) -> list[tuple[int, int]]:
        """List the allowed numbers of micro-batches and stretches, at least the job's own."""
        own_count = next(iter(self.infos.values())).micro_batches
        net = self.net(own_count, self.conf.recompute)
        stretches: Iterable[int] = (self.conf.recompute,)
        if not any(stage.recompute for stage in net.stages):
            places = len(narrow_places(net.nodes))
            stretches = [count for count in STRETCHES if count <= places]
        counts = [own_count]
        if not any(node.layer.cut.whole_because or _has_statistics(node.layer) for node in net.nodes):
            most = max(self.batchsize // workers, own_count)  # fewer rows than workers where points are cut
            counts = [count for count in range(own_count, most + 1) if self.batchsize % count == 0]
        return [(count, stretch) for count in counts for stretch in stretches]


def _has_statistics(layer: Any) -> bool:
    return isinstance(layer, BatchNorm) and not layer.use_global_stats


def fit(
    variants: NetVariants, limit: int, workers: int = 1, cuts: Mapping[str, LayerCut] | None = None
) -> tuple[MemoryFit, bool]:
    """Find the cheapest way to train in ``limit`` bytes a worker, or the one that needs least; return whether it fits.

    A fitting peak is at most USABLE of the limit.
    """
    usable = USABLE * limit
    rows = max(1, variants.batchsize // workers)

    def of(choice: tuple[int, int]) -> MemoryFit:
        micro_batches, recompute = choice
        return MemoryFit(micro_batches, recompute, variants.memory(micro_batches, recompute, workers, cuts))

    choices = variants.choices(workers)
    choices.sort(key=lambda choice: MemoryFit(choice[0], choice[1], Memory()).price(rows))
    if (first := of(choices[0])).memory.peak <= usable:
        return first, True
    counts = [count for count, _ in choices]
    ends = min(counts), max(counts)  # the first micro-batch more needs sums of gradients, each further one less memory
    least = min((of(choice) for choice in choices if choice[0] in ends), key=lambda memory_fit: memory_fit.memory.peak)
    if least.memory.peak > usable:
        return least, False
    for choice in choices:
        memory_fit = of(choice)
        if memory_fit.memory.peak <= usable:
            return memory_fit, True
    return least, True


def cheapest_that_fits(
    choices: Mapping[str, PricedCuts], variants: NetVariants, limit: int, wanted: str = "auto"
) -> tuple[PricedCuts, MemoryFit]:
    """Return the cuts ``wanted``, or else the cheapest that fit in memory, and how they fit."""
    by_price = sorted(choices, key=lambda name: (name != wanted, choices[name].prediction.seconds))
    tried: list[tuple[PricedCuts, MemoryFit]] = []
    for name in by_price:
        choice = choices[name]
        memory_fit, fits = fit(variants, limit, choice.workers, choice.cuts)
        if fits:
            return choice, memory_fit
        tried.append((choice, memory_fit))
    choice, least = min(tried, key=lambda pair: pair[1].memory.peak)
    raise cannot_fit(least, limit, choice.workers)


@register("hook", "fit_to_memory")
@implements(FitToMemory)
def fit_to_memory(checked: CheckedJob, limit: int) -> CheckedJob:
    """Choose micro-batches and recomputation with which a job with ``partition: auto`` fits in memory.

    Jobs of kCD or for GPUs are unchanged.
    """
    job = checked.job
    if job.train_one_batch.alg is AlgType.kCD or job.gpu:
        return checked
    memory_fit = fit_or_refuse(NetVariants.of(job, checked.reader(Phase.kTrain)), limit)
    return checked.with_job(with_fit(job, memory_fit, limit))


def with_fit(job: Job, memory_fit: MemoryFit, limit: int) -> Job:
    """Apply ``memory_fit`` to a job, and log changes."""
    fitted = memory_fit.applied(job)
    if fitted != job:
        _log.info("partition: auto trains with %s, to fit into %s of memory", memory_fit.text(), as_size(limit))
    return fitted


def fit_or_refuse(variants: NetVariants, limit: int) -> MemoryFit:
    """Fit the whole net into one worker's memory; raise UserError if it does not fit."""
    memory_fit, fits = fit(variants, limit)
    if not fits:
        raise cannot_fit(memory_fit, limit, 1)
    return memory_fit


def cannot_fit(memory_fit: MemoryFit, limit: int, workers: int) -> UserError:
    """Create the error for a net that exceeds ``limit`` bytes even with ``memory_fit``."""
    parts = {name: size for name, size in memory_fit.memory._asdict().items() if name not in ("passing", "fixed")}
    largest = max(parts, key=parts.__getitem__)
    most = f"{largest.replace('_', ' ')}, {as_size(parts[largest])}"
    least = as_size(int(memory_fit.memory.peak / USABLE))
    fields = f" with {memory_fit.text()}" if memory_fit.text() else ""
    group = f"each of {workers} workers" if workers > 1 else "a worker"
    return UserError(
        f"the net cannot be trained in {as_size(limit)} of memory: {group} needs at least "
        f"{least}{fields}; beside {as_size(FIXED)} for Python most is for {most}: give workers more memory, use more "
        "workers, or make the net smaller"
    )
