"""The settings of a layer, its params and its store in a job (LayerProto, ParamProto, StoreProto of SINGA 0.3)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsinga.base.registry import find, register
from dsinga.job.component import Component, Settings, required, setting
from dsinga.job.enums import AugmentationType, InitMethod, LayerType, ParamType, Phase, UnrollConnType
from dsinga.job.limits import Count, Natural, NonNegative, PartitionDim, Parts, Positive, Steps
from dsinga.job.message import Message, added_fields


class AugmentConf(Component):
    """A random change of training records: a built-in one by ``type``, or a registered one by ``user_type``.

    Args:
        type: the type of the augmentation.
        user_type: the name of your own augmentation.
    """

    kind: ClassVar = "augmentation"
    flat: ClassVar = True

    type: AugmentationType = AugmentationType.kUserAugmentation
    user_type: str | None = None


@register("source", "zarr", "kvfile", "textfile", "lmdb", "imagefolder", "hdfsfile")  # which have no other settings
class StoreConf(Settings, Component):
    """The store that an input layer reads or an output layer writes.

    ``backend`` may name a source of your own (:class:`dsinga.data.DataSource`). In Python, ``records``
    (:func:`dsinga.data.open_records`) replace ``path``; job files and pickles leave them out.
    """

    kind: ClassVar = "source"
    type_field: ClassVar = "backend"
    user_field: ClassVar = "backend"
    is_user: ClassVar = True
    _records: ClassVar[Any] = None

    backend: str | None = setting(
        None, "the format of the store, or a source of your own; by default the path and the contents tell it"
    )
    path: str | None = setting(None, "the path of the store")
    site_path: list[str] = setting(
        [],
        "the path of the store of each site (worker group), in order. Other sites do not open it. Without a "
        "path, the driver reads the first one",
    )
    separator: str = setting(",", "what separates the numbers of a text file")
    mean_file: str | None = setting(None, "the path of the mean that is subtracted from a record")
    std_file: str | None = setting(None, "the path of the standard deviations that a record is divided by")
    mean_value: float | None = setting(None, "a number that is subtracted from all numbers of a record")
    std_value: Positive | None = setting(None, "a number that all numbers of a record are divided by")
    batchsize: list[Count] = setting(
        [], "the rows of a batch of the whole worker group; several numbers are for the workers in order"
    )
    shape: list[Count] = setting([], "the shape of a record; by default the shape in the store")
    channels_last: bool = setting(
        False,
        "whether a record is an image (height, width, channels), or a volume with a depth before it; the feature has "
        "its channels first",
    )
    encoded: bool = setting(False, "whether the records are encoded images")
    random_skip: Natural = setting(0, "the largest number of records to skip at the start")
    shuffle: bool = setting(True, "whether training reads the records in a random order, another one each epoch")
    group_by_length: Natural = setting(
        0,
        "how many batches of sequences training sorts by length together, so that a batch has similar lengths; "
        "0 for none, 50 is usual",
    )
    has_label: bool = setting(True, "whether the records have labels")
    prefetching: bool = setting(False, "has no effect: batches are always read ahead")
    data: str | None = setting(None, "the array of records in a zarr group; by default it is guessed")
    label: str | None = setting(None, 'the array of labels in a zarr group, "" for no labels; by default it is guessed')
    augment: list[AugmentConf] = setting([], "random changes of the records in training, in this order")

    @property
    def definition(self) -> dict[str, Any]:
        """How records are made of data: the messages, such as ``windows``, by field; {} if none."""
        fields = {name: getattr(self, name) for name in sorted(added_fields(StoreConf))}  # scaled refuses before table
        return {name: value for name, value in fields.items() if hasattr(value, "open_records")}

    @property
    def type_name(self) -> str:
        """The name of the format or source that opens the store."""
        return self.backend or "zarr"

    @property
    def has_records(self) -> bool:
        """Whether the layer has data: at a path, bound in Python, or from a source."""
        source = find(self.kind, self.type_name)
        return bool(self.path or self.site_path) or self.records is not None or not getattr(source, "needs_path", True)

    @property
    def records(self) -> Any:
        """The data that the layer reads in place of ``path``, or None."""
        return self._records

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("_records" if name == "records" else name, value)

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        # Nets are sent to every worker with the configurations of their layers; arrays are sent with the batch reader.
        return {name: value for name, value in vars(self).items() if name != "_records"}


class DataConf(Settings):
    """Settings of SINGA's old input layers kLMDBData and kShardData."""

    path: str = required("the path of the store")
    batchsize: Count = required("the rows of a batch")
    random_skip: Natural = setting(0, "the largest number of records to skip at the start")


class ParamGenConf(Component):
    """How the initial values of a param are made: a constant or random numbers.

    Args:
        type: the type of the initialiser.
        user_type: the name of your own initialiser.
        value: the constant, or the factor of the random numbers.
        mean: the mean of a normal distribution.
        std: the standard deviation of a normal distribution.
        low: the lower bound of a uniform distribution.
        high: the upper bound of a uniform distribution.
    """

    kind: ClassVar = "initialiser"
    flat: ClassVar = True

    type: InitMethod = InitMethod.kUserInit
    user_type: str | None = None
    value: float = 1.0
    mean: float = 0.0
    std: NonNegative = 1.0
    low: float = -1.0
    high: float = 1.0


class ParamConf(Message):
    """A param of a layer: its name, initial values, scales and sharing.

    Args:
        name: the name; by default the layer's name and the role, as in ``dense_weight``.
        type: ignored, for old job files.
        user_type: accepted for old job files.
        init: the initialiser; by default zeros, or ones for scales and variances.
        lr_scale: the factor of the learning rate.
        wd_scale: the factor of the weight decay.
        share_from: the name of a param to use in place of this one. Gradients add up.
        static: whether the param keeps its value.
        first_step: the step before which the param keeps its value.
        id: ignored, for old job files.
        owner: ignored, for old job files.
        partition_dim: ignored, for old job files.
        shape: ignored, for old job files.
    """

    name: str = ""
    type: ParamType = ParamType.kParam
    user_type: str | None = None
    init: ParamGenConf | None = None
    lr_scale: NonNegative = 1.0
    wd_scale: NonNegative = 1.0
    share_from: str | None = None
    static: bool = False
    first_step: Natural = 0
    id: int | None = None
    owner: int = -1
    partition_dim: int | None = None
    shape: list[Count] = field(default_factory=list)


class LayerConf(Component):
    """A layer in a job: its type, sources, params, phases, and the settings of its type.

    Args:
        name: the name of the layer. Layers of different phases may have the same name.
        type: the type of the layer.
        user_type: the name of your own layer.
        srclayers: the names of the layers that this layer reads, in order.
        include: the phases that have the layer; by default all.
        exclude: the phases that do not have it.
        share_src_blobs: ignored, for old job files.
        unroll_len: the number of time steps; by default the net's. 1 keeps the layer out of unrolling.
        unroll_index: the time step of a copy that unrolling made; not in job files.
        copy_number: the number of a copy for records of several leads; not in job files.
        per_step: whether a layer for rows is computed at each step of a sequence.
        unroll_conn_type: which time steps of a source a copy reads: its own, all, or the last.
        shift: by how many steps the source is earlier.
        partition_dim: the axis on which the layer is cut: 0 for rows, 1 for features, 2 to 4 for points of fields.
        partition_grid: the numbers of workers along the axes of points, starting with ``partition_dim``.
        partition_id: the number of a part of a cut layer; not in job files.
        num_partitions: the number of parts of a cut layer; not in job files.
        location: the worker of the group that computes the layer.
        recompute: whether the output is freed after the forward pass and computed again in the backward pass.
        store_conf: the store that an input layer reads or an output layer writes.
        lmdbdata_conf: settings of kLMDBData.
        sharddata_conf: settings of kShardData.
        param: the params, in the order of the layer's type.
    """

    aliases: ClassVar = {"srclayer": "srclayers"}
    kind: ClassVar = "layer"

    name: str
    type: LayerType = LayerType.kUserLayer
    user_type: str | None = None
    srclayers: list[str] = field(default_factory=list)
    include: list[Phase] = field(default_factory=list)
    exclude: list[Phase] = field(default_factory=list)
    share_src_blobs: bool = False
    unroll_len: Steps | None = None
    unroll_index: int | None = None
    copy_number: Count | None = None
    per_step: bool = False
    unroll_conn_type: list[UnrollConnType] = field(default_factory=list)
    shift: list[Natural] = field(default_factory=list)
    partition_dim: PartitionDim | None = None
    partition_grid: list[Parts] = field(default_factory=list)
    partition_id: int = 0
    num_partitions: Parts = 1
    location: Natural | None = None
    recompute: bool = False
    store_conf: StoreConf | None = None
    lmdbdata_conf: DataConf | None = None
    sharddata_conf: DataConf | None = None
    param: list[ParamConf] = field(default_factory=list)

    if TYPE_CHECKING:  # the settings of each type are fields, too

        def __init__(self, **fields: Any) -> None: ...

    @property
    def title(self) -> str:
        """The name of the layer in errors."""
        return f"layer {self.name!r}: {self.type_name}"

    def in_phase(self, phase: Phase) -> bool:
        """Whether the layer belongs to the net of a phase, such as training."""
        return included(self.include, self.exclude, phase)


def included(include: Collection[Phase], exclude: Collection[Phase], phase: Phase) -> bool:
    """Whether a phase has a layer with this ``include`` and ``exclude``; without both, all phases do."""
    return (not include or phase in include) and phase not in exclude
