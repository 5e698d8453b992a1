"""Context, the last argument of layers' passes: phase, backend, rows, step, random numbers, peers."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from dsinga.job import Phase
from dsinga.ops import Array, Ops
from dsinga.ops.numpy.lookup import philox
from dsinga.ops.types import NotCapturable, Shape


class Rows(NamedTuple):
    """Rows ``start`` to ``stop`` - 1 of a global batch of ``total`` rows, such as a worker's share."""

    start: int
    stop: int
    total: int


def cut_evenly(total: int, parts: int) -> list[Rows]:
    """Divide ``total`` rows into ``parts`` ranges of neighbours; the first ``total % parts`` are one row longer.

    As in ``numpy.array_split``, sizes differ by at most one, and parts beyond the rows are empty.
    """
    assert total >= 0, total
    assert parts >= 1, parts
    short, longer = divmod(total, parts)
    bounds = [part * short + min(part, longer) for part in range(parts + 1)]
    return [Rows(start, stop, total) for start, stop in zip(bounds, bounds[1:], strict=False)]


def rows_of_batch(rows: Rows, micro_batch: Rows) -> Rows:
    """Return ``rows``, counted from the start of a micro-batch, as rows of the whole batch."""
    return Rows(micro_batch.start + rows.start, micro_batch.start + rows.stop, micro_batch.total)


class Columns(NamedTuple):
    """Columns ``start`` to ``stop`` - 1 of ``total`` of a feature: the share of a layer cut by features."""

    start: int
    stop: int
    total: int


class Peers(Protocol):
    """Exchanges arrays with the other workers of the group."""

    def send(self, location: int, key: str, array: Any) -> None:
        """Send ``array`` to the worker at ``location`` and return at once; do not change the array afterwards."""

    def receive(self, key: str) -> Any:
        """Wait for the array that another worker sends under ``key`` in this step."""


class PassObserver(Protocol):
    """Called in place of each forward and backward pass of a layer, to time it or read its arrays."""

    def __call__(self, layer: Any, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``compute(*arguments)``.

        Args:
            layer: the :class:`dsinga.layers.Layer`, possibly fused.
            name: "forward" or "backward".
            compute: the layer's ``compute_feature`` or ``compute_gradient``.
            arguments: its arguments.
        """


class Records(NamedTuple):
    """One batch of a store: data (B, ...) in the store's dtype, and labels, int64 or float32, or None.

    Labels are (B,), a matrix (B, K), or (B, T) for the steps of sequences, with -1 after the end.
    """

    data: Any
    labels: Any = None

    def part(self, rows: Rows) -> Records:
        """Return these rows, as views."""
        start, stop, _ = rows
        return Records(self.data[start:stop], None if self.labels is None else self.labels[start:stop])


@dataclass(frozen=True)
class RecordInfo:
    """The description of a store for an input layer: shapes, batch size, labels, mean and standard deviation.

    Attributes:
        batchsize: the rows computed at once. A training batch has ``micro_batches`` times as many.
        label_range: the smallest and the largest label, if they are integers.
        label_shape: () for one label a record, (K,) for K labels, (T,) for a label for each step. The layer that reads
            the labels decides between the last two.
        continues: whether each row of a batch continues the same row of the previous batch.
        codes: the number of different codes of a text; 0 for other records.
        words: a hash of what the codes stand for, if known.
        label_dtype: int64 or float32.
        label_names: the names of the labels 0, 1, ..., if known.
        fit: an object with ``evaluate``, which brings records of its ``stored_shape`` to ``shape``; None if stored
            records have that shape.
        leads: an object with ``create_nets``, which builds nets with copies of layers for several leads; None for one
            lead.
    """

    shape: Shape
    batchsize: int
    has_labels: bool = True
    label_range: tuple[float, float] | None = None
    mean: Any = None
    std: Any = None
    label_shape: Shape = ()
    continues: bool = False
    codes: int = 0
    words: str = ""
    label_dtype: Any = np.int64
    label_names: tuple[str, ...] = ()
    micro_batches: int = 1
    fit: Any = None
    leads: Any = None


WORD = 8  # numbers that one counter of the generator gives, see :meth:`dsinga.ops.Ops.uniform`


def single_worker(key: str, array: Array) -> Array:
    """Stands for all-reduce and all-gather in a group of one worker: returns ``array``."""
    return array


class _Once:
    """A collective that runs once for each key; later calls return the first result."""

    def __init__(self, collective: Callable[[str, Array], Array]):
        self._collective = collective
        self._results: dict[str, Array] = {}

    def __call__(self, key: str, array: Array) -> Array:
        if key not in self._results:
            self._results[key] = self._collective(key, array)
        return self._results[key]


@dataclass(frozen=True)
class Context:
    """The context of one iteration: phase, kernels, rows of the batch, step, and the group's other workers.

    A pass that a device will replay is recorded. ``unread`` is then a list that receives its metrics, which the host
    reads later. ``step`` is then a :class:`dsinga.ops.types.RecordedStep`, and labels and codes are device arrays.
    Layers get numbers that depend on the step from :meth:`step_number` and :meth:`random`.

    Attributes:
        all_reduce: ``all_reduce(key, array)`` sums an array over the workers that compute the rows of a layer. It adds
            in the order of their rows, so the order of messages does not matter. A single worker gets its array back.
        all_gather: ``all_gather(key, array)`` joins arrays along axis 0 in the same order.
        peers: sends and receives the arrays of bridges.
        skips: whether a batch with a loss that is not finite is skipped and no error.
        observer: called in place of each pass of a layer; None for plain calls.
        micro_batch: the rows that all workers of the group compute in this pass; None for the whole batch.
        meanwhile: functions that collectives call while they wait for other workers; None for none.
    """

    ops: Ops
    phase: Phase
    rows: Rows
    seed: int = 0
    step: int = 0
    all_reduce: Callable[[str, Array], Array] = field(default=single_worker)
    all_gather: Callable[[str, Array], Array] = field(default=single_worker)
    peers: Peers | None = None
    skips: bool = False
    observer: PassObserver | None = None
    micro_batch: Rows | None = None
    unread: list[Any] | None = None
    meanwhile: deque[Callable[[], None]] | None = None

    def at_step(self, step: int) -> Context:
        """Return this context at another step, faster than ``replace``."""
        ctx = object.__new__(type(self))
        vars(ctx).update(vars(self), step=step)
        return ctx

    @property
    def pass_rows(self) -> Rows:
        """The rows of the batch that all workers of the group compute in this pass."""
        return self.micro_batch or Rows(0, self.rows.total, self.rows.total)

    def of(self, rows: Rows | None, in_parts: bool = False) -> Context:
        """Return the context of a layer that computes ``rows``; None means this context's rows.

        ``rows`` count from the start of the micro-batch, which has ``rows.total`` rows. With ``in_parts`` other workers
        compute other points of the same rows, so sums are over all workers.
        """
        if rows is None:
            return self
        batch_rows = rows if self.micro_batch is None else rows_of_batch(rows, self.micro_batch)
        if rows.stop - rows.start == rows.total and not in_parts and self.all_reduce is not single_worker:
            return replace(self, rows=batch_rows, all_reduce=single_worker, all_gather=single_worker)
        if batch_rows == self.rows:
            return self
        return replace(self, rows=batch_rows)

    def sum_arrays(self, key: str, arrays: Sequence[Array]) -> list[Array]:
        """Return equally shaped arrays summed over the workers, in one collective in host memory."""
        stacked = np.stack([self.ops.to_numpy(array) for array in arrays])
        return [self.ops.asarray(array) for array in self.all_reduce(key, stacked)]

    def repeatable(self) -> Context:
        """Return a context in which a layer can be computed twice: the second time repeats no collective."""
        if self.all_reduce is single_worker:
            return self
        return replace(self, all_reduce=_Once(self.all_reduce), all_gather=_Once(self.all_gather))

    @cached_property
    def training(self) -> bool:
        """Whether this is training, with dropout, random crops and workspaces for gradients."""
        return bool(self.phase & Phase.kTrain)

    def step_number(self, compute: Callable[[int], float]) -> float | Array:
        """Return ``compute(step)``, in the form that kernels accept."""
        return self.ops.step_number(compute, self.step)

    def uniform(self, layer: str, columns: int, part: Columns | None = None) -> np.ndarray:
        """Return uniform float32 numbers in [0, 1), (rows, columns), one row for each row of ``rows``.

        They come from Philox, keyed by (seed, layer) with a counter of (global row, step): a row gets the same numbers
        on every worker. A layer with a ``connection`` passes its ``self.columns`` as ``part``, and as ``columns`` the
        numbers of this part, in proportion to its features. The part gets the numbers that the whole layer would draw
        for it. Without ``part``, all parts of a layer cut by features would get the same numbers.

        The array is in host memory; :meth:`random` is faster for many numbers.
        """
        if self.unread is not None:
            raise NotCapturable(f"layer {layer!r} takes random numbers in host memory")
        return self._part_of(philox, layer, columns, part)

    def random(self, layer: str, columns: int, part: Columns | None = None) -> Array:
        """Return the numbers of :meth:`uniform` as a backend array, created on its device."""
        return self._part_of(self.ops.uniform, layer, columns, part)

    def random_runs(self, layer: str, columns: int, runs: Sequence[tuple[int, int]]) -> Array:
        """Return the numbers of :meth:`random` in the columns of ``runs``, (start, stop) each, joined.

        At most seven other numbers before and after each run are drawn.
        """
        key, first, step, rows, _ = self._counter(layer, columns)
        width = -(-columns // WORD)  # the numbers of a row begin at a multiple of it
        parts = []
        for row in range(first, first + rows):
            for start, stop in runs:
                low = start // WORD
                numbers = self.ops.uniform(key, row * width + low, step, -(-stop // WORD) - low, WORD)
                parts.append(numbers.reshape(-1)[start - low * WORD : stop - low * WORD])
        return self.ops.xp.concatenate(parts).reshape(rows, -1)

    def _part_of(self, numbers: Callable[..., Array], layer: str, columns: int, part: Columns | None) -> Array:
        if part is None:
            return numbers(*self._counter(layer, columns))
        width = columns // (part.stop - part.start)
        return numbers(*self._counter(layer, part.total * width))[:, part.start * width : part.stop * width]

    def _counter(self, layer: str, columns: int) -> tuple[tuple[int, int], int, int, int, int]:
        """Return the arguments of :meth:`dsinga.ops.Ops.uniform`."""
        name = int.from_bytes(hashlib.blake2b(layer.encode(), digest_size=8).digest(), "little")
        start, stop, _ = self.rows
        return (self.seed & 0xFFFF_FFFF_FFFF_FFFF, name), start, self.step, stop - start, columns
