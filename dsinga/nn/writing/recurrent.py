"""States of imported recurrent layers as symbolic tensors: after the last step, and before the first."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.nn.writing.tensor import Tensor, joined


def last_states(y: Tensor, size: int) -> list[Tensor]:
    """Return each direction's last state h, (B, H), from all states (B, T, D·H)."""
    return [y[:, -1]] if y.shape[2] == size else [y[:, -1, :size], y[:, 0, size:]]


def stacked_states(states: Sequence[Tensor]) -> Tensor:
    """Stack states (B, H) of layers and directions to one tensor (B, L, H)."""
    return joined([x.reshape((x.shape[0], 1, x.shape[1]), ".state") for x in states], 1)


def first_state(states: Sequence[Tensor | None]) -> Tensor:
    """Join the states before the first step, an LSTM's h and c side by side; None stands for zeros."""
    some = next(x for x in states if x is not None)
    parts = [some * 0.0 if x is None else x for x in states]
    return joined(parts, max(x.rank for x in parts) - 1)
