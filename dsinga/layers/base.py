"""What a layer is: a pure function of its params, its sources and a context."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.job import LayerConf, Phase
from dsinga.ops import Array, Ops

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParamSpec:
    """A param that a layer wants.

    ``role`` ("weight", "bias", ...) names the param when the job does not. ``cut_axis`` is the axis cut with the
    layer's dimension 1, None if the param is replicated. ``trainable`` is False for lasting state (running means):
    its new value travels where a gradient would, and replaces the old. ``initial`` fills it if the job has no ``init``.
    """

    role: str
    shape: Shape
    cut_axis: int | None = 0
    trainable: bool = True
    initial: float = 0.0


class Rows(NamedTuple):
    """Rows ``start`` to ``stop`` of a global batch of ``total`` rows: the part that one worker of a group computes."""

    start: int
    stop: int
    total: int


class Records(NamedTuple):
    """One batch as it comes from a store: data (B, ...), in the store's dtype, and labels (B,) int64 or None."""

    data: Any
    labels: Any = None


@dataclass(frozen=True)
class RecordInfo:
    """What an input layer must know of its store before the first batch: record shape, batch size, mean and std."""

    shape: Shape
    batchsize: int
    has_labels: bool = True
    mean: Any = None
    std: Any = None


@dataclass(frozen=True)
class Context:
    """The circumstances of one iteration: phase, kernels, which rows, which step.

    ``total`` sums an array over the partitions of a batch-partitioned layer, in partition order (the identity where
    there is one partition); batch normalisation needs it to be exact however the batch is cut.
    """

    ops: Ops
    phase: Phase
    rows: Rows
    seed: int = 0
    step: int = 0
    total: Callable[[str, Array], Array] = field(default=lambda key, array: array)

    @property
    def training(self) -> bool:
        """Whether dropout, random crops and workspaces for gradients are wanted."""
        return bool(self.phase & Phase.kTrain)

    def uniform(self, layer: str, columns: int) -> np.ndarray:
        """Uniform float32 numbers in [0, 1) of shape (rows, columns), one row for each row of ``rows``.

        Philox, keyed by (seed, layer), counter by (global row, step): a row gets the same numbers whoever computes it.
        """
        width = -(-columns // 8)  # one Philox counter gives four 64-bit words, eight float32
        key = int.from_bytes(hashlib.blake2b(layer.encode(), digest_size=8).digest(), "little")
        bits = np.random.Philox(key=[self.seed, key], counter=[self.rows.start * width, 0, self.step, 0])
        count = self.rows.stop - self.rows.start
        return np.random.Generator(bits).random((count, width * 8), dtype=np.float32)[:, :columns]


class Output(NamedTuple):
    """What ``compute_feature`` returns.

    ``saved`` is whatever ``compute_gradient`` will need besides params, sources and the feature. ``labels`` is given
    by layers that make labels; other layers hand on those of their sources. ``metrics`` maps a name to (sum, count),
    so that parts of a batch add up. ``state`` maps the role of a param that is not trainable to its new value.
    """

    feature: Array | None
    saved: Any = None
    labels: Array | None = None
    metrics: Mapping[str, tuple[float, float]] = {}
    state: Mapping[str, Array] = {}


class Layer(ABC):
    """Base of all layers: set up once from its configuration and the shapes of its sources, then pure.

    A subclass calls ``super().__init__`` and sets ``shape`` (the full feature shape, batch first) and ``params``.
    It raises UserError, through :meth:`fail`, when a source has a shape that it cannot take.

    ``label_source`` is the index of the source whose labels (not feature) the layer takes, or None.
    ``is_loss`` layers start the gradient: ``compute_gradient`` is called with ``grad`` None.
    ``is_output`` layers end the graph and have no gradient.
    """

    label_source: ClassVar[int | None] = None
    is_input: ClassVar[bool] = False
    is_loss: ClassVar[bool] = False
    is_output: ClassVar[bool] = False

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        self.conf = conf
        self.name = conf.name
        self.source_shapes = tuple(source_shapes)
        self.shape: Shape = ()
        self.params: tuple[ParamSpec, ...] = ()

    def fail(self, message: str) -> Exception:
        """Return the UserError that says ``message`` of this layer, with its file and line; the caller raises it."""
        return self.conf.error(f"layer {self.name!r}: {message}")

    @abstractmethod
    def compute_feature(self, params: Sequence[Array], sources: Sequence[Any], ctx: Context) -> Output:
        """Compute the feature from ``params`` (in the order of ``self.params``) and ``sources`` (in srclayers' order).

        An input layer gets one source, a :class:`Records`.
        """

    def compute_gradient(
        self,
        params: Sequence[Array],
        sources: Sequence[Any],
        output: Output,
        grad: Array | None,
        needs: Sequence[bool],
        ctx: Context,
    ) -> tuple[Sequence[Array | None], Sequence[Array | None]]:
        """Return the gradients for the sources and for the params.

        ``grad`` is the gradient for the feature. ``needs[i]`` says whether source i wants one. Gradients of a loss
        are of the mean over the *global* batch (``ctx.rows.total``), so those of the parts add up to the whole.
        Param entries of params that are not trainable are None.
        """
        raise NotImplementedError(f"{type(self).__name__} has no gradient")
