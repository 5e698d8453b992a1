"""Training a model beside the same net in PyTorch, from the same params on the same batches."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dsinga import nn
from tests.support.later_import import functional, torch


def losses_of_both(
    model: nn.Model, forward: Callable[[dict[str, Any], Any], Any], x: np.ndarray, y: np.ndarray, rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of SGD with momentum by dsinga and by PyTorch, a step for each batch in ``x`` and ``y``.

    ``forward`` computes what PyTorch predicts, from the params and the records of a batch.
    """
    y = y.reshape(*y.shape[:2], -1)
    model.compile(nn.SGD(rate, 0.9), "mse")
    net = nn.LocalNet(model.job(x[0], y[0], train_steps=1), x[0], y[0], threads=1)
    params, updater = net.initial_params(), net.updater()
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    trained = [tensor for name, tensor in tensors.items() if not name.endswith(("_mean", "_variance"))]
    optimizer = torch.optim.SGD(trained, rate, momentum=0.9)
    ours, theirs = [], []
    for records, labels in zip(x, y, strict=True):
        gradients, metrics = net.backward(params, records, labels)
        updater.step(params, gradients)
        ours.append(metrics["loss"])
        loss = functional.mse_loss(forward(tensors, torch.tensor(records)).flatten(1), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(float(loss.detach()))
    return np.array(ours), np.array(theirs)
