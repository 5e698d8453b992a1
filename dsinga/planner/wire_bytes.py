"""How many bytes a number takes in a message: 4, or 2 where it is sent in bfloat16."""

from __future__ import annotations

from typing import NamedTuple

from dsinga.job import ClusterConf, Compression, Job, UpdatePlace
from dsinga.layers.connect.bridge import BridgeEnd
from dsinga.layers.interface.layer import FLOAT_BYTES
from dsinga.net.bridges import is_bf16_image

BF16_BYTES = 2


class WireBytes(NamedTuple):
    """The bytes of a number of a pushed gradient, of the reply to it, and whether rounded features are bfloat16."""

    gradient: int = FLOAT_BYTES
    reply: int = FLOAT_BYTES
    bf16: bool = False

    def feature(self, rounded: bool) -> int:
        """Return the bytes of a number that one worker sends another, ``rounded`` in the precision kBF16."""
        return BF16_BYTES if self.bf16 and rounded else FLOAT_BYTES

    def bridge(self, bridge: BridgeEnd, back: bool) -> int:
        """Return the bytes of a number that a bridge sends, ``back`` for those of gradients."""
        is_image = is_bf16_image(bridge.shape, bridge.bf16_gradient)
        return self.feature(bridge.bf16_gradient if back else bridge.bf16_feature or is_image)


def wire_bytes(job: Job, bf16: bool) -> WireBytes:
    """Return the bytes of the numbers that workers of a job send; compression by kOneBit and kTopK is not priced.

    ``bf16`` says whether the workers compute in bfloat16.
    """
    conf = job.cluster or ClusterConf()
    rounds = conf.compression is Compression.kBF16
    returns_sums = conf.update is UpdatePlace.kWorker
    return WireBytes(
        BF16_BYTES if rounds else FLOAT_BYTES, BF16_BYTES if rounds and returns_sums else FLOAT_BYTES, bf16
    )
