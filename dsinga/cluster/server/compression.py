"""Compresses the gradients that a worker sends to a server: to bfloat16, or further with error feedback."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from dsinga.base import buffers
from dsinga.job import Compression
from dsinga.ops.types import BFLOAT16

Payload = np.ndarray  # uint8, 1-d


class Codec(ABC):
    """Compresses the gradients of one worker to bytes, and restores gradients from bytes.

    ``encodes_sums`` says that servers also encode the sums that they return to workers.
    """

    encodes_sums: ClassVar[bool] = False

    @abstractmethod
    def encode(self, id: int, gradient: np.ndarray) -> Payload:
        """Compress a gradient of slice ``id``, float32 (size,), to bytes; the gradient stays unchanged."""

    @abstractmethod
    def decode(self, payload: Payload, size: int) -> np.ndarray:
        """Restore a gradient approximately from its bytes, as a new array, float32 (size,)."""


class Bfloat16Codec(Codec):
    """A codec that rounds each number to bfloat16, and keeps no residual.

    Its relative error is at most 2⁻⁸, or larger for subnormal float32 numbers.
    """

    encodes_sums = True

    def encode(self, id: int, gradient: np.ndarray) -> Payload:
        """Round the gradient to bfloat16."""
        rounded = buffers.empty(gradient.shape, dtype=BFLOAT16)
        with np.errstate(invalid="ignore", over="ignore"):  # a diverging run is reported elsewhere
            rounded[...] = gradient
        return rounded.view(np.uint8)

    def decode(self, payload: Payload, size: int) -> np.ndarray:
        """Convert the payload to float32 (size,)."""
        decoded = buffers.empty((size,))
        decoded[...] = payload.view(BFLOAT16)
        return decoded


class FeedbackCodec(Codec):
    """A codec with error feedback: what is omitted of a slice's gradient is added to the next.

    ``residuals`` are the unsent parts of the gradients, float32 (size,), by slice id.
    """

    def __init__(self) -> None:
        self.residuals: dict[int, np.ndarray] = {}

    def encode(self, id: int, gradient: np.ndarray) -> Payload:
        """Compress the gradient plus the previous residual; keep the new residual."""
        residual = self.residuals.get(id)
        with np.errstate(invalid="ignore", over="ignore"):  # a diverging run is reported elsewhere
            total = gradient.copy() if residual is None else np.add(gradient, residual, out=residual)
            payload = self.pack(total)
            total -= self.decode(payload, total.size)
        self.residuals[id] = total
        return payload

    @abstractmethod
    def pack(self, gradient: np.ndarray) -> Payload:
        """Compress ``gradient``, float32 (size,), approximately to bytes."""


class OneBit(FeedbackCodec):
    """A codec that sends one bit a number: its sign, with the means of positive and negative numbers.

    Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent" (Interspeech 2014), with means by column.
    """

    def pack(self, gradient: np.ndarray) -> Payload:
        """Return the means of both signs as float32, then the numbers' signs as bits."""
        positive = gradient >= 0
        count = np.count_nonzero(positive)
        above = gradient.sum(where=positive, dtype=np.float64)
        below = gradient.sum(dtype=np.float64) - above
        means = np.array([below / max(gradient.size - count, 1), above / max(count, 1)], np.float32)
        return np.concatenate([means.view(np.uint8), np.packbits(positive)])

    def decode(self, payload: Payload, size: int) -> np.ndarray:
        """Restore for each number the mean of the numbers with its sign, float32 (size,)."""
        means = payload[:8].copy().view(np.float32)  # a copy, because a payload need not be aligned
        return means[np.unpackbits(payload[8:], count=size)]


class TopK(FeedbackCodec):
    """A codec that sends only the largest numbers in magnitude, a ``share`` of all, with their indices.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (EMNLP 2017).
    """

    def __init__(self, share: float):
        super().__init__()
        assert 0 < share <= 1, share
        self._share = share

    def pack(self, gradient: np.ndarray) -> Payload:
        """Return the indices in rising order as uint32, then the numbers."""
        omitted = gradient.size - math.ceil(self._share * gradient.size)
        indices = np.argpartition(np.abs(gradient), omitted)[omitted:] if omitted else np.arange(gradient.size)
        indices = np.sort(indices).astype(np.uint32)
        return np.concatenate([indices.view(np.uint8), gradient[indices].view(np.uint8)])

    def decode(self, payload: Payload, size: int) -> np.ndarray:
        """Restore the numbers at their indices, with zeros elsewhere, float32 (size,)."""
        indices, numbers = payload.copy().view(np.uint32).reshape(2, -1)
        decoded = np.zeros(size, np.float32)
        decoded[indices] = numbers.view(np.float32)
        return decoded


class Integers(FeedbackCodec):
    """A codec that sends integers of 8 or 4 ``bits``, with a scale for each block.

    The scale maps a block's largest magnitude to the largest integer, 127 or 7. Rounding is to the nearest, not at
    random as in QSGD (Alistarh et al. 2017). A number that is not finite makes its block NaN.
    """

    BLOCK: ClassVar[int] = 128  # numbers; their scale costs a quarter of a bit each

    def __init__(self, bits: int):
        super().__init__()
        assert bits in (4, 8), bits
        self._bits, self._most = bits, (1 << bits - 1) - 1

    def pack(self, gradient: np.ndarray) -> Payload:
        """Return the blocks' scales as float32, then the integers; the first of two 4-bit ones is the low half."""
        count = -(-gradient.size // self.BLOCK)
        blocks = np.zeros((count, self.BLOCK), np.float32)
        blocks.reshape(-1)[: gradient.size] = gradient
        scales = np.abs(blocks).max(axis=1) / np.float32(self._most)
        rounded = np.rint(blocks / np.where(scales > 0, scales, 1)[:, None])
        integers = np.nan_to_num(rounded, posinf=0, neginf=0).astype(np.int8).reshape(-1)
        if self._bits == 4:
            halves = integers.view(np.uint8) & 15
            integers = halves[::2] | halves[1::2] << 4
        return np.concatenate([scales.view(np.uint8), integers.view(np.uint8)])

    def decode(self, payload: Payload, size: int) -> np.ndarray:
        """Restore the integers times their blocks' scales, float32 (size,)."""
        count = -(-size // self.BLOCK)
        scales, integers = payload[: 4 * count].copy().view(np.float32), payload[4 * count :]
        if self._bits == 4:
            halves = np.empty(2 * integers.size, np.uint8)
            halves[::2], halves[1::2] = integers << 4, integers & 240
            signed = halves.view(np.int8) >> 4
        else:
            signed = integers.view(np.int8)
        with np.errstate(invalid="ignore", over="ignore"):  # a diverging run is reported elsewhere
            return (signed.reshape(count, self.BLOCK) * scales[:, None]).reshape(-1)[:size]


def create_codec(compression: Compression, share: float) -> Codec | None:
    """Return a new codec for the job's ``compression``, None without; ``share`` is for kTopK."""
    codecs: dict[Compression, Callable[[], Codec]] = {
        Compression.kOneBit: OneBit, Compression.kTopK: lambda: TopK(share), Compression.kBF16: Bfloat16Codec,
        Compression.kInt8: lambda: Integers(8), Compression.kInt4: lambda: Integers(4),
    }  # fmt: skip
    return None if compression is Compression.kNone else codecs[compression]()


# The bits in which a number of a change is sent; integers with their share of the scale of a block.
BITS = {
    Compression.kNone: 32.0,
    Compression.kBF16: 16.0,
    Compression.kInt8: 8 + 32 / Integers.BLOCK,
    Compression.kInt4: 4 + 32 / Integers.BLOCK,
}
