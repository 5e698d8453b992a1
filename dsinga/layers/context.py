"""What a layer is told: its part of a batch or of a feature, its records, and the circumstances of an iteration."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from dsinga.job import Phase
from dsinga.ops import Array, Ops
from dsinga.ops.numpy_random import philox

Shape = tuple[int, ...]


class Rows(NamedTuple):
    """Rows ``start`` to ``stop`` of a global batch of ``total`` rows: the part that one worker of a group computes."""

    start: int
    stop: int
    total: int


class Columns(NamedTuple):
    """Columns ``start`` to ``stop`` of ``total``, along axis 1 of a feature: the part of a layer cut on dimension 1."""

    start: int
    stop: int
    total: int


class Mail(Protocol):
    """Carries arrays between the workers of a group, in either direction of a pass."""

    def send(self, location: int, key: str, array: Any) -> None:
        """Send ``array``, which nobody changes any more, to the worker at ``location``; return at once."""

    def receive(self, key: str) -> Any:
        """Return the array that was sent here under ``key`` in this step, waiting for it if need be."""


class Records(NamedTuple):
    """One batch as it comes from a store: data (B, ...), in the store's dtype, and labels int64 or None.

    Labels are (B,), or (B, T) where each step of a sequence has one, -1 after the end.
    """

    data: Any
    labels: Any = None


@dataclass(frozen=True)
class RecordInfo:
    """What an input layer must know of its store before the first batch: shapes, batch size, labels, mean and std.

    ``label_shape`` is () or, where each step of a sequence has a label, (T,). ``continues`` says that each row of a
    batch goes on where that row of the batch before ended, ``codes`` how many there are, where records are codes.
    """

    shape: Shape
    batchsize: int
    has_labels: bool = True
    label_range: tuple[int, int] | None = None
    mean: Any = None
    std: Any = None
    label_shape: Shape = ()
    continues: bool = False
    codes: int = 0


def alone(key: str, array: Array) -> Array:
    """Return the array: the sum, or the rows, of the only partition there is."""
    return array


@dataclass(frozen=True)
class Context:
    """The circumstances of one iteration: phase, kernels, which rows, which step.

    ``total`` sums an array over the partitions of a batch-partitioned layer, in partition order (the identity where
    there is one partition); batch normalisation needs it to be exact however the batch is cut. ``gather`` joins the
    rows of all partitions in the same way. ``mail`` carries what bridges send. ``skips`` says that a batch whose loss
    is not finite is left out afterwards, so that it is no reason to stop.
    """

    ops: Ops
    phase: Phase
    rows: Rows
    seed: int = 0
    step: int = 0
    total: Callable[[str, Array], Array] = field(default=alone)
    gather: Callable[[str, Array], Array] = field(default=alone)
    mail: Mail | None = None
    skips: bool = False

    def of(self, rows: Rows | None) -> Context:
        """Return the circumstances of a layer that computes ``rows`` of its batch; None for those at hand."""
        if rows is None or rows == self.rows:
            return self
        if rows.stop - rows.start == rows.total:
            return replace(self, rows=rows, total=alone, gather=alone)
        return replace(self, rows=rows)

    @property
    def training(self) -> bool:
        """Whether dropout, random crops and workspaces for gradients are wanted."""
        return bool(self.phase & Phase.kTrain)

    def uniform(self, layer: str, columns: int) -> np.ndarray:
        """Return uniform float32 numbers in [0, 1) of shape (rows, columns), one row for each row of ``rows``.

        Philox, keyed by (seed, layer), counter by (global row, step): a row gets the same numbers whoever computes it.
        They are in host memory; many of them are better made by :meth:`random`.
        """
        return philox(*self._numbers(layer, columns))

    def random(self, layer: str, columns: int) -> Array:
        """Return the numbers of :meth:`uniform` as an array of the backend, made where the backend computes."""
        return self.ops.uniform(*self._numbers(layer, columns))

    def _numbers(self, layer: str, columns: int) -> tuple[tuple[int, int], int, int, int, int]:
        """Return what :meth:`dsinga.ops.Ops.uniform` wants to know."""
        name = int.from_bytes(hashlib.blake2b(layer.encode(), digest_size=8).digest(), "little")
        start, stop, _ = self.rows
        return (self.seed & 0xFFFF_FFFF_FFFF_FFFF, name), start, self.step, stop - start, columns
