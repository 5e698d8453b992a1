"""What a run tells its partitions before the first round, and what they report after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dsinga.job import Phase
from dsinga.job.topology import Topology
from dsinga.layers.bridge import BridgeSrc
from dsinga.net import Param
from dsinga.net.partitioned import ParamPart, PartitionedNet
from dsinga.server import Slice
from dsinga.training import Algorithm, Metrics, Updater
from dsinga.worker.batch_reader import BatchReader
from dsinga.worker.exchange_options import ExchangeOptions


@dataclass(frozen=True)
class WorkerConfig:
    """What every partition of a run is told; sent once, before the first round.

    ``nets`` are cut for the workers of a group. ``parts`` are the param parts of all phases, by name; their ``users``
    take part in every exchange of them. ``slices`` are those of the parts that servers have, the same in each group;
    ``kept`` are the parts whose values every user keeps and updates itself. ``options`` says when what is exchanged,
    ``skips`` whether a batch whose loss is not finite is left out, ``precision`` in what products are computed on GPUs.
    """

    run: str
    generation: int
    seed: int
    topology: Topology
    nets: Mapping[Phase, PartitionedNet]
    parts: Mapping[str, ParamPart]
    readers: Mapping[Phase, BatchReader]
    algorithm: Algorithm
    updater: Updater
    slices: Sequence[Slice]
    kept: frozenset[str]
    options: ExchangeOptions
    timeout: float
    skips: bool = False
    precision: str = "float32"

    @cached_property
    def params(self) -> Mapping[str, Param]:
        """The whole param, of the training net, that each part is cut from, by the name of the part."""
        whole = self.nets[Phase.kTrain].whole.params
        return {name: whole[part.param] for name, part in self.parts.items()}

    @cached_property
    def bridged(self) -> bool:
        """Whether partitions send each other mail."""
        return any(isinstance(node.layer, BridgeSrc) for net in self.nets.values() for node in net.nodes)


class PartitionKey(NamedTuple):
    """Which partition: the run, its generation, its worker group, its number in the group, its Dask worker."""

    run: str
    generation: int
    group: int
    partition: int
    address: str

    @property
    def words(self) -> str:
        """Return what the partition is called: "partition 1 of group 0"."""
        return f"partition {self.partition} of group {self.group}"


class Timing(NamedTuple):
    """Seconds of one iteration: all of it, waiting for data, waiting for servers and other partitions.

    And bytes that this partition has sent (gradients, mail) or got from servers: ``crossing`` to or from another
    process, ``within`` its own, where nothing is copied.
    """

    total: float
    data: float
    exchange: float
    crossing: int = 0
    within: int = 0


class RoundReport(NamedTuple):
    """What a round leaves: metrics and timing of each step, and the step that comes next. A token too, so small.

    ``skipped`` are the steps whose batches were left out; they have no metrics.
    """

    metrics: list[Metrics]
    timings: list[Timing]
    step: int
    skipped: Sequence[int] = ()
