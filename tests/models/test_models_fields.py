"""Nets for fields beside the same nets in PyTorch: the loss of each of 50 steps; what they refuse; cut nets."""

from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from tests.support.torch_fields import Peer
from tests.support.torch_training import losses_of_both

ROWS, STEPS, RATE = 4, 50, 0.03  # at 0.05 a number may fall on the other side of a rectifier on some processors


def batches(model: nn.Model) -> tuple[np.ndarray, np.ndarray]:
    """Return records and targets of 50 steps."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(STEPS, ROWS, *model.inputs[0].shape[1:])).astype(np.float32)
    return x, np.tanh(x[:, :, :1] + np.roll(x[:, :, 1:2], 2, -1)).astype(np.float32)


@pytest.mark.parametrize(
    ("padding", "normalisation"),
    [("periodic", "batch"), (("edge", "periodic"), "group"), (("zero", "reflect"), "none")],
)
def test_a_unet_has_the_losses_of_pytorchs_in_each_of_50_steps(padding: Any, normalisation: Any) -> None:
    model = models.unet((2, 16, 8), 1, width=8, depth=2, padding=padding, normalisation=normalisation)
    sides = (padding, padding) if isinstance(padding, str) else padding
    forward = lambda params, x: Peer(params, sides, normalisation).unet(x, 2)  # noqa: E731
    ours, theirs = losses_of_both(model, forward, *batches(model), RATE)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=3e-5)


@pytest.mark.parametrize("normalisation", ["batch", "group"])
def test_a_residual_net_has_the_losses_of_pytorchs_in_each_of_50_steps(normalisation: Any) -> None:
    model = models.field_resnet((2, 8, 12), 1, width=8, blocks=2, normalisation=normalisation)
    forward = lambda params, x: Peer(params, ("zero", "periodic"), normalisation).field_resnet(x, 2)  # noqa: E731
    ours, theirs = losses_of_both(model, forward, *batches(model), RATE)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=3e-5)
