"""Options of the exchange between a worker and the servers, and the meter that counts its seconds and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dsinga.cluster.server import Codec, create_codec
from dsinga.job import Compression, PullTime
from dsinga.ops import Array, SparseRows


class ExchangeOptions(NamedTuple):
    """When and how a worker exchanges values and gradients; only ``compression`` changes the numbers of a run.

    Checkpoints do not contain the residuals of kOneBit and kTopK, so a resumed run then has other bits than an unbroken
    one.

    Attributes:
        pull: when values are requested: with the push, or by the lookup that needs them.
        overlap: whether gradients are sent during the backward pass. Otherwise they are sent after it, and the forward
            pass starts when all values have arrived.
        topk_share: the share of a gradient's numbers that kTopK sends.
        bucket_bytes: the size of a bucket; None for the default of :func:`dsinga.cluster.server.fill_buckets`.
    """

    pull: PullTime = PullTime.kAtOnce
    overlap: bool = True
    compression: Compression = Compression.kNone
    topk_share: float = 0.01
    timeout: float = 300.0
    bucket_bytes: int | None = None

    def codec(self) -> Codec | None:
        """Make a codec for gradients, without residuals; None if they are not compressed."""
        return create_codec(self.compression, self.topk_share)


def encode(
    codec: Codec, gradients: Mapping[int, Array | SparseRows], crosses_process: bool
) -> dict[int, Array | SparseRows]:
    """Compress gradients, by slice id; sparse rows are not compressed."""
    encoded: dict[int, Array | SparseRows] = {}
    for id, gradient in gradients.items():
        if isinstance(gradient, SparseRows):
            encoded[id] = gradient
            continue
        payload = codec.encode(id, gradient)
        encoded[id] = payload if crosses_process else codec.decode(payload, gradient.size)
    return encoded


class Meter:
    """Measures how long an iteration waits for servers and workers, and the bytes that it sends and receives."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin an iteration: set all counts to zero."""
        self.waited = 0.0
        self.crossing = 0  # bytes sent to or received from another process
        self.within = 0  # bytes handed over in this process, without a copy

    def count(self, crosses: bool, nbytes: int) -> None:
        """Count bytes that have moved."""
        if crosses:
            self.crossing += nbytes
        else:
            self.within += nbytes
