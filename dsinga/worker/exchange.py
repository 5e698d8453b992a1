"""The params as one partition sees them: a lookup waits for the value, a push sends the gradient."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.errors import UserError
from dsinga.job import PullTime
from dsinga.ops import Array, SparseRows
from dsinga.ops.sparse import no_rows
from dsinga.server import Push, Slice, fill_buckets
from dsinga.transport.roads import Reply, Road, wait_for
from dsinga.worker.exchange_options import ExchangeOptions, encode
from dsinga.worker.gradients import check_gradient, part_of
from dsinga.worker.meter import Meter
from dsinga.worker.replicated_params import ReplicatedParams
from dsinga.worker.row_cache import RowCache

Shape = tuple[int, ...]
NOTHING = np.empty(0, np.float32)  # what stands for the gradient of a slice in a step that is skipped


class Exchange(Mapping[str, Array]):
    """Values and gradients of one partition, exchanged with the servers bucket by bucket.

    Looking up a param waits until its value is of the present step. Pushing the last gradient of a bucket sends the
    bucket and asks for its new values at once, so that the answer travels while the layers below still compute.

    Params that the partition keeps itself are in ``replica``. Where servers have slices of them, what comes back for
    these is the sum of the partitions' gradients, and the replica applies it; where they have none, the replica
    applies this partition's own gradient, which is already that of the whole batch.

    Args:
        shapes: param name to shape, in the order in which the forward pass needs them.
        slices: every slice of these params that servers have.
        roads: the road to each server.
        identity: (generation, group, partition), said with every push.
        partitions: how many partitions the group has.
        timeout: seconds that a wait may last.
        bucket_bytes: the size of a bucket; see :func:`fill_buckets` for the default.
        lasting: params that are not trainable, each with this partition's share of it: the sum of what all partitions
            push replaces it.
        replica: the params that the partition keeps itself: none of those with slices, or all of them.
        options: when what is exchanged, and how gradients are made smaller; lasting params go as they are.
        meter: where seconds of waiting and bytes are counted.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        slices: Sequence[Slice],
        roads: Sequence[Road],
        identity: tuple[int, int, int],
        partitions: int,
        timeout: float,
        bucket_bytes: int | None = None,
        lasting: Mapping[str, float] | None = None,
        replica: ReplicatedParams | None = None,
        options: ExchangeOptions | None = None,
        meter: Meter | None = None,
    ):
        self._shapes = dict(shapes)
        self._roads = roads
        self._identity = identity
        self._everybody = tuple(range(partitions))
        self._timeout = timeout
        self._lasting = {name: np.float32(share) for name, share in (lasting or {}).items()}
        self._replicated = replica
        self._kept = frozenset(replica or ())
        self._options = options or ExchangeOptions()
        self._codec = self._options.codec()
        self._meter = meter or Meter()
        self._slices: dict[str, list[Slice]] = {name: [] for name in shapes}
        for piece in slices:
            self._slices[piece.param].append(piece)
        self._buckets = fill_buckets(self._slices, len(roads), bucket_bytes)
        self._bucket_of = {piece.id: number for number, (_, ids) in enumerate(self._buckets) for piece in ids}
        self._row_cache = RowCache({name: pieces for name, pieces in self._slices.items() if self._takes_rows(name)})
        self._values: dict[str, Array] = {}
        self._pieces: dict[int, Array] = {}
        self._wholes: dict[str, Array] = {}  # where params lie of which there are several slices
        self._outdated = {n for n, (_, ids) in enumerate(self._buckets) if ids[0].param not in self._kept}
        self._answers: dict[int, Reply] = {}
        self._ready: list[dict[int, Array]] = [{} for _ in self._buckets]
        self._pushed: set[str] = set()
        self._skipped: set[int] = set()  # buckets whose answer says nothing, the step having changed nothing
        self._step = 0
        self.aborted: str | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def begin(self, step: int) -> None:
        """Make ``step`` the present step, asking the servers for every value that is not on its way already."""
        started = time.perf_counter()
        self._step = step
        if self._options.pull is PullTime.kAtOnce or not self._options.overlap:
            for number in sorted(self._outdated - self._answers.keys()):
                self._ask(number)
        if not self._options.overlap:
            self.settle()
        self._meter.waited += time.perf_counter() - started

    def settle(self) -> None:
        """Wait for all values of the present step."""
        for number in sorted(self._outdated):
            self._arrive(number, self._buckets[number].slices[0].param)

    def renew(self) -> None:
        """Ask again for all values of the present step, which others have changed since; nothing is kept here."""
        self.settle()
        self._pieces.clear()
        self._values.clear()
        self._row_cache.forget()
        self._outdated = set(range(len(self._buckets)))

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
            for piece in self._slices[name]:
                if self._bucket_of[piece.id] in self._outdated:
                    self._arrive(self._bucket_of[piece.id], name)
            value = self._values[name] = self._assemble(name)
            self._meter.waited += time.perf_counter() - started
        return value

    def _takes_rows(self, name: str) -> bool:
        """Whether a param's changes come as rows: not where a server hands out the value as it lies there."""
        pieces = self._slices[name]
        if name in self._kept or not any(piece.width for piece in pieces):
            return False
        return len(pieces) > 1 or self._roads[pieces[0].server].crosses

    def _assemble(self, name: str) -> Array:
        if self._replicated is not None and name in self._kept:
            return self._replicated[name].reshape(self._shapes[name])
        if name in self._row_cache:
            return self._row_cache[name].reshape(self._shapes[name])
        parts = [self._pieces[piece.id] for piece in self._slices[name]]
        return (parts[0] if len(parts) == 1 else self._joined(name, parts)).reshape(self._shapes[name])

    def _joined(self, name: str, parts: Sequence[Array]) -> Array:
        """Return the slices of a param one behind the other, in memory that is kept: new pages cost more than a copy.

        Nobody computes with the values of a step any more when those of the next one are looked up.
        """
        if name not in self._wholes:
            self._wholes[name] = np.empty(sum(part.size for part in parts), np.float32)
        whole = np.concatenate(parts, out=self._wholes[name]).view()
        whole.flags.writeable = False
        return whole

    def push(self, name: str, gradient: Array) -> None:
        """Give the gradient of a param away; it is sent when its bucket is complete.

        Raises UserError, which an algorithm of the user's has to answer for, unless it is float32 of the param's shape
        and the first one of this step.
        """
        started = time.perf_counter()
        check_gradient(name, gradient, self._shapes, self._pushed, self._step)
        if isinstance(gradient, SparseRows) and not all(piece.width for piece in self._slices[name]):
            gradient = gradient.dense()
        flat = gradient if isinstance(gradient, SparseRows) else gradient.reshape(-1)
        self._pushed.add(name)
        for piece in self._slices[name]:
            number = self._bucket_of[piece.id]
            self._ready[number][piece.id] = part_of(flat, piece)
            if self._options.overlap and len(self._ready[number]) == len(self._buckets[number][1]):
                self._send(number)
        if not self._slices[name]:
            assert self._replicated is not None, name
            self._values.pop(name, None)
            self._replicated.push(self._step, name, flat)
        self._meter.waited += time.perf_counter() - started

    def finish(self) -> None:
        """End the present step: for params that got no gradient zeros are pushed (weight decay still applies to them).

        For those whose gradients may be rows it is no row, which leaves it to other partitions what moves. For lasting
        ones it is this partition's share of their value, so that they stay what they are.
        """
        for name in [name for name in self._shapes if name not in self._pushed]:
            if name in self._lasting:
                self.push(name, self[name] * self._lasting[name])
            else:
                by_rows = any(piece.width for piece in self._slices[name])
                self.push(name, no_rows(self._shapes[name]) if by_rows else np.zeros(self._shapes[name], np.float32))
        for number, ready in enumerate(self._ready):
            if ready:
                self._send(number)
        if self._replicated is not None:
            self._replicated.finish()
        self._pushed.clear()
        self._step += 1

    def skip(self) -> None:
        """End the present step, in which nothing has been pushed, without a change of any param.

        All partitions of the group do so. To the servers it is a step like others.
        """
        assert not self._pushed, self._pushed
        for number, (_, pieces) in enumerate(self._buckets):
            self._send(number, skip=True)
            if pieces[0].param in self._kept:
                self._skipped.add(number)
        self._step += 1

    def total(self, key: str, array: Array) -> Array:
        """Return the sum of the partitions' arrays, in the order of the partitions, by way of the first server.

        A key is used once in a run.
        """
        return self._meet("total", key, array, f"the sum {key!r} over the partitions")

    def gather(self, key: str, array: Array) -> Array:
        """Return the rows of all partitions, joined in the order of the partitions; else like :meth:`total`."""
        return self._meet("gather", key, array, f"the rows {key!r} of all partitions")

    def _meet(self, how: str, key: str, array: Array, what: str) -> Array:
        started = time.perf_counter()
        road, partition = self._roads[0], self._identity[2]
        result = self._wait(getattr(road, how)(key, partition, array, self._everybody), what)
        self._meter.count(road.crosses, array.nbytes + result.nbytes)
        self._meter.waited += time.perf_counter() - started
        return result

    def _send(self, number: int, skip: bool = False) -> None:
        server, pieces = self._buckets[number]
        if number in self._outdated:  # no lookup has asked for it
            self._arrive(number, pieces[0].param)  # or sums would be lost, or one step's gradients overtake another's
        for piece in pieces:
            self._pieces.pop(piece.id, None)
            self._values.pop(piece.param, None)
        generation, group, partition = self._identity
        push = Push(generation, group, self._step, partition, skip)
        road, gradients = self._roads[server], self._ready[number]
        if skip:
            gradients = {piece.id: NOTHING for piece in pieces}
        elif self._codec is not None:
            changes = {piece.id: gradients[piece.id] for piece in pieces if piece.param not in self._lasting}
            gradients = {**gradients, **encode(self._codec, changes, road.crosses)}
        self._outdated.add(number)
        if self._options.pull is PullTime.kAtOnce:
            self._answers[number] = road.push_pull(push, gradients, self._row_cache.versions(pieces))
        else:
            road.push(push, gradients)  # if it fails, so does the pull
        self._meter.count(road.crosses, sum(gradient.nbytes for gradient in gradients.values()))
        self._ready[number] = {}

    def _ask(self, number: int) -> None:
        server, pieces = self._buckets[number]
        ids, there = [piece.id for piece in pieces], self._row_cache.versions(pieces)
        self._answers[number] = self._roads[server].pull(ids, self._step, there)

    def _arrive(self, number: int, name: str) -> None:
        """Take in the new values of a bucket, ``name``'s among them, or the sums of its gradients, waiting for them."""
        server, pieces = self._buckets[number]
        what = f"the value of {name!r} at step {self._step} from server {server}"
        if number not in self._answers:
            self._ask(number)
        arrived = self._wait(self._answers.pop(number), what)
        self._outdated.discard(number)
        self._meter.count(self._roads[server].crosses, sum(value.nbytes for value in arrived.values()))
        skipped = number in self._skipped
        self._skipped.discard(number)
        for piece in pieces:
            value = arrived[piece.id]
            if self._replicated is not None and piece.param in self._kept:
                if not skipped:
                    self._replicated.update(self._step - 1, piece.param, piece.start, value)
            elif piece.param in self._row_cache:
                self._row_cache.fill(piece, value, self._step)
            else:
                self._pieces[piece.id] = value

    def _wait(self, answer: Reply, what: str) -> Any:
        return wait_for(answer, self._timeout, what, lambda: self.aborted)
