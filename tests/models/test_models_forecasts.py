"""DeepESD and ConvLSTM beside the same nets in PyTorch, cut, and beside persistence; what they refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from tests.support.later_import import functional, torch
from tests.support.refusals import refused
from tests.support.torch_convlstm import conv_lstm
from tests.support.torch_fields import Peer
from tests.support.torch_training import losses_of_both

ROWS, STEPS = 4, 50


def torch_deepesd(params: dict[str, Any], x: Any) -> Any:
    """Return the net of deep4downscaling's DeepESD: ReLU after each of three padded convolutions, a linear layer."""
    for name in ("conv1", "conv2", "conv3"):
        weight = params[f"{name}_weight"]
        x = functional.conv2d(x, weight.reshape(len(weight), -1, 3, 3), params[f"{name}_bias"], padding=1).relu()
    return functional.linear(x.flatten(1), params["output_weight"], params["output_bias"])


def torch_convlstm(params: dict[str, Any], x: Any) -> Any:
    """Return the encoder and forecaster of two layers: two variables of three steps to two of two steps."""

    def layer(name: str, x: Any, last: bool = False) -> Any:
        hx, hh = (params[f"{name}_{role}"] for role in ("hx", "hh"))
        kernels = (w.reshape(len(w), -1, 3, 3) for w in (hx, hh))
        return conv_lstm(x, *kernels, params[f"{name}_b"], 1, [1] * 4, last)

    x = x.reshape(len(x), 2, 3, *x.shape[2:]).transpose(1, 2)
    x = layer("encoder2", layer("encoder1", x), last=True)
    x = layer("forecaster2", layer("forecaster1", torch.stack([x, x], dim=1)))
    y = torch.einsum("btfhw,cf->bcthw", x, params["output_weight"]) + params["output_bias"][:, None, None, None]
    return y.flatten(1, 2)


def batches(model: nn.Model, targets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return records and targets of 50 steps."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(STEPS, ROWS, *model.inputs[0].shape[1:])).astype(np.float32)
    pattern = rng.normal(size=(x[0, 0].size, targets)).astype(np.float32) / x[0, 0].size ** 0.5
    return x, np.tanh(x.reshape(STEPS, ROWS, -1) @ pattern)


def test_deepesd_has_the_losses_of_pytorchs_in_each_of_50_steps() -> None:
    model = models.deepesd((5, 6, 7), 20)
    ours, theirs = losses_of_both(model, torch_deepesd, *batches(model, 20), 0.05)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_convlstm_has_the_losses_of_pytorchs_in_each_of_50_steps() -> None:
    model = models.convlstm((6, 5, 4), 3, 2, 2, filters=(6, 4))
    ours, theirs = losses_of_both(model, torch_convlstm, *batches(model, 4 * 5 * 4), 0.5)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_the_dense_layer_of_deepesd_may_be_cut_by_points() -> None:
    job = trained(models.deepesd((3, 6, 6), 50, dense_partition_dim=1))
    assert {conf.name: conf.partition_dim for conf in job.net.layer}["output"] == 1


def trained(model: nn.Model) -> Any:
    model.compile("sgd", "mse")
    return model.job(train_steps=1, batch_size=2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: models.deepesd((6, 6), 10), r"takes fields of the shape .channels, height, width., not \(6, 6\)"),
        (lambda: trained(models.deepesd((1, 4, 4), 10, padding=0)), "does not fit images of 2 x 2"),
        (lambda: models.convlstm((4, 6), 2), "takes fields of the shape"),
        (lambda: models.convlstm((5, 6, 6), 2), "which 5 channels cannot be; give steps that divide 5"),
        (lambda: trained(nn.Sequential([nn.Input((3, 4)), nn.Permute((2, 2))])), "each of the numbers 1 to 2 once"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], Any], says: str) -> None:
    refused(lambda: make(), says)


# Nets for fields beside the same nets in PyTorch: the loss of each of 50 steps; what they refuse; cut nets.
RATE = 0.03  # at 0.05 a number may fall on the other side of a rectifier on some processors


def field_batches(model: nn.Model) -> tuple[np.ndarray, np.ndarray]:
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
    ours, theirs = losses_of_both(model, forward, *field_batches(model), RATE)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=3e-5)


@pytest.mark.parametrize("normalisation", ["batch", "group"])
def test_a_residual_net_has_the_losses_of_pytorchs_in_each_of_50_steps(normalisation: Any) -> None:
    model = models.field_resnet((2, 8, 12), 1, width=8, blocks=2, normalisation=normalisation)
    forward = lambda params, x: Peer(params, ("zero", "periodic"), normalisation).field_resnet(x, 2)  # noqa: E731
    ours, theirs = losses_of_both(model, forward, *field_batches(model), RATE)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=3e-5)
