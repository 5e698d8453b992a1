"""Adds the gradients of several workers that compute in threads of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.cutting.partitioned import ParamPart, PartitionedNet
from dsinga.cutting.thread_group import ThreadPeers
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import SparseRows
from dsinga.ops.block_sums import TreeSum, add_gradients
from dsinga.ops.factored_gradient import FactoredGradient, to_dense
from dsinga.ops.sparse import add_up, to_host, whole_shape
from dsinga.passes.captured_passes import CapturedPasses
from dsinga.passes.replayed import replayed
from dsinga.training import Algorithm, Metrics, Push, bp
from dsinga.training.algorithms import check_algorithm_metrics

LARGE = 1 << 18  # bytes; gradients that should not all wait in memory
Gradient = np.ndarray | SparseRows | FactoredGradient
Fill = Callable[[int, str], Gradient]
Compute = Callable[[NeuralNet, Mapping[str, Any], Mapping[str, Records], Context], Metrics]


class GradientSums:
    """Adds the workers' gradients of each param, and pushes a sum when it is complete. Thread-safe.

    Args:
        users: by param, the workers that have it, in rising order.
        gathered: the params of which each worker has the whole gradient.
        in_tree: whether the order of sums is the tree of :mod:`dsinga.ops.block_sums`, or the order of the workers.
    """

    def __init__(self, users: Mapping[str, Sequence[int]], gathered: Collection[str], push: Push, in_tree: bool):
        self._users, self._gathered, self._push, self._lock = users, gathered, push, threading.Lock()
        self._in_tree = in_tree
        self._sums = {name: (TreeSum if in_tree else OrderedSum)(workers) for name, workers in users.items()}
        self._missing = {name: {*workers} for name, workers in users.items()}

    def add(self, worker: int, name: str, gradient: Gradient) -> None:
        """Add a worker's gradient, which may be overwritten."""
        with self._lock:
            if name not in self._gathered or worker == self._users[name][0]:
                self._sums[name].add(worker, gradient)
            self._missing[name].discard(worker)
            if self._missing[name]:
                return
            total = self._sums.pop(name).total()
        total = to_dense(total)  # while other workers go on
        with self._lock:
            self._push(name, total)

    def finish(self, fill: Fill | None = None, lasting: Collection[str] = ()) -> None:
        """Push the sums that lack some gradients or, if ``lasting``, all; ``fill`` returns the missing ones."""
        for name, workers in self._missing.items():
            if workers and (name in lasting or len(workers) < len(self._users[name])):
                for worker in sorted(workers):
                    if fill is not None:
                        self._sums[name].add(worker, fill(worker, name))
                self._push(name, to_dense(self._sums.pop(name).total()))

    def compute(
        self, algorithm: Algorithm, memory: Callable[[int], Mapping[int, Sequence[np.ndarray]]],
        passes: CapturedPasses | None,
    ) -> Compute:  # fmt: skip
        """Return a function that computes a worker's part of a step, and adds its gradients to the sums.

        ``memory`` returns a worker's for large gradients (:func:`dsinga.base.buffers.use_bases`). ``passes`` are
        replayed by workers in the thread that calls :func:`run_group`.
        """
        replaying = replayed(algorithm, passes, copies=True)

        def compute(
            local: NeuralNet, values: Mapping[str, Any], records: Mapping[str, Records], ctx: Context
        ) -> Metrics:
            assert isinstance(ctx.peers, ThreadPeers)
            peers = ctx.peers

            def push(name: str, gradient: Any) -> None:
                if isinstance(gradient, FactoredGradient):
                    with buffers.use_bases(memory(self._users[name][0])):  # in which others add arrays, too
                        self.add(peers.worker, name, gradient)
                    return
                whole = whole_shape(to_host(gradient, ctx.ops), local.params[name].shape)
                is_large = whole.nbytes >= LARGE
                self.add(peers.worker, name, whole)
                if is_large:
                    del gradient, whole
                    peers.take_turns()  # so that the others add theirs before this one computes more

            with buffers.use_bases(memory(peers.worker)):
                run = algorithm
                if passes is not None and peers.is_in_caller and local.params:
                    run, values = replaying, {name: values[name] for name in local.params}  # others may be pushed
                ctx = ctx.changed(adds_later=self._in_tree and algorithm is bp)
                return check_algorithm_metrics(run(local, values, records, ctx, push))

        return compute


class JoinedGradients:
    """Joins the gradients of a cut net's parts, and pushes the gradient of a whole param when it is complete."""

    def __init__(self, net: PartitionedNet, push: Push, in_tree: bool):
        self._net, self._push = net, push
        self._parts: dict[str, dict[str, Gradient | None]] = {}  # by param, then by its parts in order
        for name, part in net.parts.items():
            self._parts.setdefault(part.param, {})[name] = None
        self._left = {param: len(parts) for param, parts in self._parts.items()}
        users = {name: part.users for name, part in net.parts.items()}
        gathered = {name for name, part in net.parts.items() if part.gathered}
        self.sums = GradientSums(users, gathered, self._add, in_tree)

    def _add(self, name: str, total: Gradient) -> None:
        param = self._net.parts[name].param
        self._parts[param][name] = total
        self._left[param] -= 1
        if not self._left[param]:
            self._push_whole(param)

    def finish(self) -> None:
        """Push the gradients that some worker has pushed no part of."""
        self.sums.finish()
        for param, left in self._left.items():
            if left:
                self._push_whole(param)

    def _push_whole(self, param: str) -> None:
        totals = self._parts.pop(param)
        parts = [(self._net.parts[name], total) for name, total in totals.items() if total is not None]
        if parts and not self._net.whole.params[param].static:
            self._push(param, _join_parts(self._net.whole.params[param].shape, parts))


class OrderedSum:
    """The sum of several workers' gradients of a param, added in the order of the workers, like on servers."""

    def __init__(self, workers: Sequence[int]):
        self._left = deque(workers)
        self._sum: Any = None
        self._waiting: dict[int, Gradient] = {}

    def add(self, worker: int, gradient: Gradient) -> None:
        """Add a worker's gradient, or keep it until those before it have come."""
        self._waiting[worker] = gradient
        while self._left and isinstance(first := self._waiting.get(self._left[0]), np.ndarray):
            self._sum = first if self._sum is None else add_gradients(self._sum, first)
            del self._waiting[self._left.popleft()]

    def total(self) -> Gradient | None:
        """Return the sum of what has come, None for nothing; sparse if all gradients are."""
        rest = [self._waiting[worker] for worker in self._left if worker in self._waiting]
        if any(isinstance(gradient, SparseRows) for gradient in rest):
            return add_up(rest if self._sum is None else [self._sum, *rest])
        for gradient in rest:
            self._sum = gradient if self._sum is None else add_gradients(self._sum, gradient)
        return self._sum


def _join_parts(shape: tuple[int, ...], parts: Sequence[tuple[ParamPart, Gradient]]) -> Gradient:
    if parts[0][0].axis is None:
        return parts[0][1]
    sparse = [(part, gradient) for part, gradient in parts if isinstance(gradient, SparseRows)]
    if len(sparse) == len(parts):
        starts = [part.start if part.axis == 0 else 0 for part, _ in sparse]
        rows = np.unique(np.concatenate([g.rows + start for start, (_, g) in zip(starts, sparse, strict=True)]))
        values = np.zeros((rows.size, *shape[1:]), np.float32)
        for start, (part, gradient) in zip(starts, sparse, strict=True):
            columns = slice(None) if part.axis == 0 else slice(part.start, part.stop)
            values[np.searchsorted(rows, gradient.rows + start), columns] = gradient.values
        return SparseRows(rows, values, shape)
    whole = np.zeros(shape, np.float32)
    for part, array in parts:
        part.of(whole)[...] = np.asarray(array)
    return whole
