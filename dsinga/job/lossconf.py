"""The configuration of losses, and of layers that rank what a net says (SINGA 0.3's job.proto)."""

from __future__ import annotations

from dataclasses import field

from dsinga.job.enums import HingeNorm
from dsinga.job.message import Message


class SoftmaxLossConf(Message):
    """kSoftmaxLoss."""

    topk: int = 1
    scale: float = 1.0


class ClassSoftmaxLossConf(Message):
    """kClassSoftmaxLoss: the number of words, and the first word of each class."""

    vocab_size: int
    class_start: list[int] = field(default_factory=list)


class EuclideanLossConf(Message):
    """kEuclideanLoss."""

    scale: float = 1.0


class SigmoidCrossEntropyLossConf(Message):
    """kSigmoidCrossEntropyLoss."""

    scale: float = 1.0


class HingeLossConf(Message):
    """kHingeLoss."""

    norm: HingeNorm = HingeNorm.L1
    margin: float = 1.0
    topk: int = 1
    scale: float = 1.0


class ArgSortConf(Message):
    """kArgSort, kAccuracy."""

    topk: int = 1
