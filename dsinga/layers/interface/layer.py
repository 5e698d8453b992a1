"""The base class of all layers: a pure function of params, sources and a context."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code
from dsinga.job import LayerConf, StoreConf
from dsinga.layers.interface.checks import ConfiguredLayer
from dsinga.layers.interface.context import Columns, Context, RecordInfo, Records, Shape
from dsinga.layers.interface.declarations import (
    Bfloat16,
    Cut,
    Keeps,
    LabelFormat,
    Labels,
    ParamSpec,
    SourceKind,
    fault_of,
)
from dsinga.layers.interface.region import Reach, Region, row_numbers
from dsinga.ops import Array, Ops
from dsinga.ops.types import PointRanges, Shaped

FLOAT_BYTES = 4  # of a number in float32
Arrays = Sequence[Any]  # of the backend; among sources also Records, labels and tuples of parts
Gradients = tuple[Sequence[Array | None], Sequence[Array | None]]  # for the sources, for the params

DRAWN_WHOLE = 1 << 16  # random numbers of a row, from which on a part draws its own only
PASSES = ("compute_feature", "compute_gradient")
COMPUTING = (*PASSES, "forward", "backward")  # methods that take features


class Output(NamedTuple):
    """What a layer's forward pass returns: the feature, and optionally labels, metrics and state.

    Attributes:
        feature: array, or None if no destination needs one; with ``part_shapes`` a tuple, one for each destination.
        saved: what else ``compute_gradient`` needs.
        metrics: (sum, count) by name; a sum may be a state of :mod:`dsinga.layers.metrics.metric_state`.
        state: maps the role of a param that is not trainable to its new value.
    """

    feature: Any
    saved: Any = None
    labels: Array | None = None
    metrics: Mapping[str, tuple[Any, float]] = {}
    state: Mapping[str, Array] = {}


class Layer(ConfiguredLayer, ABC):
    """Base class of layers: set up once from a configuration and source shapes, then a pure function.

    A subclass calls ``super().__init__``. It sets ``params``, and ``shape``, the shape of the whole batch's feature,
    unless it equals the first source's. A worker may get fewer rows, so ``compute_feature`` and ``compute_gradient``
    rely on ``shape[1:]`` only.

    docs/howto/own-code.md has an example, and :class:`dsinga.testing.LayerContract` tests these rules:

    - *Errors.* Refuse sources and settings by ``raise self.fail(message)``, which adds file, line and layer.
    - *State.* Keep nothing in ``self`` while computing: several threads may share a layer. Put arrays for the backward
      pass into ``Output(feature, saved=...)``. Lasting state, such as a running mean, is a param with
      ``trainable=False``; return its new value in ``Output(state={role: value})``.
    - *Arrays* are float32, and read-only if a layer gets them. A gradient has the shape and dtype of its array.
    - *GPUs.* Call functions of ``ctx.ops.xp`` in place of numpy's on features, params and gradients. Labels and codes
      are in host memory; ``ctx.ops.asarray`` copies them to the device.
    - *Losses* set ``is_loss = True`` and report ``metrics={"loss": (sum, count)}``; the sum may be a 0-d
      array. Divide the gradient by ``ctx.rows.total``, the rows of the whole batch, not by the rows that you get.
    - *Metrics* that are no mean report parts that add up, such as ``"rmse:squares": (sum, count)``, for a function
      registered as ``composed_metric`` (:mod:`dsinga.layers.metrics.composed_metrics`).
    - *Input layers* set ``is_input = True`` and ``source_count = 0``, read a :class:`Records`, and return
      ``Output(feature, labels=labels)``.
    - *Random numbers* come from :meth:`random`, ``ctx.random(self.name, n, self.columns)`` or, in host memory,
      ``ctx.uniform(...)``. Every way to divide a batch gives the same numbers.
    - *The step.* Get a number that changes with the step by ``ctx.step_number(lambda step: ...)``. Reading ``ctx.step``
      directly makes GPUs slower.
    - *Cut by features* (``partition_dim: 1``): without ``cut``, each worker computes whole rows. With
      ``Cut(Connection.kOneToOne)`` a part needs the same features of each source, with ``kOneToAll`` all features.
    - *Cut by space* (``partition_dim: 2``): with ``by_space=True``, :meth:`reach` names the points of sources that a
      part needs. Sums over points need ``ctx.all_reduce``; metrics count ``self.counted_rows(rows)``;
      ``self.region.take(labels)`` gives the labels of a part's points.

    Attributes:
        Conf: class of the type's settings; ``settings`` are this layer's.
        source_count: number of source layers, None for any; up to ``optional_sources`` more may follow.
        new_labels: labels that it makes (:class:`LabelFormat`); None if it passes on its sources' labels.
        takes_codes: whether its source gives codes.
        vocab_size: upper bound of its source's codes; 0 if each category has its own.
        is_loss: whether it starts the gradient: ``compute_gradient`` gets ``grad`` None.
        is_output: whether it takes no part in the gradient; only output layers can follow it.
        part_shapes: shapes of the parts, if each destination gets its own part.
        columns: columns of the whole layer that this part computes, None for all.
        region: points of the whole layer's field that this part computes, None for all.
        label_region: points of an input layer's labels that later layers need, None for all.
        source_fill: value of padding points around a source, if ``source_points`` has some.
        label_format: labels that later layers get.
        marks_wrong_labels: whether a label that is no class makes metrics NaN, if the host cannot check it.
        keeps: what its gradient reads of sources and feature (:class:`Keeps`), by default all.
        bf16: what it computes in bfloat16 with the precision kBF16 (:class:`Bfloat16`).
        rounds_source: whether it then uses its first source only as factors, which it rounds to bfloat16.
        rounds_gradient: whether it then rounds the gradient for its feature, too.
        rounds_feature: whether a dense layer's feature is then bfloat16, since all its users take it so.
        runs_user_code: whether its passes are a user's, with gradients to check.
        no_gradient_because: why no params below it can be trained, or "".
    """

    source_count: ClassVar[int | None] = None
    optional_sources: ClassVar[int] = 0
    source_kind: ClassVar[SourceKind] = SourceKind.kShaped
    labels: Labels = Labels()
    new_labels: LabelFormat | None = None
    cut: Cut = Cut()
    keeps: Keeps = Keeps()
    is_input: ClassVar[bool] = False
    takes_codes: ClassVar[bool] = False
    vocab_size: int = 0
    is_loss: ClassVar[bool] = False
    is_output: bool = False
    marks_wrong_labels: ClassVar[bool] = False
    metric_names: tuple[str, ...] = ()
    part_shapes: tuple[Shape, ...] = ()
    columns: Columns | None = None
    region: Region | None = None
    label_region: Region | None = None
    source_fill: float = 0.0
    label_format: LabelFormat = LabelFormat()
    bf16: Bfloat16 = Bfloat16.kNothing
    rounds_source: bool = False
    rounds_gradient: bool = False
    rounds_feature: bool = False
    runs_user_code: ClassVar[bool] = False
    no_gradient_because: str = ""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.runs_user_code = cls.runs_user_code or is_user_code(cls)
        if fault := fault_of(cls):
            raise UserError(f"the layer class {cls.__name__} {fault}")
        if "bf16" not in vars(cls) and not vars(cls).keys().isdisjoint(COMPUTING):
            cls.bf16 = Bfloat16.kNothing  # what it computes anew need not take what its base takes
            cls.rounds_source = cls.rounds_gradient = False
        computing = next(base for base in cls.__mro__ if not vars(base).keys().isdisjoint((*PASSES, "keeps")))
        if "keeps" not in vars(computing):
            cls.keeps = Keeps()  # a new gradient may read what its base's does not

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes)
        self.shape: Shape = self.source_shapes[0] if self.source_shapes else ()
        self.params: tuple[ParamSpec, ...] = ()
        if self.source_count is not None:
            self.expect_sources(self.source_count, self.optional_sources)
        if self.labels.source is not None:
            self._expect_labels(self.labels.source)

    @classmethod
    def label_example(cls, settings: Mapping[str, Any], shape: Shape, known: Shape | None = None) -> np.ndarray:
        """Return example labels (1, ...) for a prediction row of ``shape``, to check a user's labels."""
        return np.zeros((1, *shape[:-1]), np.int64)

    @classmethod
    def reads(cls, conf: LayerConf) -> StoreConf | None:
        """Return the configuration of the store that an input layer reads, by default ``store_conf``."""
        return conf.store_conf

    @classmethod
    def open_records(cls, conf: LayerConf, roots: Sequence[str]) -> tuple[Any, RecordInfo] | None:
        """Open an input layer's own records, with their description; None if the layer reads a store."""
        return None

    def regions_read(self) -> tuple[PointRanges | None, PointRanges | None]:
        """Return the points of stored records and labels that an input layer cut by space needs; None for all."""
        return None, None

    def take_region(self, records: Records) -> Records:
        """Cut records down to the points that this worker's part of an input layer needs."""
        return records

    def send_ahead(self, records: Records, ops: Ops) -> Records:
        """Start to copy the next records to the device while it computes, and return them."""
        return records

    def reach(self) -> tuple[Reach, ...] | None:
        """Return which source points a point of the feature needs, along each axis after the channels; None for all."""
        return None

    def same_points(self) -> tuple[Reach, ...]:
        """Return the :meth:`reach` of a layer that needs only the same point of its sources."""
        return (Reach(),) * (len(self.shape) - 2)

    def cut_conf(self, columns: Columns) -> LayerConf:
        """Return the configuration for the worker that computes these ``columns`` of the layer's feature."""
        if not self.cut.width:
            return self.conf
        part = self.settings.replace(**{self.cut.width: columns.stop - columns.start})
        return self.conf.replace(**{type(part).field: part})

    def part(self, conf: LayerConf, source_shapes: Sequence[Shape]) -> Layer:
        """Make the layer for one worker's part, from its configuration and source shapes."""
        return type(self)(conf, source_shapes)

    def source_points(self, axis: int, start: int, stop: int) -> np.ndarray:
        """Return the source points, along an axis, that points ``start`` to ``stop`` - 1 of the feature need.

        FILL (-1) stands for padding.
        """
        reach = self.reach()
        return reach[axis - 2].points(start, stop, self.source_shapes[0][axis]) if reach else np.arange(start, stop)

    def takes_points(self, source: int) -> bool:
        """Whether a part cut by space needs only some points of this source, not the whole feature or labels."""
        return source != self.labels.source

    def gathers_points_because(self) -> str:
        """Return why this layer cannot be cut by space, though its class allows it, or ""."""
        return ""

    @property
    def field_shape(self) -> Shape:
        """The shape (B, C, ...) of the field that workers cut by space: the feature, or the field that it flattens."""
        return self.shape

    @property
    def space_shape(self) -> Shape:
        """The shape of the feature with the axes of ``field_shape``; (B, 1, ...) for one number at each point."""
        field = self.field_shape
        return field if math.prod(self.shape) == math.prod(field) else (field[0], 1, *field[2:])

    def counted_rows(self, rows: int) -> int:
        """Return how many of ``rows`` this worker counts in metrics, so that each row counts once over all workers."""
        return rows if self.region is None or self.region.is_first else 0

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        """Return a worker's part of this layer, which computes the points of ``region``."""
        return self.part(self.conf, source_shapes)

    def copy_for_region(self, region: Region, source_shapes: Sequence[Shape]) -> Self:
        """Return a copy of the layer with the shapes of a worker's region."""
        part = copy.copy(self)
        part.source_shapes, part.shape = tuple(source_shapes), region.part(self.shape)
        return part

    def hand_on_labels(self, labels: Sequence[Any], ctx: Context) -> Any:
        """Return the labels for later layers, by default the first source's that has labels.

        A layer with parts may return a tuple, with labels for each destination.
        """
        return next((array for array in labels if array is not None), None)

    def random(self, ctx: Context) -> Array:
        """Draw uniform numbers (rows, n), one for each unit of a row of the feature.

        A part of a cut layer gets the numbers that the whole layer would draw for its units.
        """
        units = math.prod(self.shape[1:])
        if self.region is None:
            return ctx.random(self.name, units, self.columns)
        whole = self.region.whole(self.shape)[1:]
        if math.prod(whole) <= DRAWN_WHOLE:
            return self.region.of(ctx.random(self.name, math.prod(whole)).reshape(-1, *whole)).reshape(-1, units)
        return ctx.random_runs(self.name, math.prod(whole), row_numbers(whole, self.region))

    @abstractmethod
    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        """Compute the forward pass from ``params`` (ordered as ``self.params``) and ``sources`` (ordered as srclayers).

        An input layer gets one source, a :class:`Records`. With ``recompute`` it is called twice for a batch, and must
        return the same.
        """

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        """Compute the backward pass: return the gradients for the sources and for the params.

        ``grad`` is the gradient for the feature. For parts it is a sequence, with None for a part without a gradient.
        Return None for a source i unless ``needs[i]``, and for params that are not trainable. A loss returns gradients
        of the mean over the *global* batch (``ctx.rows.total``), so that parts add up.
        """
        if any(needs) or self.params:
            raise NotImplementedError(f"{type(self).__name__} has no gradient: it does not define compute_gradient")
        return (None,) * len(needs), ()

    def defer_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> tuple[Sequence[Array | None], Callable[[], Sequence[Array | None]]] | None:
        """Return the gradients for the sources, and a function that computes the gradients for the params later.

        Back-propagation calls it while the worker waits for others.
        """
        return None

    def check_labels(self, sources: Sequence[Layer]) -> None:
        """Raise UserError for labels of source layers that this layer does not support."""

    def check_sources(self, sources: Arrays, ctx: Context) -> None:
        """Raise UserError for sources, such as NaN targets, that made the training loss NaN."""

    def saved_sizes(self, rows: int) -> list[int]:
        """Return the bytes of each array saved for the backward pass of ``rows`` rows, for memory estimates.

        The feature is not counted.
        """
        return []

    def backward_sizes(self, rows: int) -> list[int]:
        """Return the bytes of each scratch array of the backward pass, except the gradients, for memory estimates."""
        return []


AnyLayer = TypeVar("AnyLayer", bound=Layer)


def as_class(cls: type[AnyLayer], layer: Layer, **attributes: Any) -> AnyLayer:
    """Make a layer of class ``cls`` from another layer's attributes, without ``__init__``, as for fused layers."""
    made = cls.__new__(cls)
    vars(made).update(vars(layer), **attributes)
    return made


def float_bytes(rows: int, shape: Shape) -> int:
    """Return the bytes of ``rows`` float32 rows of ``shape``, batch first."""
    return FLOAT_BYTES * rows * math.prod(shape[1:])


def to_matrix(x: Array, ops: Ops) -> Array:
    """Flatten the rows of x (B, ...) to (B, n), in the logical order of axes, without a copy if possible."""
    return x if x.ndim == 2 else ops.flatten(x)


def from_matrix(matrix: Array, like: Array | Shaped, ops: Ops) -> Array:
    """Undo :func:`to_matrix`: return ``matrix`` (B, n) in the shape of ``like`` (B, ...), and its order in memory."""
    if like.ndim == 2:
        return matrix
    return shaped(matrix, like.shape, like.in_order if isinstance(like, Shaped) else like.flags.c_contiguous, ops)


def shaped(x: Array, shape: Shape, in_order: bool, ops: Ops) -> Array:
    """Reshape x (B, ...): ``in_order`` without a copy, else with the fastest layout of images and volumes."""
    return x.reshape(shape) if in_order and x.flags.c_contiguous else ops.unflatten(to_matrix(x, ops), shape)
