"""The schema of a layer and of its params: LayerProto and ParamProto of SINGA 0.3's job.proto."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from dsinga.job import inputconf
from dsinga.job.component import Component
from dsinga.job.enums import InitMethod, LayerType, ParamType, Phase, UnrollConnType
from dsinga.job.limits import Count, Natural, NonNegative, PartitionDim, Parts, Steps
from dsinga.job.message import Message


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
    extensions: dict[str, Any] = field(default_factory=dict)


class ParamConf(Message):
    """A param of a layer: its name (by default made from the layer's), initialiser, scales and sharing.

    Beyond SINGA, as in PaddlePaddle: a ``static`` param keeps its value, and no gradient of it is computed or sent.
    """

    name: str = ""
    type: ParamType = ParamType.kParam
    user_type: str | None = None
    init: ParamGenConf | None = None
    lr_scale: NonNegative = 1.0
    wd_scale: NonNegative = 1.0
    share_from: str | None = None
    static: bool = False
    id: int | None = None
    owner: int = -1
    partition_dim: int | None = None
    shape: list[Count] = field(default_factory=list)
    extensions: dict[str, Any] = field(default_factory=dict)


class LayerConf(Component):
    """A layer: its type, its sources, its params, the phases it belongs to, and the settings of its type.

    ``unroll_len`` is the number of time steps, None for the net's; 1 keeps the layer out of unrolling. ``unroll_index``
    is the time step of a copy made by unrolling, None in a job. ``per_step`` applies a layer for single steps to each
    step of whole sequences, without unrolling, so that phases may have sequences of different lengths. Beyond SINGA
    0.3's source: ``location``, which its documentation and the paper have (5.3), puts the layer on one worker of the
    group.
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
    per_step: bool = False
    unroll_conn_type: list[UnrollConnType] = field(default_factory=list)
    shift: list[Natural] = field(default_factory=list)
    partition_dim: PartitionDim | None = None
    partition_id: int = 0
    num_partitions: Parts = 1
    location: Natural | None = None
    store_conf: inputconf.StoreConf | None = None
    lmdbdata_conf: inputconf.DataConf | None = None
    sharddata_conf: inputconf.DataConf | None = None
    extensions: dict[str, Any] = field(default_factory=dict)
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
