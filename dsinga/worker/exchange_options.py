"""The choices that a run has about the exchange of values and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dsinga.job import Compression, PullTime
from dsinga.ops import Array, SparseRows
from dsinga.server import Codec, create_codec


class ExchangeOptions(NamedTuple):
    """How values and gradients are exchanged. All but ``compression`` leave the numbers as they are.

    ``pull`` says when values are asked for: with the push, or by the lookup that needs them. Without ``overlap``
    gradients are sent after the backward pass and all values are waited for before the forward pass. ``topk_share`` is
    the share of the numbers of a gradient that kTopK sends. What compression has left out so far is no part of a
    checkpoint: a run that is resumed begins without it, so with compression it is not the same bits as one uncut.
    """

    pull: PullTime = PullTime.kAtOnce
    overlap: bool = True
    compression: Compression = Compression.kNone
    topk_share: float = 0.01

    def codec(self) -> Codec | None:
        """Return a new codec for gradients, with no residuals yet; None if they go as they are."""
        return create_codec(self.compression, self.topk_share)


def encode(codec: Codec, gradients: Mapping[int, Array | SparseRows], crosses: bool) -> dict[int, Array]:
    """Return the payloads of gradients by slice id, but of rows; within a process, what a server would make of them."""
    whole = {id: gradient for id, gradient in gradients.items() if not isinstance(gradient, SparseRows)}
    payloads = {id: codec.encode(id, gradient) for id, gradient in whole.items()}
    if crosses:
        return payloads
    return {id: codec.decode(payload, whole[id].size) for id, payload in payloads.items()}
