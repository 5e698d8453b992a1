"""Computes several blocks of a batch as one worker: in threads that take turns, with one exchange for all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import prod
from typing import TypeVar

import numpy as np

from dsinga.base.buffers import few_bases
from dsinga.cluster.worker.config import WorkerConfig
from dsinga.cluster.worker.exchange import Exchange
from dsinga.cutting.gradient_sums import Gradient, GradientSums
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.thread_group import Collective, ThreadPeers, run_group
from dsinga.job import Phase
from dsinga.layers import Context, Records, Rows
from dsinga.net import NeuralNet
from dsinga.ops import Array, Ops, Processor
from dsinga.ops.block_sums import most_waiting
from dsinga.passes.captured_passes import CapturedPasses
from dsinga.training import Metrics, Push, forward
from dsinga.training.metrics import add_blocks

T = TypeVar("T")
Read = Callable[[int], dict[str, Records]]


class BlockTeam:
    """The blocks that one thread of a Dask worker computes, a node of the tree of sums.

    Args:
        shares: by block, its share of each lasting param, as for :class:`dsinga.cluster.worker.param_homes.ParamHome`.
        memory: for large gradients of the first block, to which the others are added
            (:func:`dsinga.base.buffers.use_bases`).
    """

    def __init__(
        self, blocks: range, config: WorkerConfig, exchange: Exchange, ops: Ops, processor: Processor,
        shares: Mapping[int, Mapping[str, float]], memory: Mapping[int, Sequence[np.ndarray]],
        passes: CapturedPasses | None,
    ):  # fmt: skip
        self._blocks, self._config, self._exchange = blocks, config, exchange
        self._ops, self._processor, self._shares, self._memory = ops, processor, shares, memory
        self._passes = passes
        users = {name: [user for user in part.users if user in blocks] for name, part in config.parts.items()}
        self._users = {name: own for name, own in users.items() if own}
        self._gathered = {name for name in self._users if config.parts[name].gathered}
        self._pool = ThreadPoolExecutor(len(blocks), "dsinga-block")
        # Large gradients of the other blocks share memory, of which the tree of sums keeps some.
        sizes = [4 * prod(config.parts[name].shape) for name in self._users]
        self._spare = few_bases(sizes, most_waiting(len(blocks)))

    def backward(
        self, net: NeuralNet, values: Mapping[str, Array], records: Mapping[str, Records], ctx: Context, push: Push
    ) -> Metrics:
        """Push the sums of the blocks' gradients, and return the sums of their metrics; an Algorithm.

        ``records`` are those of :func:`read_blocks`. ``net`` is not used, because each block has its own.
        """
        sums = GradientSums(self._users, self._gathered, push, in_tree=True)
        compute = sums.compute(self._config.algorithm, self._memory_of, self._passes)
        nets = self._config.nets[Phase.kTrain].locals

        def work(block: int, own: Mapping[str, Records], ctx: Context) -> Metrics:
            return compute(nets[block], values, own, ctx)

        done = self._run(work, self._config.readers[Phase.kTrain].parts, records, ctx, self._config.blocks_at_once)
        sums.finish(self._default, self._shares[self._blocks[0]].keys() - self._exchange.static)
        return add_blocks(done)

    def forward(
        self, net: PartitionedNet, rows: Sequence[Rows], values: Mapping[str, Array], records: Mapping[str, Records],
        ctx: Context,
    ) -> Metrics:  # fmt: skip
        """Return the metrics of a batch that is not trained on."""

        def work(block: int, own: Mapping[str, Records], ctx: Context) -> Metrics:
            return forward(net.locals[block], values, own, ctx)[1]

        return add_blocks(self._run(work, rows, records, ctx))

    def _run(
        self, compute: Callable[[int, Mapping[str, Records], Context], T], rows: Sequence[Rows],
        records: Mapping[str, Records], outside: Context, in_memory: int | None = None,
    ) -> dict[int, T]:  # fmt: skip
        own: dict[int, dict[str, Records]] = {block: {} for block in self._blocks}
        for key, each in records.items():
            block, _, name = key.partition("/")
            own[int(block)][name] = each

        put_off: dict[int, deque[Callable[[], None]]] = {}  # by thread

        def beside(collective: Collective, key: str, array: Array) -> Array:
            self._exchange.meanwhile = put_off[threading.get_ident()]  # the other threads wait for this collective
            return collective(key, array)

        def work(block: int, peers: ThreadPeers) -> T:
            self._ops.enter()
            self._ops.set_threads(self._processor.threads)
            meanwhile = put_off[threading.get_ident()] = deque()
            ctx = replace(outside, rows=rows[block], meanwhile=None if outside.meanwhile is None else meanwhile)
            return compute(block, own[block], peers.join(ctx))

        others = replace(
            outside, all_reduce=partial(beside, outside.all_reduce), all_gather=partial(beside, outside.all_gather)
        )
        results = run_group(
            self._blocks, work, outside=others, pool=self._pool, at_once=1, in_tree=True, in_memory=in_memory
        )
        return dict(zip(self._blocks, results, strict=True))

    def _memory_of(self, block: int) -> Mapping[int, Sequence[np.ndarray]]:
        return self._memory if block == self._blocks[0] else self._spare

    def _default(self, block: int, name: str) -> Gradient:
        """Return the gradient of a block that has pushed none."""
        if name in self._shares[block]:
            return np.asarray(self._exchange[name]) * np.float32(self._shares[block][name])
        return self._exchange.default_gradient(name)

    def close(self) -> None:
        """End the threads once they are done."""
        self._pool.shutdown(wait=False)


def read_blocks(reads: Mapping[int, Read], step: int) -> dict[str, Records]:
    """Read the records of several blocks, by block and input layer: "3/data"."""
    return {f"{block}/{name}": records for block, read in reads.items() for name, records in read(step).items()}
