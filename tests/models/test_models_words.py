"""Nets of word vectors: the losses of PyTorch for the same params and batches, and their job files."""

from __future__ import annotations

import numpy as np
import pytest

from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, Phase
from dsinga.layers import Context, Rows
from dsinga.models import skip_gram, word_ngram
from dsinga.ops import BACKENDS

WORDS, ROWS, STEPS = 12, 20, 15
COUNTS = [50, 30, 20, 9, 8, 7, 5, 4, 3, 2, 2, 1]
RNG = np.random.default_rng(0)


def with_sgd(job: Job) -> Job:
    return job.replace(updater={"type": "kSGD", "learning_rate": {"type": "kFixed", "base_lr": 0.5}})


def losses_of(job: Job, x: np.ndarray, y: np.ndarray) -> tuple[dict[str, np.ndarray], list[float], LocalNet]:
    """Return the first params and the loss of each step of a loop on ``x`` and ``y``."""
    net = LocalNet(job, x[0], y[0])
    params = net.initial_params()
    first = {name: value.copy() for name, value in params.items()}
    updater, losses = net.updater(), []
    for step in range(STEPS):
        result = net.backward(params, x[step], y[step], step=step)
        losses.append(result.metrics["loss"])
        updater.step(params, result.gradients)
    return first, losses, net


def test_the_ngram_net_has_the_losses_of_pytorch():
    torch = pytest.importorskip("torch")
    x, y = RNG.integers(WORDS, size=(STEPS, ROWS, 3)), RNG.integers(WORDS, size=(STEPS, ROWS))
    job = with_sgd(word_ngram(WORDS, context=3, embedding=6, hidden=8, batchsize=ROWS, train_steps=STEPS))
    first, losses, _ = losses_of(job, x, y)
    params = {name: torch.tensor(value, requires_grad=True) for name, value in first.items()}
    optimizer, expected = torch.optim.SGD(params.values(), lr=0.5), []
    for step in range(STEPS):
        vectors = params["vectors_weight"][torch.tensor(x[step])].reshape(ROWS, -1)
        hidden = torch.tanh(torch.nn.functional.linear(vectors, params["hidden_weight"], params["hidden_bias"]))
        scores = torch.nn.functional.linear(hidden, params["scores_weight"], params["scores_bias"])
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(y[step]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert expected[-1] != pytest.approx(expected[0], rel=1e-3)


def test_the_skip_gram_has_the_losses_of_pytorch():
    torch = pytest.importorskip("torch")
    x, y = RNG.integers(WORDS, size=(2, STEPS, ROWS))
    job = with_sgd(skip_gram(COUNTS, embedding=6, batchsize=ROWS, train_steps=STEPS))
    first, losses, _ = losses_of(job, x, y)
    params = {name: torch.tensor(value, requires_grad=True) for name, value in first.items()}
    optimizer, expected = torch.optim.SGD(params.values(), lr=0.5), []
    noise = np.array(COUNTS) ** 0.75
    bounds = np.cumsum(noise / noise.sum())[:-1]
    for step in range(STEPS):
        ctx = Context(BACKENDS["numpy"](), Phase.kTrain, Rows(0, ROWS, ROWS), seed=1, step=step)
        drawn = np.searchsorted(bounds, ctx.uniform("loss", 5), "right")
        words = torch.tensor(np.concatenate([y[step][:, None], drawn], axis=1))
        vectors = params["vectors_weight"][torch.tensor(x[step])]
        scores = (params["loss_weight"][words] * vectors[:, None]).sum(2) + params["loss_bias"][words]
        true = torch.zeros(words.shape)
        true[:, 0] = 1
        real = (words != words[:, :1]) | (true > 0)
        pairs = torch.nn.functional.binary_cross_entropy_with_logits(scores, true, reduction="none")
        loss = (pairs * real).sum() / ROWS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert expected[-1] != pytest.approx(expected[0], rel=1e-3)
