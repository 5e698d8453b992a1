"""The context that layers get in each pass: phase, backend, rows, step, random numbers, other workers."""

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
    """A worker's share of a global batch: rows ``start`` to ``stop`` - 1 of ``total``."""

    start: int
    stop: int
    total: int


def cut_evenly(total: int, parts: int) -> list[Rows]:
    """Divide ``total`` rows among ``parts`` workers as evenly as ``numpy.array_split``."""
    assert total >= 0, total
    assert parts >= 1, parts
    short, longer = divmod(total, parts)
    bounds = [part * short + min(part, longer) for part in range(parts + 1)]
    return [Rows(start, stop, total) for start, stop in zip(bounds, bounds[1:], strict=False)]


def rows_of_batch(rows: Rows, micro_batch: Rows) -> Rows:
    """Convert ``rows`` counted from the start of a micro-batch to rows of the whole batch."""
    return Rows(micro_batch.start + rows.start, micro_batch.start + rows.stop, micro_batch.total)


class Columns(NamedTuple):
    """A worker's share of a layer cut by features: columns ``start`` to ``stop`` - 1 of ``total``."""

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
    """A function called in place of each forward and backward pass of a layer, to time it or read its arrays."""

    def __call__(self, layer: Any, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``compute(*arguments)``, a layer's "forward" or "backward" pass (``name``), and return its result."""


class Records(NamedTuple):
    """One batch of records and labels that an input layer reads.

    ``data`` is (B, ...) in the store's dtype. Labels, int64 or float32 or None, are (B,), a matrix (B, K), or (B, T)
    for the steps of sequences, with -1 after the end.
    """

    data: Any
    labels: Any = None

    def part(self, rows: Rows) -> Records:
        """Return these rows as views."""
        start, stop, _ = rows
        return Records(self.data[start:stop], None if self.labels is None else self.labels[start:stop])


@dataclass(frozen=True)
class RecordInfo:
    """What an input layer knows of its records before it reads any: shapes, batch size, labels.

    Attributes:
        batchsize: rows computed at once; a training batch has ``micro_batches`` times as many.
        label_range: smallest and the largest label, if they are integers.
        label_shape: () for one label a record, (K,) for K, (T,) for one each step.
        continues: whether each row of a batch continues the same row of the previous batch.
        codes: number of different codes of a text; 0 for other records.
        words: hash of the vocabulary, if known.
        label_names: names of the labels 0, 1, ..., if known.
        fit: object with ``evaluate``, which brings stored records to ``shape``, or None.
        leads: object with ``create_nets``, which builds nets for several leads; None for one lead.
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
    """Return ``array`` unchanged: the all-reduce and all-gather of a group with a single worker."""
    return array


class _Once:
    """A collective operation that runs once for each key, so that a layer can be computed twice."""

    def __init__(self, collective: Callable[[str, Array], Array]):
        self._collective = collective
        self._results: dict[str, Array] = {}

    def __call__(self, key: str, array: Array) -> Array:
        if key not in self._results:
            self._results[key] = self._collective(key, array)
        return self._results[key]


@dataclass(frozen=True)
class Context:
    """What layers know of an iteration: phase, kernels, rows of the batch, step, and the group's other workers.

    While a pass is recorded for replay on a device, ``unread`` collects the metrics, which the host reads later.
    ``step`` is then a :class:`dsinga.ops.types.RecordedStep`; labels and codes are on the device.

    Attributes:
        all_reduce: ``all_reduce(key, array)`` sums an array over the workers that compute the rows of a layer, in the
            order of their rows.
        all_gather: ``all_gather(key, array)`` joins arrays along axis 0 in the same order.
        skips: whether a batch with a loss that is not finite is skipped.
        observer: called in place of each pass of a layer, or None.
        micro_batch: rows of this pass, of all workers of the group; None for the whole batch.
        meanwhile: functions to call while collectives wait for other workers, or None.
        adds_later: whether gradients of params may be :class:`dsinga.ops.factored_gradient.FactoredGradient`.
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
    adds_later: bool = False

    def changed(self, **values: Any) -> Context:
        """Return a copy of this context with other values of fields but ``phase``, faster than ``replace``."""
        ctx = object.__new__(type(self))
        vars(ctx).update(vars(self), **values)
        return ctx

    @property
    def pass_rows(self) -> Rows:
        """The rows of the batch that all workers of the group compute in this pass."""
        return self.micro_batch or Rows(0, self.rows.total, self.rows.total)

    def of(self, rows: Rows | None, in_parts: bool = False) -> Context:
        """Return the context for a layer that computes ``rows``; None means this context's rows.

        With ``in_parts`` other workers compute other points of the same rows, so sums are over all workers.
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
        """Sum equally shaped arrays over the workers, in one collective in host memory."""
        stacked = np.stack([self.ops.to_numpy(array) for array in arrays])
        return [self.ops.asarray(array) for array in self.all_reduce(key, stacked)]

    def repeatable(self) -> Context:
        """Return a context in which a layer can be computed twice without repeating collectives."""
        if self.all_reduce is single_worker:
            return self
        return replace(self, all_reduce=_Once(self.all_reduce), all_gather=_Once(self.all_gather))

    @cached_property
    def training(self) -> bool:
        """Whether this is training, with dropout, random crops and arrays saved for gradients."""
        return bool(self.phase & Phase.kTrain)

    def step_number(self, compute: Callable[[int], float]) -> float | Array:
        """Return a number that depends on the step, ``compute(step)``, in the form that kernels accept."""
        return self.ops.step_number(compute, self.step)

    def uniform(self, layer: str, columns: int, part: Columns | None = None) -> np.ndarray:
        """Draw uniform float32 numbers in [0, 1), (rows, columns), one row for each row of ``rows``.

        They come from Philox, keyed by (seed, layer) with a counter of (global row, step), so a row gets the same
        numbers on every worker. A layer cut by features passes its ``self.columns`` as ``part``, and as ``columns`` how
        many numbers its part needs. The array is in host memory; :meth:`random` is faster for many numbers.
        """
        if self.unread is not None:
            raise NotCapturable(f"layer {layer!r} takes random numbers in host memory")
        return self._part_of(philox, layer, columns, part)

    def random(self, layer: str, columns: int, part: Columns | None = None) -> Array:
        """Draw the numbers of :meth:`uniform` on the backend's device."""
        return self._part_of(self.ops.uniform, layer, columns, part)

    def random_runs(self, layer: str, columns: int, runs: Sequence[tuple[int, int]]) -> Array:
        """Draw the numbers of :meth:`random` for the columns of ``runs`` only, joined."""
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
        """Convert a draw of random numbers to the arguments of :meth:`dsinga.ops.Ops.uniform`."""
        name = int.from_bytes(hashlib.blake2b(layer.encode(), digest_size=8).digest(), "little")
        start, stop, _ = self.rows
        return (self.seed & 0xFFFF_FFFF_FFFF_FFFF, name), start, self.step, stop - start, columns
