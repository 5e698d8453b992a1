"""The params as one partition sees them: a lookup waits for the value, a push sends the gradient."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.cluster.roads import Answer, Road, wait_for
from dsinga.errors import UserError
from dsinga.ops import Array
from dsinga.registry import nearest
from dsinga.server import Push, Slice, fill_buckets

Shape = tuple[int, ...]


class Exchange(Mapping[str, Array]):
    """Values and gradients of one partition, exchanged with the servers bucket by bucket.

    Looking up a param waits until its value is of the present step. Pushing the last gradient of a bucket sends the
    bucket and asks for its new values at once, so that the answer travels while the layers below still compute.

    Args:
        shapes: param name to shape, in the order in which the forward pass needs them.
        slices: every slice of every param.
        roads: the road to each server.
        identity: (generation, group, partition), said with every push.
        timeout: seconds that a wait may last.
        bucket_bytes: the size of a bucket; see :func:`fill_buckets` for the default.
        lasting: params that are not trainable, each with this partition's share of it: the sum of what all partitions
            push replaces it.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        slices: Sequence[Slice],
        roads: Sequence[Road],
        identity: tuple[int, int, int],
        timeout: float,
        bucket_bytes: int | None = None,
        lasting: Mapping[str, float] | None = None,
    ):
        self._shapes = dict(shapes)
        self._roads = roads
        self._identity = identity
        self._timeout = timeout
        self._lasting = {name: np.float32(share) for name, share in (lasting or {}).items()}
        self._slices: dict[str, list[Slice]] = {name: [] for name in shapes}
        for piece in slices:
            self._slices[piece.param].append(piece)
        self._buckets = fill_buckets(self._slices, len(roads), bucket_bytes)
        self._bucket_of = {piece.id: number for number, (_, ids) in enumerate(self._buckets) for piece in ids}
        self._values: dict[str, Array] = {}
        self._pieces: dict[int, Array] = {}
        self._answers: dict[int, Answer] = {}
        self._ready: list[dict[int, Array]] = [{} for _ in self._buckets]
        self._pushed: set[str] = set()
        self._step = 0
        self.aborted: str | None = None
        self.waited = 0.0  # seconds spent in this object since it was last set to zero

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def begin(self, step: int) -> None:
        """Make ``step`` the present step, asking the servers for every value that is not on its way already."""
        self._step = step
        for number, (server, pieces) in enumerate(self._buckets):
            missing = [piece.id for piece in pieces if piece.id not in self._pieces]
            if missing and number not in self._answers:
                self._answers[number] = self._roads[server].pull(missing, step)

    def __getitem__(self, name: str) -> Array:
        """Return the value of a param at the present step, waiting for it if need be. Not to be changed.

        Raises UserError where an algorithm of the user's looks a param up whose gradient it has pushed already.
        """
        value = self._values.get(name)
        if value is None:
            if name in self._pushed:  # the next step's value is on its way, this step's is gone
                raise UserError(
                    f"param {name!r} was looked up after its gradient was pushed; keep its value until then"
                )
            started = time.perf_counter()
            parts = [self._piece(piece) for piece in self._slices[name]]
            flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
            value = self._values[name] = flat.reshape(self._shapes[name])
            self.waited += time.perf_counter() - started
        return value

    def push(self, name: str, gradient: Array) -> None:
        """Give the gradient of a param away; it is sent when its bucket is complete.

        Raises UserError, which an algorithm of the user's has to answer for, unless it is float32 of the param's shape
        and the first one of this step.
        """
        started = time.perf_counter()
        self._check(name, gradient)
        flat = gradient.reshape(-1)
        self._pushed.add(name)
        for piece in self._slices[name]:
            number = self._bucket_of[piece.id]
            self._ready[number][piece.id] = flat[piece.start : piece.stop]
            if len(self._ready[number]) == len(self._buckets[number][1]):
                self._send(number)
        self.waited += time.perf_counter() - started

    def _check(self, name: str, gradient: Array) -> None:
        if name not in self._shapes:
            raise UserError(f"a gradient was pushed for {name!r}, which is no param of the net{nearest(name, self)}")
        if name in self._pushed:
            raise UserError(f"param {name!r} was pushed twice in step {self._step}; push the sum, once")
        shape, dtype = getattr(gradient, "shape", None), getattr(gradient, "dtype", None)
        if shape != self._shapes[name] or dtype != np.float32:
            given = f"{dtype} of shape {shape}" if dtype else f"a {type(gradient).__name__}"
            wanted = f"float32 of shape {self._shapes[name]}"
            raise UserError(f"the gradient that was pushed for param {name!r} must be {wanted}, not {given}")

    def finish(self) -> None:
        """End the present step: for params that got no gradient zeros are pushed (weight decay still applies to them).

        For lasting ones it is this partition's share of their value, so that they stay what they are.
        """
        for name in [name for name in self._shapes if name not in self._pushed]:
            share = self._lasting.get(name)
            self.push(name, np.zeros(self._shapes[name], np.float32) if share is None else self[name] * share)
        self._pushed.clear()
        self._step += 1

    def total(self, key: str, array: Array) -> Array:
        """Return the sum of the partitions' arrays, in the order of the partitions, by way of the first server.

        A key is used once in a run.
        """
        started = time.perf_counter()
        answer = self._roads[0].total(key, self._identity[2], array)
        result = self._wait(answer, f"the sum {key!r} over the partitions")
        self.waited += time.perf_counter() - started
        return result

    def _send(self, number: int) -> None:
        server, pieces = self._buckets[number]
        for piece in pieces:
            self._pieces.pop(piece.id, None)
            self._values.pop(piece.param, None)
        generation, group, partition = self._identity
        push = Push(generation, group, self._step, partition)
        self._answers[number] = self._roads[server].push_pull(push, self._ready[number])
        self._ready[number] = {}

    def _piece(self, piece: Slice) -> Array:
        if piece.id not in self._pieces:
            number = self._bucket_of[piece.id]
            answer = self._answers.pop(number)
            what = f"the value of {piece.param!r} at step {self._step} from server {piece.server}"
            self._pieces.update(self._wait(answer, what))
        return self._pieces[piece.id]

    def _wait(self, answer: Answer, what: str) -> Any:
        return wait_for(answer, self._timeout, what, lambda: self.aborted)
