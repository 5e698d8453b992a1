"""Uniform random numbers of single records, keyed by (seed, augmentation, record, epoch)."""

from __future__ import annotations

import functools
import hashlib

import numpy as np

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85  # what is added to the key in each round
_LOW, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)


def uniform(key: tuple[int, int], records: np.ndarray, epochs: np.ndarray, columns: int) -> np.ndarray:
    """Return uniform float64 numbers in (0, 1) of shape (n, ``columns``), a row for each record.

    They are words w of Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011), as
    (w + ½)/2³². The counter is the record, its epoch and the column, so that a row depends on nothing else.

    Args:
        key: two numbers below 2³², as :func:`stream_key` returns them.
        records: the number of each record, (n,) integers.
        epochs: the epoch of each record, (n,) integers.
        columns: how many numbers a record gets.
    """
    blocks = -(-columns // 4)
    records, epochs = np.asarray(records, np.uint64)[:, None], np.asarray(epochs, np.uint64)[:, None]
    shape = len(records), blocks
    counters = records & _LOW, records >> _HALF, epochs & _LOW, np.arange(blocks, dtype=np.uint64)[None, :]
    words = _philox(key, *(np.broadcast_to(counter, shape) for counter in counters))
    numbers = (np.stack(words, axis=2).reshape(shape[0], 4 * blocks)[:, :columns] + 0.5) * 2.0**-32
    return np.ascontiguousarray(numbers)


@functools.cache
def stream_key(seed: int, stream: int) -> tuple[int, int]:
    """Return the key of the random numbers of augmentation number ``stream`` of a job with this seed."""
    digest = hashlib.blake2b(f"augmentation {seed} {stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _philox(
    key: tuple[int, int], c0: np.ndarray, c1: np.ndarray, c2: np.ndarray, c3: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the four 32-bit words of Philox4x32-10 for each counter, as uint64."""
    for number in range(_ROUNDS):
        k0, k1 = (np.uint64((word + number * step) & 0xFFFF_FFFF) for word, step in zip(key, _WEYL, strict=True))
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (second >> _HALF) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> _HALF) ^ c3 ^ k1, first & _LOW
    return c0, c1, c2, c3
