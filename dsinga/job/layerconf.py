"""The schema of a layer, its params and its store: LayerProto, ParamProto and StoreProto of SINGA 0.3's job.proto."""

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
    """A random change of training records: a built-in one by its ``type``, or ``user_type`` names a registered one.

    The settings of its type are fields, too. Not in SINGA.
    """

    kind: ClassVar = "augmentation"
    flat: ClassVar = True

    type: AugmentationType = AugmentationType.kUserAugmentation
    user_type: str | None = None


@register("source", "zarr", "kvfile", "textfile", "lmdb", "imagefolder", "hdfsfile")  # which have no other settings
class StoreConf(Settings, Component):
    """The store from which an input layer reads records, or to which an output layer writes results.

    ``backend`` may name a source of the user's own (:class:`dsinga.data.DataSource`), whose settings are a field.
    In Python, ``records`` may be a source of records (:func:`dsinga.data.open_records`), which the layer reads in place
    of ``path``. It is not a field of the schema: copies keep it, job files and pickles leave it out.
    """

    kind: ClassVar = "source"
    type_field: ClassVar = "backend"
    user_field: ClassVar = "backend"
    is_user: ClassVar = True
    _records: ClassVar[Any] = None

    backend: str | None = setting(
        None, "the format of the store, or a source of your own; told by its path and contents without it"
    )
    path: str | None = setting(None, "the path of the store")
    site_path: list[str] = setting(
        [],
        "the path of the store on which each site (worker group) trains, in order; no other site opens it. Without "
        "path, that of the first site is also read where the job is started; beyond SINGA",
    )
    separator: str = setting(",", "what separates the numbers of a text file")
    mean_file: str | None = setting(None, "the path of the mean that is subtracted from a record")
    std_file: str | None = setting(None, "the path of the standard deviations that a record is divided by")
    mean_value: float | None = setting(None, "a number that is subtracted from all numbers of a record")
    std_value: Positive | None = setting(None, "a number that all numbers of a record are divided by")
    batchsize: list[Count] = setting([], "the rows of a batch; of several numbers each worker has its own")
    shape: list[Count] = setting([], "the shape of a record; that of the store without it")
    channels_last: bool = setting(
        False,
        "whether a record is an image (height, width, channels), or a volume with a depth before it; the feature is "
        "channels first; beyond SINGA",
    )
    encoded: bool = setting(False, "whether the records are encoded images")
    random_skip: Natural = setting(0, "the largest number of records to skip at the start")
    shuffle: bool = setting(
        True, "whether training reads the records in a random order, another one each epoch; beyond SINGA"
    )
    group_by_length: Natural = setting(
        0,
        "how many batches of sequences are sorted by length at a time in training, so that those of a batch have "
        "similar lengths; 0 for none, 50 is usual; beyond SINGA",
    )
    has_label: bool = setting(True, "whether the records have labels")
    prefetching: bool = setting(False, "has no effect: batches are always read ahead")
    data: str | None = setting(None, "the array of records in a zarr group; guessed without it; beyond SINGA")
    label: str | None = setting(
        None, 'the array of labels in a zarr group, "" for no labels; guessed without it; beyond SINGA'
    )
    augment: list[AugmentConf] = setting([], "random changes of the records in training, in this order; beyond SINGA")

    @property
    def definition(self) -> dict[str, Any]:
        """The messages that say how records are made of data, such as windows, by their fields in order, or none."""
        fields = {name: getattr(self, name) for name in sorted(added_fields(StoreConf))}  # scaled refuses before table
        return {name: value for name, value in fields.items() if hasattr(value, "open_records")}

    @property
    def type_name(self) -> str:
        """The name under which the source is registered."""
        return self.backend or "zarr"

    @property
    def has_records(self) -> bool:
        """Whether there are records to read: at a path, in Python, or those of a source that needs no path."""
        source = find(self.kind, self.type_name)
        return bool(self.path or self.site_path) or self.records is not None or not getattr(source, "needs_path", True)

    @property
    def records(self) -> Any:
        """The source that the layer reads in place of ``path``, or None."""
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
    """Settings of kLMDBData and kShardData."""

    path: str = required("the path of the store")
    batchsize: Count = required("the rows of a batch")
    random_skip: Natural = setting(0, "the largest number of records to skip at the start")


class ParamGenConf(Component):
    """The initialiser of a param."""

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
    """A param of a layer: its name (by default made from the layer's), initialiser, scales and sharing.

    Beyond SINGA, as in PaddlePaddle: a ``static`` param keeps its value, and no gradient of it is computed or sent.
    One with a ``first_step`` of training is like that before this step, and so is its state of the updater.
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
    """A layer: its type, its sources, its params, the phases it belongs to, and the settings of its type.

    ``unroll_len`` is the number of time steps, None for the net's; 1 keeps the layer out of unrolling. ``unroll_index``
    is the time step of a copy made by unrolling, ``copy_number`` the number of a copy ``leadn#name`` for records of
    several leads, which has the same params; both are None in a job. ``per_step`` applies a layer for single steps to
    each step of whole sequences, without unrolling, so that phases may have sequences of different lengths. Beyond
    SINGA 0.3's source: ``location``, which its documentation and the paper have (5.3), puts the layer on one worker of
    the group; ``partition_grid`` has the numbers of workers along the axes of points from ``partition_dim`` on, one for
    stripes, two for blocks; with ``recompute`` the layer's feature is freed after the forward pass and computed again
    in the backward pass, to need less memory.
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
        """The words by which errors name the layer."""
        return f"layer {self.name!r}: {self.type_name}"

    def in_phase(self, phase: Phase) -> bool:
        """Whether the layer belongs to the net of ``phase``."""
        return included(self.include, self.exclude, phase)


def included(include: Collection[Phase], exclude: Collection[Phase], phase: Phase) -> bool:
    """Whether a layer with this ``include`` and ``exclude`` belongs to ``phase``; without them it belongs to all."""
    return (not include or phase in include) and phase not in exclude
