"""The settings of connection layers and of dummy layers (SINGA 0.3's job.proto)."""

from __future__ import annotations

from dataclasses import field

from dsinga.job.message import Message


class DummyConf(Message):
    """Settings of kDummy: it is a source of random numbers (``input``), an end (``output``), or passes data on."""

    input: bool = False
    output: bool = False
    shape: list[int] = field(default_factory=list)


class ConcateConf(Message):
    """Settings of kConcate: the axis on which its sources are joined."""

    concate_dim: int = 0
    num_concates: int = 1


class SliceConf(Message):
    """Settings of kSlice: the axis on which its source is cut, and the number of slices."""

    slice_dim: int = 0
    num_slices: int = 1


class SplitConf(Message):
    """Settings of kSplit: the number of destinations that get the whole feature."""

    num_splits: int = 1


class RNNDummyConf(Message):
    """Settings of kRNNDummy, which gives random numbers in place of a source, or passes its source on."""

    dynamic_srclayer: str | None = None
    shape: list[int] = field(default_factory=list)
    integer: bool = False
    low: float = 0.0
    high: float = 0.0
