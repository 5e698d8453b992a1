"""kClassSoftmaxLoss: the loss is that of a plain loop, and wrong classes are refused."""

import math
from typing import Any

import numpy as np
import pytest

from dsinga.base.registry import lookup
from dsinga.job import LayerConf
from dsinga.layers import Layer
from dsinga.ops import BACKENDS
from tests.support.layer_cases import context
from tests.support.refusals import refused

CTX = context(BACKENDS["numpy"]())
STARTS = [0, 1, 4]
WORDS = 9


def make(*shape: int, **conf: Any) -> Layer:
    settings = {"vocab_size": WORDS, "class_start": STARTS, **conf}
    layer_conf = LayerConf(
        name="loss", type="kClassSoftmaxLoss", srclayers=["rnn", "data"], classsoftmaxloss_conf=settings
    )
    return lookup("layer", "kClassSoftmaxLoss")(layer_conf, [shape, shape[:2]])


def params(inputs: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(WORDS, inputs)), rng.normal(size=(len(STARTS), inputs))]


def probability(x: np.ndarray, word: int, weights: list[np.ndarray]) -> float:
    """P(class)·P(word | class), by the formula."""
    bounds = [*STARTS, WORDS]
    class_ = max(k for k, start in enumerate(STARTS) if start <= word)
    by_class, by_word = np.exp(weights[1] @ x), np.exp(weights[0][bounds[class_] : bounds[class_ + 1]] @ x)
    return by_class[class_] / by_class.sum() * by_word[word - bounds[class_]] / by_word.sum()


def test_the_loss_is_that_of_a_loop_over_the_words():
    x = np.random.default_rng(2).normal(size=(2, 3, 4))
    labels = np.array([[8, 0, 2], [3, -1, -1]])
    output = make(2, 3, 4).compute_feature(params(), [x, labels], CTX)
    real = [(row, step) for row, step in np.ndindex(2, 3) if labels[row, step] >= 0]
    loss = -sum(math.log(probability(x[at], int(labels[at]), params())) for at in real)
    assert output.metrics == {"loss": (pytest.approx(loss), 2), "entropy": (pytest.approx(loss), 4)}
    for at in real:
        assert output.feature[at] == pytest.approx(probability(x[at], int(labels[at]), params()))
    assert output.feature.shape == (2, 3)
    assert not output.feature[labels < 0].any()


def test_without_classes_it_is_a_softmax():
    x, labels = np.random.default_rng(3).normal(size=(5, 4)), np.array([0, 8, 3, 3, 1])
    word = params()[0]
    layer = make(5, 4, class_start=[])
    ((loss, _), _) = layer.compute_feature([word, params()[1][:1]], [x, labels], CTX).metrics.values()
    scores = x @ word.T
    assert loss == pytest.approx((np.log(np.exp(scores).sum(1)) - scores[np.arange(5), labels]).sum())


@pytest.mark.parametrize("starts", [[1, 4], [0, 4, 4], [0, 5, 2], [0, 9]])
def test_classes_that_leave_words_out_are_refused(starts: list[int]):
    refused(lambda: make(5, 4, class_start=starts), "class_start must", "the 9 words")
