"""The schema of a param and its initialiser: ParamProto of SINGA 0.3's job.proto."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from dsinga.job.enums import InitMethod, ParamType
from dsinga.job.limits import Count, NonNegative
from dsinga.job.message import Message


class ParamGenConf(Message):
    """The initialiser of a param."""

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
