"""kCRF: refused label sequences, and frozen models; KernelContract tests losses, gradients and decoding."""

import math
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.layers import Output
from dsinga.ops import BACKENDS
from tests.core.nn.test_nn_freezing import moved
from tests.support.layer_cases import context, layer_of
from tests.support.refusals import check_refusal, refusal

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
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
