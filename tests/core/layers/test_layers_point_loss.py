"""Losses and overlaps of a class for each point, against PyTorch and scikit-learn; masked points and weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.ops import BACKENDS
from dsinga.testing.layer_cases import available_backends
from dsinga.training import add_metrics
from tests.support.later_import import functional, torch
from tests.support.layer_cases import BATCH, context, layer_of
from tests.support.refusals import refused

SPACES = [(7,), (4, 3), (2, 3, 4)]
CTX = context(BACKENDS["numpy"]())


def fields(space: tuple[int, ...], classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores, classes (B, 1, *space) float32 with masked points, and weights (B, 1, *space)."""
    rng = np.random.default_rng(classes)
    labels = rng.integers(-1, max(2, classes), (BATCH, 1, *space)).astype(np.float32)
    labels[rng.uniform(size=labels.shape) < 0.2] = np.nan
    weights = rng.uniform(0.5, 1.5, labels.shape).astype(np.float32)
    return rng.normal(size=(BATCH, classes, *space)).astype(np.float32), labels, weights


def run(kind: str, sources: Sequence[np.ndarray], backend: str, **conf: Any) -> tuple[float, np.ndarray, Any]:
    """Return the loss of a batch, the gradient for the scores, and the metrics."""
    ops = BACKENDS[backend]()
    layer = layer_of(kind, *(source.shape for source in sources), **{f"{kind[1:].lower()}_conf": conf})
    placed = [ops.asarray(sources[0]), sources[1]]
    output = layer.compute_feature([], placed, context(ops))
    gradient = layer.compute_gradient([], placed, output, None, [True, False], context(ops))[0][0]
    return output.metrics["loss"][0] / BATCH, ops.to_numpy(gradient), output.metrics


@pytest.mark.parametrize("backend", available_backends())
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_cross_entropy_of_points(space: tuple[int, ...], backend: str):
    scores, labels, weights = fields(space, 3)
    points = int(np.prod(space))
    both = np.concatenate([labels, weights], axis=1)
    loss, gradient, metrics = run("kFieldSoftmaxLoss", [scores, both], backend, weighted=True, scale=1 / points)
    codes = torch.tensor(np.where(labels >= 0, labels, -1)[:, 0].astype(np.int64))
    x = torch.tensor(scores, requires_grad=True)
    losses = functional.cross_entropy(x, codes, ignore_index=-1, reduction="none")
    (theirs := (losses * torch.tensor(weights[:, 0])).sum() / (BATCH * points)).backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-4, atol=1e-7)
    valid = codes.numpy() >= 0
    right = (scores.argmax(axis=1) == codes.numpy())[valid]
    share = np.average(right, weights=weights[:, 0][valid])
    assert metrics["accuracy"][0] / metrics["accuracy"][1] == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("backend", available_backends())
@pytest.mark.parametrize(("space", "classes"), [((7,), 3), ((4, 3), 1), ((4, 3), 4), ((2, 3, 4), 3)], ids=str)
def test_dice_loss(space: tuple[int, ...], classes: int, backend: str):
    """The formula of MONAI's DiceLoss(softmax=True, to_onehot_y=True, reduction="mean"), with weights of points."""
    scores, labels, weights = fields(space, classes)
    both = np.concatenate([labels, weights], axis=1)
    loss, gradient, _ = run("kDiceLoss", [scores, both], backend, weighted=True, smooth=0.1)
    valid = torch.tensor(labels >= 0)
    codes = torch.tensor(np.where(labels >= 0, labels, 0)[:, 0].astype(np.int64))
    x = torch.tensor(scores, requires_grad=True)
    target = codes[:, None] if classes == 1 else functional.one_hot(codes, classes).movedim(-1, 1)
    w = torch.tensor(weights) * valid
    p = torch.sigmoid(x) if classes == 1 else torch.softmax(x, 1)
    axes = tuple(range(2, scores.ndim))
    shared, total = (w * p * target).sum(axes), (w * (p + target)).sum(axes)
    (theirs := (1 - (2 * shared + 0.1) / (total + 0.1)).mean()).backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-4, atol=1e-7)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 12), max_size=3).map(sorted), st.integers(0, 99), st.sampled_from([1, 3, 5]))
def test_overlaps_of_all_records_however_they_were_cut(cuts: list[int], seed: int, classes: int):
    measures = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    scores = rng.uniform(size=(12, classes, 4, 3)).astype(np.float32)
    labels = rng.integers(-1, max(2, classes - 1), (12, 4, 3))  # the last class is never a label
    layer = layer_of("kSegmentationScore", scores.shape, labels.shape)
    parts = zip(np.split(scores, cuts), np.split(labels, cuts), strict=True)
    found = metric_values(add_metrics([dict(layer.compute_feature((), part, CTX).metrics) for part in parts]))
    chosen = scores.argmax(axis=1) if classes > 1 else (scores[:, 0] > 0.5).astype(int)
    pair = labels[labels >= 0], chosen[labels >= 0]
    every = {"labels": range(max(2, classes)), "average": None, "zero_division": 0}
    assert found["iou_by_class"] == pytest.approx(measures.jaccard_score(*pair, **every))
    assert found["dice_by_class"] == pytest.approx(measures.f1_score(*pair, **every))
    assert found["mean_iou"] == pytest.approx(measures.jaccard_score(*pair, average="macro"))
    assert found["dice"] == pytest.approx(measures.f1_score(*pair, average="macro"))
    assert found["pixel_accuracy"] == pytest.approx(measures.accuracy_score(*pair))


def test_points_count_by_their_weights():
    measures = pytest.importorskip("sklearn.metrics")
    scores, labels, weights = fields((4, 3), 3)
    layer = layer_of("kSegmentationScore", scores.shape, (BATCH, 2, 4, 3), segmentationscore_conf={"weighted": True})
    metrics = layer.compute_feature((), [scores, np.concatenate([labels, weights], axis=1)], CTX).metrics
    valid = labels >= 0
    iou = measures.jaccard_score(
        labels[valid], scores.argmax(axis=1)[:, None][valid], average="macro", sample_weight=weights[valid]
    )
    assert metric_values(metrics)["mean_iou"] == pytest.approx(iou, rel=1e-6)


def test_without_points_there_are_no_overlaps():
    layer = layer_of("kSegmentationScore", (2, 3, 4), (2, 4))
    metrics = layer.compute_feature((), [np.zeros((2, 3, 4), np.float32), np.full((2, 4), -1)], CTX).metrics
    assert metric_values(metrics) == {}


@pytest.mark.parametrize("label", [3, -2, 0.5])
@pytest.mark.parametrize("kind", ["kFieldSoftmaxLoss", "kDiceLoss", "kSegmentationScore"])
def test_a_label_that_is_no_class_is_refused_with_its_place(kind: str, label: float):
    labels = np.zeros((3, 1, 4, 2), np.float32)
    labels[2, 0, 3, 1] = label
    message = rf"label {label:g} in row 2 of the batch at point \(3, 1\) is none of its 3 classes \(0 to 2, or -1"
    layer = layer_of(kind, (3, 3, 4, 2), labels.shape)
    refused(lambda: layer.compute_feature([], [np.zeros((3, 3, 4, 2), np.float32), labels], CTX), message)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ((5, 3), (5,), "takes scores of classes for each point"),
        ((5, 3, 4, 2), (5, 2, 4), "takes a class for each of 4 x 2 points, but the labels of 'source1' are 2 x 4"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(scores: tuple[int, ...], labels: tuple[int, ...], message: str):
    refused(lambda: layer_of("kDiceLoss", scores, labels), message)
