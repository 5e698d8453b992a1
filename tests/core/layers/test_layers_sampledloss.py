"""kSampledLoss against a loop by hand, the expectation over its random words, and the full softmax."""

from typing import Any

import numpy as np
import pytest

from dsinga.base.registry import lookup
from dsinga.job import LayerConf, Phase
from dsinga.layers import Layer
from dsinga.ops import BACKENDS
from tests.support.layer_cases import context
from tests.support.refusals import refused

CTX = context(BACKENDS["numpy"]())
WORDS, INPUTS = 9, 4
COUNTS = [40, 20, 10, 9, 5, 5, 3, 2, 1]


def make(*shape: int, **settings: Any) -> Layer:
    settings = {"vocab_size": WORDS, **settings}
    conf = LayerConf(name="loss", type="kSampledLoss", srclayers=["x", "data"], sampledloss_conf=settings)
    return lookup("layer", "kSampledLoss")(conf, [shape, shape[:-1]])


def arrays(*shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    x, labels = rng.normal(size=shape), rng.integers(WORDS, size=shape[:-1])
    return x, labels, rng.normal(size=(WORDS, INPUTS)), rng.normal(size=WORDS)


def words_of(layer: Layer, labels: np.ndarray, ctx: Any = CTX) -> tuple[np.ndarray, np.ndarray]:
    places = np.arange(labels.size)
    return layer._words(labels.reshape(-1), places, labels.shape, ctx)


def test_the_loss_is_that_of_a_loop_over_the_words():
    layer = make(4, INPUTS)
    x, labels, weight, bias = arrays(4, INPUTS)
    words, _ = words_of(layer, labels)
    assert words.shape == (4, 6)

    def log_sigmoid(score: float) -> float:
        return -np.log1p(np.exp(-score))

    total = 0.0
    for row, (label, *noise) in enumerate(words.tolist()):
        total -= log_sigmoid(x[row] @ weight[label] + bias[label])
        total -= sum(log_sigmoid(-(x[row] @ weight[word] + bias[word])) for word in noise if word != label)
    output = layer.compute_feature([weight, bias], [x, labels], CTX)
    assert output.metrics["loss"] == (pytest.approx(total), 4)
    np.testing.assert_allclose(output.feature, 1 / (1 + np.exp(-(x * weight[labels]).sum(1) - bias[labels])))


@pytest.mark.parametrize("counts", [[], COUNTS, [0, 4, 0, 0, 0, 1, 0, 0, 0]])
def test_random_words_have_their_probabilities_and_are_others_for_each_row_and_step(counts: list[int]):
    layer = make(5, INPUTS, num_samples=40_000, counts=counts)
    labels = np.zeros(5, int)
    words = words_of(layer, labels)[0][:, 1:]
    ranks = np.log(np.arange(2, WORDS + 2) / np.arange(1, WORDS + 1))  # Zipf's law, without counts
    shares = np.array(counts, float) ** 0.75 if counts else ranks
    np.testing.assert_allclose(
        np.bincount(words.ravel(), minlength=WORDS) / words.size, shares / shares.sum(), atol=4e-3
    )
    assert (words[0] != words[1]).any()
    assert (words != words_of(layer, labels, context(BACKENDS["numpy"](), step=4))[0][:, 1:]).any()
    assert (words == words_of(layer, labels, context(BACKENDS["numpy"](), phase=Phase.kTest))[0][:, 1:]).all()


def test_the_gradient_of_nce_is_on_average_that_of_the_full_softmax_where_scores_are_normalised():
    """Mnih and Teh 2012, section 3: for many samples the gradient becomes that of the maximum likelihood."""
    layer = make(2, INPUTS, method="kNCE", num_samples=50_000, counts=COUNTS)
    x, labels, weight, _ = arrays(2, INPUTS)
    x[1] = x[0]
    scores = x[0] @ weight.T
    bias = np.full(WORDS, -np.log(np.exp(scores).sum()))  # so that the exponentials of the scores add up to 1
    output = layer.compute_feature([weight, bias], [x, labels], CTX)
    _, (dweight, _) = layer.compute_gradient([weight, bias], [x, labels], output, None, [False, False], CTX)
    probabilities = np.exp(scores + bias)
    expected = (2 * probabilities - np.bincount(labels, minlength=WORDS)) / CTX.rows.total
    np.testing.assert_allclose(dweight.dense(), expected[:, None] * x[0], atol=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"counts": [1, 2]}, "counts has 2 numbers, but vocab_size is 9; give as many"),
        ({"counts": [0] * 9}, "has counts of 0 only, so that no word can be drawn"),
    ],
)
def test_other_counts_are_refused(settings: dict[str, Any], message: str):
    refused(lambda: make(4, INPUTS, **settings), f"layer 'loss': {message}")
