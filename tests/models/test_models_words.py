"""Nets of word vectors: the losses of PyTorch for the same params and batches."""

import numpy as np
import pytest

from dsinga.engine.local_net import LocalNet
from dsinga.job import Job
from dsinga.models import word_ngram

WORDS, ROWS, STEPS = 12, 20, 15
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
