"""A shard as a service: the methods that workers and other server groups call, with plain values and arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from dsinga.base.errors import RunError
from dsinga.cluster.server.compression import Codec
from dsinga.cluster.server.gradient_accumulator import Push
from dsinga.cluster.server.shard import Shard
from dsinga.ops import Array, SparseRows

NO_GRADIENT = np.empty(0, np.float32)  # the gradient of each slice in a skipped step
# The methods that may be called: each is the method of ShardService with an underscore before its name.
METHODS = frozenset({"pull", "push", "push_pull", "squares", "clip", "collective", "receive", "move", "gpu"})


class PendingAnswer:
    """The arrays of an answer that comes later: ``finish`` makes them from the result of the shard's ``future``."""

    def __init__(self, shard: Shard, future: Future[Any], finish: Callable[[Any], Any]):
        self._shard, self._future, self._finish = shard, future, finish

    def done(self) -> bool:
        """Whether the result, or an error, is available."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Any:
        """Return the arrays, computing updates while waiting."""
        return self._finish(self._shard.executor.wait(self._future, timeout))

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Call ``callback`` with the answer when the shard's future is done."""
        shard, finish = self._shard, self._finish
        self._future.add_done_callback(lambda future: callback(PendingAnswer(shard, future, finish)))


class ShardService:
    """Handles the calls of workers and other server groups to a shard.

    ``codec`` decodes compressed gradients, which are bytes (uint8), and may compress sums of gradients.

    Methods, with their fields:
        ``pull`` (ids, version, group, since): return the values of slices when they have reached ``version`` for a
            worker group. ``since`` lists (id, version) of the caller's values: for them the answer may contain only
            changed rows.

        ``push`` (push, ids): add gradients of slices; see :class:`Push`. A skipped step has no gradients.

        ``push_pull`` (push, ids, since): push, then pull the values at the next version.

        ``squares`` (push): return the sums of squares of a step's summed gradients, in the order of the slices, for
            ``clip_global_norm``.

        ``clip`` (push, factor): update the slices by these gradients times ``factor``.

        ``collective`` (kind, key, generation, group, worker, contributors, blocks): return the arrays of some workers
            of a worker group, combined (:meth:`Collectives.add`).

        ``receive`` (route, keys, sender, generation): accept a message of the server group ``sender``.

        ``move`` (ids): keep the values of slices in the caller's arrays; only within a process. Ignored for
            ``published`` values, which processes of this host read at their place.

        ``gpu`` (): return the number of the GPU that keeps the slices; no array for host memory.
    """

    def __init__(self, shard: Shard, codec: Codec | None = None, published: bool = False):
        self.shard = shard
        self._codec, self._published = codec, published
        self.on_close: list[Callable[[str], None]] = []  # called with the reason

    def handle(self, method: str, fields: Sequence[Any], items: Sequence[Array | SparseRows]) -> Any:
        """Call a method of the shard; the class lists them."""
        if method not in METHODS:
            raise RunError(f"a server has no method {method!r}")
        return getattr(self, f"_{method}")(items, *fields)

    def close(self, message: str) -> None:
        """Close the shard."""
        self.shard.close(RunError(message))
        for end in self.on_close:
            end(message)

    def _pull(
        self, items: Any, ids: Sequence[int], version: int, group: int, since: Sequence[tuple[int, int]] = ()
    ) -> PendingAnswer:
        def finish(values: dict[int, Array]) -> list[Array | SparseRows]:
            known = {} if self.shard.copies else dict(since)
            return [self._encoded(id, self._changed(id, known.get(id), version, values[id])) for id in ids]

        return PendingAnswer(self.shard, self.shard.pull(ids, version, group), finish)

    def _push(self, items: Sequence[Array | SparseRows], push: Sequence[Any], ids: Sequence[int]) -> None:
        self._add(Push(*push), items, ids)

    def _add(self, push: Push, items: Sequence[Array | SparseRows], ids: Sequence[int]) -> None:
        if push.skip:
            self.shard.push(push, dict.fromkeys(ids, NO_GRADIENT))
        else:
            self.shard.push(push, {id: self._decoded(id, item) for id, item in zip(ids, items, strict=True)})

    def _decoded(self, id: int, gradient: Any) -> Any:
        if self._codec is None or gradient.dtype != np.uint8:
            return gradient
        return self._codec.decode(gradient, self.shard.slices[id].spec.slice.size)

    def _changed(self, id: int, since: int | None, version: int, value: Array) -> Array | SparseRows:
        """Return a value's changed rows since a version, or the value if they are unknown."""
        served_slice = self.shard.slices[id]
        rows = None if since is None else served_slice.rows_changed(since, version)
        if rows is None:
            return value
        table = value.reshape(-1, served_slice.spec.slice.width)
        return SparseRows(rows, table[rows], table.shape)

    def _encoded(self, id: int, value: Any) -> Any:
        codec, spec = self._codec, self.shard.slices[id].spec
        if codec is None or not codec.encodes_sums or isinstance(value, SparseRows) or not spec.is_gradient:
            return value
        return codec.encode(id, value)

    def _push_pull(
        self, items: Sequence[Any], push: Sequence[Any], ids: Sequence[int], since: Sequence[tuple[int, int]] = ()
    ) -> PendingAnswer:
        identity = Push(*push)
        self._add(identity, items, ids)
        return self._pull((), ids, identity.step + 1, identity.group, since)

    def _squares(self, items: Any, push: Sequence[Any]) -> PendingAnswer:
        return PendingAnswer(self.shard, self.shard.norms.squares(Push(*push)), lambda array: [array])

    def _clip(self, items: Any, push: Sequence[Any], factor: float) -> None:
        self.shard.clip(Push(*push), factor)

    def _collective(
        self, items: Sequence[Array], kind: str, key: str, generation: int, group: int, worker: int,
        contributors: Sequence[int], blocks: int = 1,
    ) -> PendingAnswer:  # fmt: skip
        future = self.shard.collectives.add(kind, key, group, worker, items[0], contributors, generation, blocks)
        return PendingAnswer(self.shard, future, lambda array: [array])

    def _move(self, items: Sequence[Array], ids: Sequence[int]) -> None:
        if not self._published:
            self.shard.move(dict(zip(ids, items, strict=True)))

    def _gpu(self, items: Any) -> list[Array]:
        return [] if self.shard.gpu is None else [np.array(self.shard.gpu.device)]

    def _receive(self, items: Sequence[Array], route: int, keys: Sequence[Any], sender: int, generation: int) -> None:
        self.shard.group_sync.receive(route, keys, items, sender, generation)
