"""Layer, the base class of all layers: a pure function of its params, its sources and a context."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from dsinga.job import LayerConf, Message, StoreConf
from dsinga.job.component import Settings
from dsinga.job.limits import out_of_range
from dsinga.layers.context import Columns, Context, RecordInfo, Records, Shape
from dsinga.ops import Array, Ops

FLOAT_BYTES = 4  # of a number in float32
Arrays = Sequence[Any]  # of the backend; among sources also Records, labels and tuples of parts
Gradients = tuple[Sequence[Array | None], Sequence[Array | None]]  # for the sources, for the params


@dataclass(frozen=True)
class ParamSpec:
    """A param of a layer: its role, its shape, and how it is cut, filled and updated.

    ``role`` ("weight", "bias", ...) names the param when the job does not. ``cut_axis`` is the axis cut with the
    layer's dimension 1, None if the param is replicated. ``trainable`` is False for lasting state (running means):
    its new value is sent in place of a gradient, and replaces the old one. ``initial`` fills it if the job has no
    ``init``. ``static`` says that no step changes it, as ``static`` of a job's param does.

    ``sparse`` says that its gradient may be a :class:`dsinga.ops.SparseRows`: then only these rows are sent and
    updated. Where it must be added to a dense gradient, it is made dense.

    ``by_rows`` is for state (B, ...) with an entry for each row of the batch, such as the hidden state that a recurrent
    layer carries over to the next batch: a worker that computes some rows of the batch gets and returns these rows of
    the param. Such a param exists in training only: in other phases the layer is made without it.
    """

    role: str
    shape: Shape
    cut_axis: int | None = 0
    trainable: bool = True
    initial: float = 0.0
    by_rows: bool = False
    sparse: bool = False
    static: bool = False


class Connection(Enum):
    """Which columns (``feature_axis``) of its sources a layer needs for some columns of its feature (SINGA's name)."""

    kOneToOne = 0  # columns of the feature need the same columns of every source
    kOneToAll = 1  # columns of the feature need all columns of every source


class Output(NamedTuple):
    """The result of ``compute_feature``: the feature, and what else the backward pass, labels and metrics need.

    ``feature`` is an array, a tuple of arrays (``Layer.hands_parts``), or None where no destination takes one.
    ``saved`` is whatever ``compute_gradient`` needs besides params, sources and the feature. Layers that make labels
    return them in ``labels``; other layers pass on those of their sources. ``metrics`` maps a name to (sum, count), so
    that parts of a batch add up. ``state`` maps the role of a param that is not trainable to its new value.
    """

    feature: Any
    saved: Any = None
    labels: Array | None = None
    metrics: Mapping[str, tuple[float, float]] = {}
    state: Mapping[str, Array] = {}


class Layer(ABC):
    """Base of all layers: set up once from a configuration and the shapes of the sources, then a pure function.

    A subclass calls ``super().__init__`` and sets ``shape`` (the full feature shape, batch first) and ``params``.
    It raises UserError, through :meth:`fail`, when a source has a shape that it cannot take. ``shape`` is that of the
    global batch: a worker that computes some rows of it gets arrays with fewer rows, so ``compute_feature`` and
    ``compute_gradient`` can rely on ``shape[1:]`` only. No layer changes an array that it is given.

    ``Conf`` declares the settings of its type, and ``settings`` are those of this layer. ``required_fields`` are fields
    of the configuration, such as store_conf, that a job must give a layer without a ``Conf``.
    ``source_count`` is the number of source layers that it takes, None for any number; up to ``optional_sources`` may
    follow them.
    ``label_source`` is the index of the source whose labels (not feature) the layer takes, or None. The entry of
    ``source_shapes`` at this index is the shape of these labels: (B,), (B, K), or (B, T) of sequences.
    ``takes_float_labels`` says that these may be float32; a net refuses float labels for all other layers.
    ``takes_one_label`` says that they must be (B,), ``takes_step_labels`` that they must be (B, T) for a feature
    (B, T, ...); a net checks both.
    ``is_input`` layers read a store: their one source is a :class:`Records`, and they have no source layers.
    ``is_loss`` layers start the gradient: ``compute_gradient`` is called with ``grad`` None.
    ``is_output`` layers take no part in the gradient; only output layers can follow them.
    ``takes_vectors`` layers take each row as a vector, whatever its axes, and so do ``elementwise`` ones, whose feature
    has the shape of the source: an ``nn.Flatten`` before them needs no layer.
    ``hands_parts`` layers give a part of their own to each destination: the feature is a tuple whose i-th entry goes
    to the i-th destination (in the order of the net), ``part_shapes`` has the shape of each, ``shape`` that of the
    whole, and ``grad`` is a sequence with one entry per destination, None where that destination gives no gradient.
    ``makes_labels`` layers give labels of their own; so do input layers. Others pass on those of their sources.
    ``metric_names`` are the names of all metrics that it may report; a job may let its extensions monitor them.
    ``label_shape`` is the shape of one row's label: () for one label, (K,) for several, (T,) for sequences; and
    ``label_dtype`` is int64 or float32, and ``label_names`` are the names of the labels 0, 1, ..., if known. A layer
    that makes labels sets them; for other layers the net does, by their sources. A ``label_dtype`` of None means that
    of the sources' labels.

    Cut by rows (dimension 0), a layer computes any rows of the batch. ``connection`` says how it is cut by features
    (dimension 1); where that is None, it is not, ``gathered_because`` says why, and each worker gathers the features of
    its rows for it. The features are those of ``feature_axis``, 2 for layers that compute sequences (B, T, n). A cut
    keeps ``feature_groups`` equal groups of features whole, such as heads of kAttention; 0 for features that may be cut
    anywhere. ``whole_because``, where it is not empty, says why the layer cannot be cut by rows: one worker then
    computes it on all rows. ``columns`` are those of the whole layer that this part computes, None for all.
    ``starts_gradient`` and ``wants_gradient`` are for bridges, which receive and send a gradient.

    Sequences: a layer over T time steps has the feature (B, T, ...), batch first, so that rows mean the same as
    elsewhere; the labels of its steps are (B, T) int64, -1 for the steps after the end of a sequence. A layer that
    needs lengths takes these labels from an optional last source; without it all sequences have length T. The feature
    of a step after the end is 0, and so is its gradient. A layer with ``over_steps`` computes all steps at once:
    ``conf.unroll_len`` is T, None for all steps that the source has; of a source with more steps (kCharRNN gives T + 1)
    it takes those that it needs. Other layers know one step only;
    :class:`dsinga.layers.timedistributed.TimeDistributed` applies them to whole sequences. Where a net must be
    unrolled, each layer is made once for each step, as by SINGA: the copy has its step in ``conf.unroll_index``, and
    the feature (B, ...) of that step; of a source that is not unrolled, such as (B, T + 1) characters, it takes its own
    step. The last source of a copy of an ``is_recurrent`` layer is the feature (B, H) of the step before.
    """

    Conf: ClassVar[type[Settings] | None] = None
    settings: Any = None
    required_fields: ClassVar[tuple[str, ...]] = ()
    source_count: ClassVar[int | None] = None
    optional_sources: ClassVar[int] = 0
    label_source: int | None = None
    is_input: ClassVar[bool] = False
    is_loss: ClassVar[bool] = False
    is_output: bool = False
    elementwise: ClassVar[bool] = False
    takes_vectors: ClassVar[bool] = False
    over_steps: ClassVar[bool] = False
    is_recurrent: ClassVar[bool] = False
    hands_parts: ClassVar[bool] = False
    metric_names: ClassVar[tuple[str, ...]] = ()
    label_shape: Shape = ()
    label_dtype: Any = None
    label_names: tuple[str, ...] = ()
    takes_float_labels: bool = False
    takes_one_label: ClassVar[bool] = False
    takes_step_labels: ClassVar[bool] = False
    makes_labels: bool = False
    connection: Connection | None = None
    feature_axis: int = 1
    feature_groups: int = 0
    gathered_because: str = "does not say how it is cut along features"
    whole_because: str = ""
    columns: Columns | None = None
    starts_gradient: bool = False
    wants_gradient: bool = False

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        self.conf = conf
        self.name = conf.name
        self.source_shapes = tuple(tuple(shape) for shape in source_shapes)
        self.shape: Shape = ()
        self.part_shapes: tuple[Shape, ...] = ()
        self.params: tuple[ParamSpec, ...] = ()
        if self.Conf is not None:
            self.settings = conf.settings_of(self.Conf)
        self._check_numbers()
        if self.source_count is not None:
            self.expect_sources(self.source_count, self.optional_sources)
        if self.label_source is not None:
            self._expect_labels(self.label_source)

    def _check_numbers(self) -> None:
        for message in (self.conf, *(value for value in vars(self.conf).values() if isinstance(value, Message))):
            if isinstance(message, Settings):
                for fault in message.all_faults():
                    raise self.fail(fault.text, message, fault.field)
            else:
                for field, _, value, allowed in out_of_range(message):
                    raise self.fail(f"{field} {allowed.fault(value)}", message, field)

    @classmethod
    def reads(cls, conf: LayerConf) -> StoreConf | None:
        """Return the configuration of the store that an input layer reads, ``store_conf`` by default."""
        return conf.store_conf

    def send_ahead(self, records: Records, ops: Ops) -> Records:
        """Start to copy the records of an input layer to the device, and return them.

        The thread that reads ahead calls this where the backend computes on a device. ``records.data`` may be replaced
        by a running :class:`dsinga.ops.AsyncCopy`; ``compute_feature`` then takes its result.
        """
        return records

    def expect_sources(self, count: int, optional: int = 0) -> None:
        """Raise UserError unless the layer has ``count`` source layers, and at most ``optional`` more."""
        sources = len(self.source_shapes)
        if not count <= sources <= count + optional:
            expected = "no source layer" if count == 0 else "1 source layer" if count == 1 else f"{count} source layers"
            if optional:
                expected = f"{count} or {count + optional} source layers"
            raise self.fail(f"takes {expected}, not {sources}; correct its srclayers", field="srclayers")

    def _expect_labels(self, label_source: int) -> None:
        rows, labels = self.source_shapes[0][0], self.source_shapes[label_source][0]
        if rows != labels:
            raise self.fail(
                f"{self.source_name(0)} gives {rows} rows, {self.source_name(label_source)} {labels} labels; "
                "give both the same batchsize",
                field="srclayers",
            )

    def source_name(self, index: int) -> str:
        """Return the quoted name of a source, or its number where the configuration does not name it."""
        names = self.conf.srclayers
        return repr(names[index]) if index < len(names) else f"source {index}"

    def fail(self, message: str, at: Message | None = None, field: str | None = None) -> Exception:
        """Return a UserError about this layer, with ``message``, file and line; the caller raises it.

        ``at`` is the part of the configuration at fault, if not the layer as a whole; ``field`` is a field of it.
        """
        return (at or self.conf).error(f"layer {self.name!r}: {message}", field)

    def image_shape(self) -> tuple[int, int, int]:
        """Return (C, H, W) of the first source; as in SINGA, a source (B, H, W) is an image of one channel."""
        shape = self.source_shapes[0]
        if len(shape) not in (3, 4):
            raise self.fail(
                f"takes images (batch, channels, height, width), but {self.source_name(0)} gives {as_text(shape)}; "
                "give the shape of a record in the input layer's store_conf",
                field="srclayers",
            )
        channels, height, width = (1, *shape[1:]) if len(shape) == 3 else shape[1:]
        return channels, height, width

    def cut_conf(self, columns: Columns) -> LayerConf:
        """Return the configuration of the part of this layer that computes ``columns`` of its feature."""
        return self.conf

    def part(self, conf: LayerConf, source_shapes: Sequence[Shape]) -> Layer:
        """Return a new layer of this kind with the configuration and the source shapes of a part of it."""
        return type(self)(conf, source_shapes)

    def hand_on_labels(self, labels: Sequence[Any], ctx: Context) -> Any:
        """Return the labels (B, ...) of the first source that has labels, for layers that make none themselves.

        ``labels`` has those of each source, or None. A layer that hands parts may return a tuple, with labels for each
        destination.
        """
        return next((array for array in labels if array is not None), None)

    def random(self, ctx: Context) -> Array:
        """Return (rows, n) uniform numbers by :meth:`Context.random`: one for each unit of a row of the feature.

        A part of a layer that is cut by features gets those that the whole layer would draw for them.
        """
        return ctx.random(self.name, math.prod(self.shape[1:]), self.columns)

    @abstractmethod
    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        """Compute the feature from ``params`` (in the order of ``self.params``) and ``sources`` (in srclayers' order).

        An input layer gets one source, a :class:`Records`. Raises UserError for data that the layer cannot take.
        """

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        """Return the gradients for the sources and for the params.

        ``grad`` is the gradient for the feature. ``needs[i]`` says whether source i needs a gradient; the entry of a
        source that does not is None, and so is that of a param that is not trainable. Gradients of a loss are of the
        mean over the *global* batch (``ctx.rows.total``), so that those of its parts add up.

        A layer that does not define this (an input, an output) has no gradient: that is an error only where one is
        needed.
        """
        if any(needs) or self.params:
            raise NotImplementedError(f"{type(self).__name__} has no gradient: it does not define compute_gradient")
        return (None,) * len(needs), ()

    def saved_sizes(self, rows: int) -> list[int]:
        """Return the bytes of each array that the layer saves for the gradient of ``rows`` rows, beside its feature.

        The planner predicts the memory of a worker by these and by :meth:`backward_sizes`.
        """
        return []

    def backward_sizes(self, rows: int) -> list[int]:
        """Return the bytes of each array that ``compute_gradient`` needs while it runs, beside the gradients."""
        return []


def float_bytes(rows: int, shape: Shape) -> int:
    """Return the bytes of ``rows`` rows in float32 of an array whose shape, batch first, is ``shape``."""
    return FLOAT_BYTES * rows * math.prod(shape[1:])


def as_text(shape: Sequence[int]) -> str:
    """Return a shape as text for messages: (3, 32, 32) as ``3 x 32 x 32``, one of more than eight axes in short."""
    sizes = list(map(str, shape))
    if len(sizes) > 8:
        sizes[4:] = [f"... ({len(sizes)} axes)"]
    return " x ".join(sizes) or "a single number"


def to_matrix(x: Array, ops: Ops) -> Array:
    """Return x (B, ...) as (B, n), in the logical order of its axes, without a copy where possible."""
    return x if x.ndim == 2 else ops.flatten(x)


def from_matrix(matrix: Array, like: Array, ops: Ops) -> Array:
    """Return ``matrix`` (B, n) in the shape of ``like`` (B, ...): undo :func:`to_matrix`."""
    return matrix if like.ndim == 2 else ops.unflatten(matrix, like.shape)
