"""The convolutional LSTM in PyTorch, step by step, beside which kConvLSTM is tested."""

from typing import Any

from tests.support.later_import import functional, torch


def conv_lstm(x: Any, hx: Any, hh: Any, b: Any, stride: int, pad: Any, last: bool) -> Any:
    """Return the layer of Shi et al. without peepholes, written step by step; ``pad`` is torch's."""
    steps, hidden, cell = [], None, 0.0
    for step in range(x.shape[1]):
        sums = functional.conv2d(functional.pad(x[:, step], pad), hx, b, stride)
        if hidden is not None:
            kernel = hh.shape[2:]
            around = [side for size in reversed(kernel) for side in ((size - 1) // 2, size // 2)]
            sums = sums + functional.conv2d(functional.pad(hidden, around), hh)
        i, f, g, o = sums.chunk(4, dim=1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        steps.append(hidden)
    return hidden if last else torch.stack(steps, dim=1)
