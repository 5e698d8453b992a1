"""Nets for fields beside the same nets in PyTorch: the loss of each of 50 steps; what they refuse; cut nets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from dsinga.base.errors import UserError
from tests.support.later_import import functional, torch
from tests.support.torch_fields import Peer

ROWS, STEPS, RATE = 4, 50, 0.03  # at 0.05 a number may fall on the other side of a rectifier on some processors


def losses_of_both(model: nn.Model, forward: Callable[[Peer, Any], Any], padding: Any, normalisation: str) -> Any:
    """Return the losses of 50 steps of SGD with momentum by dsinga and by PyTorch, from the same params, on batches."""
    rng = np.random.default_rng(3)
    shape = model.inputs[0].shape[1:]
    x = rng.normal(size=(STEPS, ROWS, *shape)).astype(np.float32)
    y = np.tanh(x[:, :, :1] + np.roll(x[:, :, 1:2], 2, -1)).astype(np.float32)
    model.compile(nn.SGD(RATE, 0.9), "mse")
    job = model.job(x[0], y[0].reshape(ROWS, -1), train_steps=1)
    net = nn.LocalNet(job, x[0], y[0].reshape(ROWS, -1), threads=1)
    params, updater = net.initial_params(), net.updater()
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    peer = Peer(tensors, (padding, padding) if isinstance(padding, str) else padding, normalisation)
    trained = [tensor for name, tensor in tensors.items() if not name.endswith(("_mean", "_variance"))]
    optimizer = torch.optim.SGD(trained, RATE, momentum=0.9)
    ours, theirs = [], []
    for records, labels in zip(x, y, strict=True):
        gradients, metrics = net.backward(params, records, labels.reshape(ROWS, -1))
        updater.step(params, gradients)
        ours.append(metrics["loss"])
        loss = functional.mse_loss(forward(peer, torch.tensor(records)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(float(loss.detach()))
    return np.array(ours), np.array(theirs)


@pytest.mark.parametrize(
    ("padding", "normalisation"),
    [("periodic", "batch"), (("edge", "periodic"), "group"), (("zero", "reflect"), "none")],
)
def test_a_unet_has_the_losses_of_pytorchs_in_each_of_50_steps(padding: Any, normalisation: Any) -> None:
    model = models.unet((2, 16, 8), 1, width=8, depth=2, padding=padding, normalisation=normalisation)
    ours, theirs = losses_of_both(model, lambda peer, x: peer.unet(x, 2), padding, normalisation)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=3e-5)


@pytest.mark.parametrize("normalisation", ["batch", "group"])
def test_a_residual_net_has_the_losses_of_pytorchs_in_each_of_50_steps(normalisation: Any) -> None:
    model = models.field_resnet((2, 8, 12), 1, width=8, blocks=2, normalisation=normalisation)
    forward = lambda peer, x: peer.field_resnet(x, 2)  # noqa: E731
    ours, theirs = losses_of_both(model, forward, ("zero", "periodic"), normalisation)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=3e-5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: models.unet((1, 12, 16), depth=3), "halves fields 3 times, which 12 x 16 points cannot be"),
        (lambda: models.unet((16, 16)), r"takes fields of the shape \(channels, height, width\), not \(16, 16\)"),
        (lambda: models.unet((1, 8, 8), normalisation="layer"), 'normalisation is "batch", "group" or "none"'),
        (lambda: models.unet((1, 8, 8), padding="circular"), "padding_mode 'circular'; these are zero, edge, reflect"),
        (lambda: models.field_resnet((8, 8)), r"takes fields of the shape"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], nn.Model], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()
