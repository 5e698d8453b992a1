"""Adds up the squares of a shard's gradients, to clip the norm of the gradients of all servers together."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from dsinga.cluster.server.gradient_accumulator import Generations, Push
from dsinga.cluster.server.served_slice import ServedSlice


class SquaresRequest:
    """A request for the sums of squares of the slices ``ids`` in one step of a group."""

    def __init__(self, ids: list[int]):
        self._ids = ids
        self.squares: dict[int, float] = {}
        self.future: Future[np.ndarray] = Future()
        self.future.set_running_or_notify_cancel()

    @property
    def complete(self) -> bool:
        """Whether the sums of all slices have come."""
        return len(self.squares) == len(self._ids)

    def resolve(self) -> None:
        """Resolve the future to the sums of squares, float64, in the order of the slices."""
        self.future.set_result(np.array([self.squares[id] for id in self._ids]))

    def fail(self, error: BaseException) -> None:
        """Fail the future, unless it has been resolved."""
        if not self.future.done():
            self.future.set_exception(error)

    def pending(self) -> str:
        """Return how many slices are missing, in words."""
        return f"the gradients of {len(self._ids) - len(self.squares)} of {len(self._ids)} slices are missing"


class GradientNorms:
    """Answers requests of workers for the squares of a shard's gradients, and clips these.

    A restarted group may repeat steps with applied gradients (:meth:`restart`); their squares are zeros. The shard
    holds its ``lock`` when it calls :meth:`drop`, :meth:`close`, :meth:`restart` or :meth:`pending`.
    """

    def __init__(self, slices: Mapping[int, ServedSlice], generations: Generations, lock: threading.Lock):
        self._generations, self._lock = generations, lock
        self._error: BaseException | None = None
        self._slices = {id: slices[id] for id in sorted(slices) if slices[id].is_clipped}
        self._ids = list(self._slices)
        self._requests: dict[tuple[int, int], SquaresRequest] = {}
        self._starts: dict[int, int] = {}  # by restarted group: its first step

    def squares(self, push: Push) -> Future[np.ndarray]:
        """Return a future of the sums of squares of a step's summed gradients, float64, by slice.

        Slices that all workers have pushed wait for :meth:`clip`.
        """
        with self._lock:
            self._check(push, f"a request of worker {push.worker}")
            return self._request(push.group, push.step).future

    def _check(self, push: Push, message: str) -> None:
        if self._error is not None:
            raise self._error
        self._generations.check(push.group, push.generation, message)

    def _request(self, group: int, step: int) -> SquaresRequest:
        if step < self._starts.get(group, 0):
            repeated = SquaresRequest(self._ids)
            repeated.squares = dict.fromkeys(self._ids, 0.0)
            repeated.resolve()
            return repeated
        return self._requests.setdefault((group, step), SquaresRequest(self._ids))

    def hold(self, complete: Sequence[ServedSlice], push: Push) -> Sequence[ServedSlice]:
        """Keep complete gradients back until the norm of all is known; return the slices to update now."""
        ids = [served_slice.spec.slice.id for served_slice in complete] if self._slices else []
        sums = {id: self._slices[id].accumulators[push.group].reduce() for id in ids if id in self._slices}
        squares = {id: value for id, value in sums.items() if value is not None}
        if not squares:
            return complete
        with self._lock:
            request = None
            if self._generations.is_current(push.group, push.generation):
                request = self._request(push.group, push.step)
                request.squares.update(squares)
                is_last = request.complete
            else:  # the group has restarted meanwhile, and lets this update end
                for id in squares:
                    self._slices[id].accumulators[push.group].advance()
        if request is not None and is_last:
            request.resolve()
        return [served_slice for served_slice in complete if served_slice.spec.slice.id not in squares]

    def clip(self, push: Push, factor: float) -> list[ServedSlice]:
        """Multiply a step's gradients by ``factor`` to limit the norm; return their slices."""
        with self._lock:
            self._check(push, f"a factor of worker {push.worker}")
            request = self._requests.pop((push.group, push.step), None)
        assert request is None or request.complete, request
        clipped = [] if request is None else list(self._slices.values())
        for served_slice in clipped:
            served_slice.accumulators[push.group].factor = factor
        return clipped

    def drop(self, group: int) -> list[SquaresRequest]:
        """Forget and return a group's requests; drop the gradients that wait for their norm."""
        requests = [self._requests.pop(key) for key in list(self._requests) if key[0] == group]
        for id in {id for request in requests for id in request.squares}:
            self._slices[id].accumulators[group].drop()
        return requests

    def close(self, error: BaseException) -> list[SquaresRequest]:
        """Refuse later calls with ``error``; forget and return all requests."""
        self._error = error
        requests, self._requests = [*self._requests.values()], {}
        return requests

    def restart(self, group: int, step: int) -> None:
        """Restart a group at ``step``, after its gradients of earlier steps have been applied."""
        self._starts[group] = step

    def pending(self) -> list[str]:
        """Name the requests that wait, for errors."""
        return [
            f"the norm of the gradients of step {step}: {request.pending()}"
            for (_, step), request in self._requests.items()
            if not request.complete
        ]
