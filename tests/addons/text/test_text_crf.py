"""kCRF: refused label sequences, and frozen models; KernelContract tests losses, gradients and decoding."""

import math
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.layers import Output
from dsinga.ops import BACKENDS
from tests.core.nn.test_nn_freezing import moved
from tests.support.layer_cases import context, layer_of

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


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([[0, 1], [0, 3]], r"row 1 .* a label that is none of its 3 classes \(0 to 2, or -1 after the end\): 3"),
        ([[0, -2], [0, 1]], r"row 0 .* a label that is none of its 3 classes .*: -2"),
        ([[-1, 1], [0, 1]], r"row 0 .* a label -1 before its last step.*: -1, 1"),
        ([[0, 1], [-1, -1]], r"row 1 .* no step at all.*leave sequences of length 0 out"),
        ([0, 1], r"a label for each of 2 steps, but gets labels of shape \(2,\)"),
    ],
)
def test_wrong_label_sequences_are_refused(tags: list, message: str):
    with pytest.raises(UserError, match=f"layer 'layer': .*{message}"):
        run(np.zeros((2, 2, 3), np.float32), tags)


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


def test_a_loss_that_is_not_called_is_refused():
    with pytest.raises(UserError, match=r"CRF is a function; call it: nn.CRF\(\)"):
        nn.Sequential([nn.Input(4), nn.Dense(3)]).compile("sgd", nn.CRF)
