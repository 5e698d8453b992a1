"""The configuration of connection layers, and of layers that stand in for others (SINGA 0.3's job.proto)."""

from __future__ import annotations

from dataclasses import field

from dsinga.job.message import Message


class DummyConf(Message):
    """kDummy: a source of random numbers (``input``), an end (``output``), or a pass-through."""

    input: bool = False
    output: bool = False
    shape: list[int] = field(default_factory=list)


class ConcateConf(Message):
    """kConcate."""

    concate_dim: int = 0
    num_concates: int = 1


class SliceConf(Message):
    """kSlice."""

    slice_dim: int = 0
    num_slices: int = 1


class SplitConf(Message):
    """kSplit."""

    num_splits: int = 1


class RNNDummyConf(Message):
    """kRNNDummy."""

    dynamic_srclayer: str | None = None
    shape: list[int] = field(default_factory=list)
    integer: bool = False
    low: float = 0.0
    high: float = 0.0
