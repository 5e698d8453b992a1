"""Smaller gradients: what is left out of one is added to the next, so that nothing is lost, only late.

Both codecs keep the residual of every slice (error feedback) and are deterministic. They shrink what a partition sends
to a server; what the server makes of the payloads is added up and applied like gradients that came as they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from dsinga.job import Compression

Payload = np.ndarray  # uint8, 1-d


class Codec(ABC):
    """Makes payloads of the gradients of one partition, and float32 arrays of payloads.

    ``residuals`` holds by slice id what has been left out so far, float32 (size,).
    """

    def __init__(self) -> None:
        self.residuals: dict[int, np.ndarray] = {}

    def encode(self, id: int, gradient: np.ndarray) -> Payload:
        """Return the payload for a gradient of slice ``id``, float32 (size,), which is left as it is."""
        residual = self.residuals.get(id)
        with np.errstate(invalid="ignore", over="ignore"):  # a run that diverges is not this one's affair
            wanted = gradient.copy() if residual is None else np.add(gradient, residual, out=residual)
            payload = self.pack(wanted)
            wanted -= self.decode(payload, wanted.size)
        self.residuals[id] = wanted
        return payload

    @abstractmethod
    def pack(self, wanted: np.ndarray) -> Payload:
        """Return the payload that stands for ``wanted``, float32 (size,), best."""

    @abstractmethod
    def decode(self, payload: Payload, size: int) -> np.ndarray:
        """Return what a payload stands for, as a new array, float32 (size,)."""


class OneBit(Codec):
    """One bit a number: its sign, which stands for the mean of the positive or of the negative numbers of the slice.

    Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent" (Interspeech 2014), who take means by column.
    """

    def pack(self, wanted: np.ndarray) -> Payload:
        """See :class:`Codec`. Both means as float32, then the signs."""
        positive = wanted >= 0
        count = np.count_nonzero(positive)
        above = wanted.sum(where=positive, dtype=np.float64)
        below = wanted.sum(dtype=np.float64) - above
        means = np.array([below / max(wanted.size - count, 1), above / max(count, 1)], np.float32)
        return np.concatenate([means.view(np.uint8), np.packbits(positive)])

    def decode(self, payload: Payload, size: int) -> np.ndarray:
        """See :class:`Codec`."""
        means = payload[:8].copy().view(np.float32)  # a copy, because a payload need not be aligned
        return means[np.unpackbits(payload[8:], count=size)]


class TopK(Codec):
    """The ``share`` of the numbers that are largest in magnitude, at least one of each slice, and where they stand.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (EMNLP 2017).
    """

    def __init__(self, share: float):
        super().__init__()
        assert 0 < share <= 1, share
        self._share = share

    def pack(self, wanted: np.ndarray) -> Payload:
        """See :class:`Codec`. The indices, rising, as uint32, then the numbers."""
        left_out = wanted.size - math.ceil(self._share * wanted.size)
        indices = np.argpartition(np.abs(wanted), left_out)[left_out:] if left_out else np.arange(wanted.size)
        indices = np.sort(indices).astype(np.uint32)
        return np.concatenate([indices.view(np.uint8), wanted[indices].view(np.uint8)])

    def decode(self, payload: Payload, size: int) -> np.ndarray:
        """See :class:`Codec`."""
        indices, numbers = payload.copy().view(np.uint32).reshape(2, -1)
        decoded = np.zeros(size, np.float32)
        decoded[indices] = numbers.view(np.float32)
        return decoded


def create_codec(compression: Compression, share: float) -> Codec | None:
    """Return a new codec of the kind that the job asks for, None for none; ``share`` is that of kTopK."""
    if compression is Compression.kNone:
        return None
    return OneBit() if compression is Compression.kOneBit else TopK(share)
