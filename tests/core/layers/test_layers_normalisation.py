"""The running statistics of batch normalisation and the share of dropout, which the contract does not check."""

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.job import Phase
from dsinga.layers import Layer, Rows
from dsinga.layers.dense.batchnorm import RectifiedBatchNorm
from dsinga.ops import BACKENDS
from tests.support.layer_cases import context, layer_of

OPS = BACKENDS["numpy"]()
ROWS = 64


def batches(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(3, 2, (count, ROWS, 4)).astype(np.float32)


def run(layer: Layer, data: np.ndarray, fill: float) -> list[np.ndarray]:
    """Train on each batch in order; return the params. The state is ``fill`` at first."""
    params = [np.full(spec.shape, spec.initial if spec.trainable else fill, np.float32) for spec in layer.params]
    for step, batch in enumerate(data):
        ctx = context(OPS, rows=Rows(0, ROWS, ROWS), step=step)
        state = layer.compute_feature(params, [batch], ctx).state
        params = params[:2] + [state["mean"], state["variance"]]
    return params


def test_the_first_ten_batches_are_averaged_for_any_initial_state():
    layer, data = layer_of("kBM", (ROWS, 4)), batches(10)
    _, _, mean, variance = run(layer, data, fill=-50)
    np.testing.assert_allclose(mean, data.mean(axis=(0, 1)), rtol=1e-5)
    np.testing.assert_allclose(variance, data.var(axis=1, ddof=1).mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize(("conf", "share", "count"), [({}, 0.1, 12), ({"momentum": 0.5}, 0.5, 3)])
def test_later_batches_count_a_tenth_or_the_share_that_the_job_sets(conf: dict[str, float], share: float, count: int):
    layer, data = layer_of("kBM", (ROWS, 4), bm_conf=conf), batches(count)
    before, after = run(layer, data[:-1], fill=0), run(layer, data, fill=0)
    np.testing.assert_allclose(after[2], (1 - share) * before[2] + share * data[-1].mean(axis=0), rtol=1e-5)


def test_the_running_statistics_are_used_outside_training():
    layer, data = layer_of("kBM", (ROWS, 4)), batches(100)
    params = run(layer, data, fill=0)
    feature = layer.compute_feature(params, [data[0]], context(OPS, Phase.kTest, Rows(0, ROWS, ROWS))).feature
    np.testing.assert_allclose(feature, (data[0] - params[2]) / np.sqrt(params[3] + 1e-5), rtol=1e-4, atol=1e-5)
    assert abs(feature.mean()) < 0.2
    assert feature.std() == pytest.approx(1, abs=0.2)


def test_a_mean_far_from_zero_does_not_spoil_the_variance():
    data = (1000 + 0.5 * np.random.default_rng(0).normal(size=(ROWS, 4))).astype(np.float32)
    layer = layer_of("kBM", (ROWS, 4))
    state = layer.compute_feature([np.ones(4)] * 4, [data], context(OPS, rows=Rows(0, ROWS, ROWS), step=0)).state
    np.testing.assert_allclose(state["variance"], data.astype(float).var(axis=0, ddof=1), rtol=1e-6)


@pytest.mark.parametrize("rectified", [False, True])
def test_without_synchronized_the_statistics_are_those_of_the_workers_rows(rectified: bool):
    def no_sum(key: str, array: np.ndarray) -> np.ndarray:
        raise AssertionError(f"{key} is summed over the workers")

    def passes(layer: Layer, rows: Rows, **more: object) -> list[np.ndarray]:
        layer = RectifiedBatchNorm.of(layer) if rectified else layer
        x, grad = batches(2)[:, 20:50]
        params = [np.full(spec.shape, spec.initial + 0.5, np.float32) for spec in layer.params]
        ctx = context(OPS, rows=rows, step=4, **more)
        output = layer.compute_feature(params, [x], ctx)
        (dx,), for_params = layer.compute_gradient(params, [x], output, grad, (True,), ctx)
        return [output.feature, *output.state.values(), dx, *for_params[:2]]

    layer = layer_of("kBM", (ROWS, 4), bm_conf={"synchronized": False})
    part = passes(layer, Rows(20, 50, ROWS), all_reduce=no_sum)
    whole = passes(layer_of("kBM", (30, 4)), Rows(0, 30, 30))
    for actual, expected in zip(part, whole, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_dropout_drops_its_share_of_numbers_channels_or_rows_and_keeps_the_mean():
    x, ctx = np.ones((200, 30, 2, 3), np.float32), context(OPS, rows=Rows(0, 200, 200))
    for unit, axes in (("kNumber", ()), ("kChannel", (2, 3)), ("kRow", (1, 2, 3))):
        layer = layer_of("kDropout", x.shape, dropout_conf={"unit": unit, "dropout_ratio": 0.25})
        feature = layer.compute_feature([], [x], ctx).feature
        assert np.array_equal(feature.min(axis=axes), feature.max(axis=axes))
        dropped = feature.min(axis=axes) == 0
        assert dropped.mean() == pytest.approx(0.25, abs=0.08)
        np.testing.assert_allclose(np.unique(feature), [0, 1 / 0.75], rtol=1e-6)


def test_dropout_of_features_drops_them_at_all_steps():
    x = np.ones((200, 5, 30), np.float32)
    layer = layer_of("kDropout", x.shape, dropout_conf={"unit": "kFeature", "dropout_ratio": 0.25})
    feature = layer.compute_feature([], [x], context(OPS, rows=Rows(0, 200, 200))).feature
    assert np.array_equal(feature.min(axis=1), feature.max(axis=1))
    assert (feature == 0).mean() == pytest.approx(0.25, abs=0.08)
    with pytest.raises(UserError, match="takes sequences .*, whose features it drops at all steps"):
        layer_of("kDropout", (2, 3, 4, 5), dropout_conf={"unit": "kFeature"})


def test_dropout_passes_on_the_same_array_outside_training():
    x = np.ones((5, 3), np.float32)
    assert layer_of("kDropout", x.shape).compute_feature([], [x], context(OPS, Phase.kTest)).feature is x
    layer = layer_of("kDropout", x.shape, dropout_conf={"dropout_ratio": 0.0})
    assert layer.compute_feature([], [x], context(OPS)).feature is x
