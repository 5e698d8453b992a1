"""The configuration of a run's workers, the keys that identify workers and servers, and the reports of a round."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsinga.cluster.server import Slice
from dsinga.cluster.transport.handshake import PROCESS_SECRET, Secret
from dsinga.cluster.worker.exchange_options import ExchangeOptions
from dsinga.cutting.bridges import BridgeSrc
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.partitioned import ParamPart, PartitionedNet
from dsinga.job import Phase
from dsinga.job.updaterconf import EMAConf
from dsinga.net import Param
from dsinga.passes.predictor import EvaluationPass
from dsinga.passes.round import Timing
from dsinga.reading.batch_reader import BatchReader
from dsinga.training import Algorithm, Metrics, Updater


def new_run_name() -> str:
    """Return a name for a run that no other run has."""
    return uuid.uuid4().hex[:8]


class ReplicaState(NamedTuple):
    """The state of replicated params: values by name, and the updater's state by name and slot."""

    values: Mapping[str, np.ndarray]
    state: Mapping[str, Mapping[str, np.ndarray]] | None


@dataclass(frozen=True)
class WorkerConfig:
    """All that the workers of a run need to know, sent once, before the first round.

    Attributes:
        generation: how often the whole run has started again; single worker groups may be of later generations.
        parts: the param parts of all phases, by name; their ``users`` join every exchange of them.
        passes: the passes over all records, of phases that are evaluated over all of them.
        outer_average: the moving average (EMA) that sites keep of their outer params; None for none.
        slices: the slices of parts that servers keep, the same in each server group.
        replicated: the names of parts that each user copies and updates itself.
        skip_bad_batches: whether a batch is left out if its loss or a gradient is not finite.
        precision: the number format of matrix products: "float32", "tf32" (of GPUs) or "bf16".
        joins_blocks: whether a thread may compute its blocks as one worker, a team, which sends the sums of its blocks.
        blocks_at_once: the most blocks of a team in memory at a time; 0 for all.
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
    replicated: frozenset[str]
    options: ExchangeOptions
    outer_average: EMAConf | None = None
    skip_bad_batches: bool = False
    precision: str = "float32"
    joins_blocks: bool = False
    blocks_at_once: int = 0
    passes: Mapping[Phase, Sequence[EvaluationPass]] = field(default_factory=dict)
    secret: Secret = field(default_factory=Secret)

    @cached_property
    def params(self) -> Mapping[str, Param]:
        """The whole param of the training net from which each part is cut, by the part's name."""
        whole = self.nets[Phase.kTrain].whole.params
        return {name: whole[part.param] for name, part in self.parts.items()}

    @cached_property
    def has_bridges(self) -> bool:
        """Whether the workers of a group send each other arrays."""
        return any(isinstance(node.layer, BridgeSrc) for net in self.nets.values() for node in net.nodes)

    @property
    def has_teams(self) -> bool:
        """Whether the blocks of a thread of CPU cores are one worker, because they exchange sums only."""
        return self.joins_blocks and not self.has_bridges


class ServerKey(NamedTuple):
    """Identifies a server: run, generation, server group and number, with the run's secret."""

    run: str
    generation: int
    group: int
    server: int
    secret: Secret = PROCESS_SECRET

    @property
    def name(self) -> str:
        """The server's name on its host."""
        return f"{self.run}-{self.generation}-{self.group}-{self.server}"


class WorkerKey(NamedTuple):
    """Identifies a worker: run, generation, group, number and its Dask worker's address, with the run's secret."""

    run: str
    generation: int
    group: int
    worker: int
    address: str
    secret: Secret = PROCESS_SECRET

    @property
    def name(self) -> str:
        """The name of the worker's mailbox on its host."""
        return f"{self.run}-{self.generation}-{self.group}-worker-{self.worker}"

    def __str__(self) -> str:
        return f"worker {self.worker} of group {self.group}"


class RoundReport(NamedTuple):
    """A worker's report of a round, which is small because later tasks depend on it.

    Attributes:
        metrics: the metrics of each step; empty for a skipped step.
        blocks: the number of workers that it is of; more than one for a team of blocks.
    """

    metrics: list[Metrics]
    timings: list[Timing]
    step: int
    skipped: Sequence[int] = ()
    blocks: int = 1
