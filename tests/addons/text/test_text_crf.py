"""kCRF: refused label sequences, and frozen models; KernelContract tests losses, gradients and decoding."""

import math
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.layers import Output
from dsinga.ops import BACKENDS
from tests.core.nn.test_nn_freezing import moved
from tests.support.later_import import functional, torch
from tests.support.layer_cases import context, layer_of
from tests.support.refusals import check_refusal, refusal, refused

OPS = BACKENDS["numpy"]()
WORDS = np.random.default_rng(0).integers(7, size=(20, 5)).astype(np.uint8)


def run(scores: np.ndarray, tags: Any) -> Output:
    params = [np.zeros((scores.shape[2],) * count, np.float32) for count in (2, 1)]
    return layer_of("kCRF", scores.shape, scores.shape[:2]).compute_feature(
        params, [scores, np.array(tags)], context(OPS)
    )


def test_without_transitions_each_step_is_a_softmax_of_its_own():
    output = run(np.zeros((2, 3, 4), np.float32), [[0, 3, -1], [2, 2, 2]])
    assert output.metrics["loss"] == (pytest.approx(5 * math.log(4)), 2)
    assert output.metrics["accuracy"] == (1, 5)
    assert output.feature.tolist() == [[0, 0, -1], [0, 0, 0]]


@pytest.mark.parametrize("loss", [nn.CRF(), "crf"], ids=str)
def test_a_frozen_model_keeps_the_params_of_its_loss(loss):
    model = nn.Sequential([nn.Input(5), nn.Embedding(7, 4), nn.Dense(3)])
    model.compile("sgd", loss)
    model.trainable = False
    assert not model.trainable
    assert moved(model, WORDS, WORDS % 3) == set()
    model.trainable = True
    assert moved(model, WORDS, WORDS % 3) > {"dense_weight"}


def test_a_frozen_model_keeps_the_params_of_a_loss_with_sources():
    words = nn.Input(5)
    scores = nn.Dense(3, trainable=False)(nn.Embedding(7, 4, trainable=False)(words))
    model = nn.Model(words, scores)
    model.compile("sgd", nn.CRF(name="crf")(scores, labels=words))
    model.fit(WORDS, WORDS % 3, progress=False)
    assert model.trainable
    model.trainable = False
    assert moved(model, WORDS, WORDS % 3) == set()


MISTAKES = [
    refusal(lambda: run(np.zeros((2, 2, 3), np.float32), [[0, 1], [0, 3]]), "3 classes", "the end): 3"),
    refusal(lambda: run(np.zeros((2, 2, 3), np.float32), [[0, -2], [0, 1]]), "3 classes", "none of its"),
    refusal(lambda: run(np.zeros((2, 2, 3), np.float32), [[-1, 1], [0, 1]]), "1 before", "-1, 1"),
    refusal(lambda: run(np.zeros((2, 2, 3), np.float32), [[0, 1], [-1, -1]]), "0 out", "sequences of length"),
    refusal(lambda: run(np.zeros((2, 2, 3), np.float32), [0, 1]), "2 steps", "of shape (2"),
    refusal(lambda: run_ctc(scores()[:1], np.array([[1, 1, 1, 1, 1, 1]]), None), "0 of", "but 9 steps"),
    refusal(lambda: run_ctc(scores()[:1], np.array([[4]]), None), "4 is", "0, the blank"),
    refusal(lambda: run_ctc(scores()[:1], np.array([[2, 0]]), None), "0 is", "its 4 classes"),
    refusal(lambda: run_ctc(scores()[:1], np.array([[-1, 2]]), None), "has -1 before its", "last step"),
    refusal(
        lambda: layer_of("kCTCLoss", (BATCH, STEPS, CLASSES), (BATCH, 3), ctcloss_conf={"blank": 4}),
        "blank is 4",
        "are 4 classes",
    ),
    refusal(lambda: layer_of("kCTCLoss", (BATCH, STEPS, CLASSES), (BATCH, 3), (BATCH, 8)), "'source2'", "5 x 8"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)


# kCTCLoss beside PyTorch's ctc_loss: ragged labels and steps, forward and backward; and what it refuses.
BATCH, STEPS, CLASSES = 5, 9, 4
LABELS = np.array([[1, 1, 3], [2, -1, -1], [3, 2, 3], [-1, -1, -1], [2, 2, -1]])
LENGTHS = np.array([9, 4, 3, 6, 3])


def scores(dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(BATCH, STEPS, CLASSES)).astype(dtype) * 2


def run_ctc(x: np.ndarray, labels: np.ndarray, lengths: np.ndarray | None, **conf: float):
    sources = [x, labels]
    if lengths is not None:
        sources.append(np.where(np.arange(STEPS) < lengths[:, None], 0, -1))
    layer = layer_of("kCTCLoss", *(source.shape for source in sources), ctcloss_conf=conf)
    ctx = context(OPS)
    output = layer.compute_feature([], sources, ctx)
    gradient = layer.compute_gradient([], sources, output, None, [True] + [False] * (len(sources) - 1), ctx)[0][0]
    total, count = output.metrics["loss"]
    return total / count, gradient, output


@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["ragged", "whole"])
@pytest.mark.parametrize("blank", [0, 3])
def test_it_is_ctc_loss_of_torch(blank: int, lengths: np.ndarray | None):
    labels = np.where(LABELS < 0, -1, LABELS if blank == 0 else LABELS - 1)
    x = torch.tensor(scores(), requires_grad=True)
    counts = torch.tensor([STEPS] * BATCH if lengths is None else lengths), torch.tensor((labels >= 0).sum(axis=1))
    logs = x.log_softmax(2).transpose(0, 1)
    loss = functional.ctc_loss(logs, torch.tensor(labels), *counts, blank=blank, reduction="sum") / BATCH
    loss.backward()
    value, gradient, _ = run_ctc(scores(), labels, lengths, blank=blank)
    assert value == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_the_feature_is_the_best_path():
    """Steps of classes a a - b b - - c a: without repeats and blanks a b c a; the fourth sequence has five steps."""
    path = np.array([1, 1, 0, 2, 2, 0, 0, 3, 1])
    x = np.full((BATCH, STEPS, CLASSES), -9.0)
    x[:, np.arange(STEPS), path] = 9
    labels = np.array([[1, 2, 3, 1]] * 3 + [[1, 2, -1, -1]] * 2)
    _, _, output = run_ctc(x, labels, np.array([9, 9, 9, 5, 9]))
    expected = np.full((BATCH, STEPS), -1)
    expected[:, :4] = [1, 2, 3, 1]
    expected[3, 2:] = -1
    np.testing.assert_array_equal(output.feature, expected)
    assert output.metrics["accuracy"] == (4, 5)


def test_long_sequences_neither_overflow_nor_vanish():
    x = np.random.default_rng(0).normal(size=(2, 400, 5)).astype(np.float32) * 50
    labels = np.random.default_rng(1).integers(1, 5, (2, 120))
    layer = layer_of("kCTCLoss", x.shape, labels.shape)
    output = layer.compute_feature([], [x, labels], context(OPS))
    gradient = layer.compute_gradient([], [x, labels], output, None, [True, False], context(OPS))[0][0]
    assert np.isfinite(output.metrics["loss"][0])
    np.testing.assert_allclose(gradient.sum(axis=2), 0, atol=1e-5)  # both are probabilities: of classes, of states


def test_labels_without_places_in_time():
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 5, (200, 3))
    sounds = np.zeros((200, 12, 5), np.float32)
    for step in range(3):
        for part in range(2):
            sounds[np.arange(200), 3 * step + part + rng.integers(0, 2, 200), labels[:, step]] = 1
    x = nn.Input((12, 5))
    made = nn.Model(x, nn.Dense(5)(nn.GRU(16, bidirectional=True, return_sequences=True)(x)))
    made.compile(nn.Adam(0.02), "ctc", metrics=["accuracy"])
    made.fit(sounds, labels, epochs=12, progress=False)
    assert made.evaluate(sounds, labels)["accuracy"] > 0.8
    assert made.predict(sounds).shape == (200, 12, 5)
    refused(lambda: made.fit(sounds, labels, sample_weight=np.ones(200), progress=False), "takes no weights of records")
