"""Losses of targets that are fields, against PyTorch: masked points, weights of points, units of channels."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga.job import Phase
from dsinga.layers.losses.field_targets import FieldTargets
from dsinga.ops import BACKENDS
from dsinga.testing.layer_cases import available_backends
from tests.support.later_import import functional, torch
from tests.support.layer_cases import BATCH, context, layer_of
from tests.support.refusals import refused

SPACES = [(7,), (4, 3), (2, 3, 4)]
PEERS: dict[str, tuple[dict[str, Any], Callable[[Any, Any], Any]]] = {
    "kEuclideanLoss": ({}, lambda x, t: functional.mse_loss(x, t, reduction="none")),
    "kAbsoluteLoss": ({}, lambda x, t: functional.l1_loss(x, t, reduction="none")),
    "kHuberLoss": ({"delta": 0.6}, lambda x, t: functional.huber_loss(x, t, reduction="none", delta=0.6)),
}


def fields(space: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictions (B, 2, *space), targets with NaN, and weights (B, 1, *space)."""
    rng = np.random.default_rng(len(space))
    prediction, target = rng.normal(size=(2, BATCH, 2, *space)).astype(np.float32)
    target[rng.uniform(size=target.shape) < 0.3] = np.nan
    return prediction, target, rng.uniform(0.5, 1.5, (BATCH, 1, *space)).astype(np.float32)


@pytest.mark.parametrize("backend", available_backends())
@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("kind", PEERS)
def test_a_weighted_mean_over_valid_points(kind: str, space: tuple[int, ...], backend: str):
    """The loss is Σ w·l / (B·n) with n all numbers of a row, whatever is masked, as PyTorch's of the valid points."""
    (prediction, target, weights), (conf, peer) = fields(space), PEERS[kind]
    std = np.array([2.0, 0.5], np.float32)
    settings = {**conf, "masked": True, "weighted": True, "std": std.tolist(), "scale": 1 / prediction[0].size}
    both = np.concatenate([target, weights], axis=1)
    layer = layer_of(kind, prediction.shape, both.shape, **{f"{kind[1:].lower()}_conf": settings})
    ops = BACKENDS[backend]()
    sources = [ops.asarray(array) for array in (prediction, both)]
    output = layer.compute_feature([], sources, context(ops))
    (gradient, _), _ = layer.compute_gradient([], sources, output, None, [True, False], context(ops))

    x, units = torch.tensor(prediction, requires_grad=True), torch.tensor(std).reshape(-1, *[1] * len(space))
    valid = torch.tensor(~np.isnan(target))
    losses = peer(x / units, torch.tensor(np.nan_to_num(target)) / units) * torch.tensor(weights)
    (theirs := torch.where(valid, losses, 0).mean()).backward()
    total, rows = output.metrics["loss"]
    assert total / rows == pytest.approx(theirs.item(), rel=1e-6)
    np.testing.assert_allclose(ops.to_numpy(gradient), x.grad.numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", PEERS)
def test_a_field_without_masks_and_weights_is_the_loss_of_old_in_bits(kind: str):
    prediction, target, weights = fields((4, 3))
    target = np.nan_to_num(target)
    old, ones = layer_of(kind, prediction.shape, target.shape), np.ones_like(weights)
    field = f"{kind[1:].lower()}_conf"
    new = layer_of(kind, prediction.shape, (BATCH, 3, 4, 3), **{field: {"masked": True, "weighted": True}})
    ctx, both = context(BACKENDS["numpy"]()), np.concatenate([target, ones], axis=1)
    outputs = [old.compute_feature([], [prediction, target], ctx), new.compute_feature([], [prediction, both], ctx)]
    np.testing.assert_array_equal(outputs[0].feature, outputs[1].feature)
    assert outputs[0].metrics["loss"] == pytest.approx(outputs[1].metrics["loss"], rel=1e-7)
    grads = [
        old.compute_gradient([], [prediction, target], outputs[0], None, [True, False], ctx)[0][0],
        new.compute_gradient([], [prediction, both], outputs[1], None, [True, False], ctx)[0][0],
    ]
    np.testing.assert_array_equal(*grads)


def test_a_prediction_at_a_masked_point_does_not_matter():
    prediction, target, _ = fields((4, 3))
    layer = layer_of("kEuclideanLoss", prediction.shape, target.shape, euclideanloss_conf={"masked": True})
    wild = np.where(np.isnan(target), np.nan, prediction)
    ctx = context(BACKENDS["numpy"]())
    outputs = [layer.compute_feature([], [x, target], ctx) for x in (prediction, wild)]
    assert outputs[0].metrics == outputs[1].metrics
    assert np.isfinite(layer.compute_gradient([], [wild, target], outputs[1], None, [True, False], ctx)[0][0]).all()


def test_a_target_that_is_nan_is_refused_with_its_place():
    prediction, target, _ = fields((4, 3))
    target = np.nan_to_num(target)
    target[3, 1, 2, 0] = np.nan
    layer, ctx = layer_of("kHuberLoss", prediction.shape, target.shape), context(BACKENDS["numpy"](), Phase.kTest)
    place = r"the target by 'source1' is NaN in row 3 of the batch, channel 1 at point \(2, 0\); .*masked: true"
    refused(lambda: layer.compute_feature([], [prediction, target], ctx), place)
    masked = layer_of("kHuberLoss", prediction.shape, target.shape, huberloss_conf={"masked": True})
    target[4, 0, 1, 1] = np.inf
    refused(lambda: masked.compute_feature([], [prediction, target], ctx), "row 4 of the", "put a numb")


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        ((5, 2, 4, 3), {"weighted": True}, "5 x 2 x 4 x 3, of which the last has weights; give both as many rows"),
        ((5, 3, 4, 3), {"masked": True}, "5 x 2 x 4 x 3, with 'source1', 5 x 3 x 4 x 3; give both as many rows"),
        ((5, 2, 4, 3), {"std": [1.0, 2.0, 3.0]}, "std has 3 numbers, but the target has 2 channels"),
    ],
)
def test_targets_that_do_not_fit_are_refused(target: tuple[int, ...], settings: dict[str, Any], message: str):
    refused(lambda: layer_of("kEuclideanLoss", (5, 2, 4, 3), target, euclideanloss_conf=settings), message)


def test_a_difference_takes_one_new_array():
    """The memory of a difference is that of the field and of a mask, a byte a number."""
    x, target = np.ones((2, BATCH, 2, 64, 64), np.float32)
    layer = layer_of("kEuclideanLoss", x.shape, target.shape, euclideanloss_conf={"masked": True, "std": [2.0]})
    assert isinstance(layer.targets, FieldTargets)
    tracemalloc.start()
    try:
        layer.targets.difference(x, target, BACKENDS["numpy"]())
        assert tracemalloc.get_traced_memory()[1] < 1.5 * x.nbytes
    finally:
        tracemalloc.stop()
