"""Squares of the summed gradients of a shard, for the norm of the gradients of all servers together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import numpy as np

from dsinga.cluster.server.served_slice import ServedSlice


class SquaresRequest:
    """The sums of squares of the gradients of the slices ``ids`` in one step of a group, which arrive one by one."""

    def __init__(self, ids: list[int]):
        self._ids = ids
        self.squares: dict[int, float] = {}
        self.future: Future[np.ndarray] = Future()
        self.future.set_running_or_notify_cancel()

    @property
    def complete(self) -> bool:
        """Whether those of all slices are known."""
        return len(self.squares) == len(self._ids)

    def resolve(self) -> None:
        """Resolve the future to the sums of squares, float64, in the order of the slices."""
        self.future.set_result(np.array([self.squares[id] for id in self._ids]))

    def fail(self, error: BaseException) -> None:
        """Fail the future, unless it has been resolved."""
        if not self.future.done():
            self.future.set_exception(error)

    def pending(self) -> str:
        """Return a text that says how many slices are missing."""
        return f"the gradients of {len(self._ids) - len(self.squares)} of {len(self._ids)} slices are missing"


class GradientNorms:
    """The requests of a shard for squares, by worker group and step. Not thread-safe: the shard holds its lock.

    ``slices`` are the shard's, by id, of which those with gradients count; none where their norm is not clipped. A
    group that begins anew may repeat steps whose gradients have been applied (:meth:`restart`); the squares of such a
    step are zeros, since its factor is not used.
    """

    def __init__(self, slices: Mapping[int, ServedSlice]):
        self._slices = {id: slices[id] for id in sorted(slices) if slices[id].is_clipped}
        self._ids = list(self._slices)
        self._requests: dict[tuple[int, int], SquaresRequest] = {}
        self._starts: dict[int, int] = {}  # by group that has begun anew: its first step

    def request(self, group: int, step: int) -> SquaresRequest:
        """Return the request of a step of a group."""
        if step < self._starts.get(group, 0):
            repeated = SquaresRequest(self._ids)
            repeated.squares = dict.fromkeys(self._ids, 0.0)
            repeated.resolve()
            return repeated
        return self._requests.setdefault((group, step), SquaresRequest(self._ids))

    def reduce(self, complete: Iterable[ServedSlice], group: int) -> dict[int, float]:
        """Add up the gradients of the slices that count; return their sums of squares by slice id.

        Skipped steps have none. Needs no lock: see :class:`GradientAccumulator`.
        """
        ids = [served_slice.spec.slice.id for served_slice in complete] if self._slices else []
        squares = {id: self._slices[id].accumulators[group].reduce() for id in ids if id in self._slices}
        return {id: value for id, value in squares.items() if value is not None}

    def add(self, group: int, step: int, squares: Mapping[int, float]) -> SquaresRequest | None:
        """Add sums of squares by slice id; return the request if these were the last."""
        request = self.request(group, step)
        request.squares.update(squares)
        return request if request.complete else None

    def clip(self, group: int, step: int, factor: float) -> list[ServedSlice]:
        """Multiply the gradients of a step, whose squares are known, by ``factor``, and forget the request.

        Returns their slices, or none for a request that is forgotten.
        """
        request = self._requests.pop((group, step), None)
        assert request is None or request.complete, request
        clipped = [] if request is None else list(self._slices.values())
        for served_slice in clipped:
            served_slice.accumulators[group].factor = factor
        return clipped

    def drop(self, group: int) -> list[SquaresRequest]:
        """Forget the requests of a group, drop the gradients that wait for their norm, and return the requests."""
        requests = self.clear(group)
        for id in {id for request in requests for id in request.squares}:
            self._slices[id].accumulators[group].drop()
        return requests

    def clear(self, group: int | None = None) -> list[SquaresRequest]:
        """Forget the requests of a group, or all, and return them."""
        keys = [key for key in self._requests if group is None or key[0] == group]
        return [self._requests.pop(key) for key in keys]

    def restart(self, group: int, step: int) -> None:
        """Let a group begin anew, whose gradients of the steps before ``step`` have been applied."""
        self._starts[group] = step

    def pending(self) -> list[str]:
        """Return texts that say which requests wait."""
        return [
            f"the norm of the gradients of step {step}: {request.pending()}"
            for (_, step), request in self._requests.items()
            if not request.complete
        ]
