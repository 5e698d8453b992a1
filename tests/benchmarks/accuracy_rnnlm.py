"""Compare the perplexity of a word language model with class-factored softmax with that of the same in PyTorch.

    python tests/benchmarks/accuracy_rnnlm.py [--epochs 5] [--hidden 100] [--learning-rate 0.2]

The text is the sample of Mikolov's rnnlm, 81,350 words of 3,720. Both begin with the same params and read the same
words in the same order; the states of the recurrent layer are carried from batch to batch. PyTorch's factored softmax
is implemented here as a masked one over all words. The text is looked for in the folder of real data: DSINGA_DATA, or
../shared/data beside the checkout.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import dsinga
from dsinga.data import RecordStore, import_records
from dsinga.data.sources.windows import Windows
from dsinga.job import Job
from dsinga.models import rnnlm
from dsinga.training import initial_values

RAW = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data")) / "rnnlm-mikolov-sample"
STEPS, BATCH, CLIP = 20, 20, 5.0


def import_texts(folder: Path) -> None:
    """Import the three texts into ``folder``, with the vocabulary of the training text."""
    import_records("text", RAW / "train", folder / "train_text.zarr", words=True)
    options = {"words": True, "vocabulary": str(folder / "train_text.zarr"), "skip_unseen": True}
    for name in ("valid", "test"):
        import_records("text", RAW / name, folder / f"{name}_text.zarr", **options)


class Peer(torch.nn.Module):
    """The net of dsinga.models.rnnlm in PyTorch."""

    def __init__(self, values: dict[str, np.ndarray], starts: list[int]):
        super().__init__()
        self.weights = torch.nn.ParameterDict({name: torch.tensor(value) for name, value in values.items()})
        words, hidden = values["loss_word"].shape
        self.register_buffer("classes", torch.bucketize(torch.arange(words), torch.tensor(starts), right=True) - 1)
        self.hidden = torch.nn.RNN(hidden, hidden, batch_first=True)
        self.hidden.weight_ih_l0, self.hidden.weight_hh_l0 = self.weights["hidden_hx"], self.weights["hidden_hh"]
        self.hidden.bias_ih_l0 = self.weights["hidden_b"]
        self.hidden.bias_hh_l0.requires_grad_(False).zero_()

    def forward(self, codes: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of -log P over the words that follow, and the state."""
        h, state = self.hidden(self.weights["embedding_weight"][codes[:, :-1]], state)
        h, following = h.reshape(-1, h.shape[2]), codes[:, 1:].reshape(-1)
        target_class = self.classes[following]
        others = self.classes != target_class[:, None]
        by_word = (h @ self.weights["loss_word"].T).masked_fill(others, -math.inf).log_softmax(1)
        by_class = (h @ self.weights["loss_class"].T).log_softmax(1)
        rows = torch.arange(len(following))
        return -(by_word[rows, following] + by_class[rows, target_class]).sum(), state


def train_peer(peer: Peer, text: Windows, steps: int, rate: float) -> None:
    """Train by SGD as the job says: the mean over streams of sums over words, each gradient clipped by its norm."""
    params = [param for param in peer.parameters() if param.requires_grad]
    state = torch.zeros(1, BATCH, peer.hidden.hidden_size)
    for step in range(steps):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % len(text)
        loss, state = peer(torch.tensor(text.read(rows)[0].astype(np.int64)), state)
        gradients = torch.autograd.grad(loss / BATCH, params)
        with torch.no_grad():
            for param, gradient in zip(params, gradients, strict=True):
                param -= rate * min(1.0, CLIP / float(gradient.norm())) * gradient
        state = state.detach()


def perplexity(peer: Peer, text: Windows) -> float:
    """Return the perplexity of a text, with each window beginning with a state of zeros."""
    codes = torch.tensor(text.read(np.arange(len(text)))[0].astype(np.int64))
    with torch.no_grad():
        parts = [peer(part, torch.zeros(1, len(part), peer.hidden.hidden_size))[0] for part in codes.split(BATCH)]
    return math.exp(float(sum(parts)) / (len(text) * STEPS))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import_texts(folder)
        texts = {part: RecordStore(folder / f"{part}_text.zarr") for part in ("train", "valid", "test")}
        windows = {part: Windows(store, BATCH, STEPS) for part, store in texts.items()}
        words = texts["train"].read(np.arange(len(texts["train"])))[0]
        counts = np.bincount(words, minlength=len(texts["train"].vocabulary)).tolist()
        steps = arguments.epochs * windows["train"].windows_per_stream
        quiet = {"train_steps": steps, "disp_freq": 0, "validate_freq": 0, "test_freq": 0}
        job = rnnlm(counts, name, hidden=arguments.hidden, learning_rate=arguments.learning_rate, **quiet)
        starts = job.net.layer[-1].classsoftmaxloss_conf.class_start
        print(f"{steps} steps, {len(counts)} words in {len(starts)} classes", flush=True)
        print("           valid   test  seconds", flush=True)
        show("dsinga", *train_ours(job))
        params = dsinga.build_net(job).params
        values = initial_values({name: param for name, param in params.items() if param.trainable}, job.seed)
        peer, began = Peer(values, starts), time.perf_counter()
        train_peer(peer, windows["train"], steps, arguments.learning_rate)
        seconds = time.perf_counter() - began
        show("PyTorch", *(perplexity(peer, windows[part]) for part in ("valid", "test")), seconds)


def train_ours(job: Job) -> tuple[float, float, float]:
    """Return the perplexities and the seconds of the job."""
    began = time.perf_counter()
    result = dsinga.train(job, workers=1, progress=False)
    seconds = time.perf_counter() - began
    perplexities = [math.exp(dsinga.evaluate(job, result.params, phase)["entropy"]) for phase in ("val", "test")]
    return perplexities[0], perplexities[1], seconds


def show(name: str, valid: float, test: float, seconds: float) -> None:
    """Print a row."""
    print(f"{name:8} {valid:7.2f} {test:6.2f} {seconds:8.0f}", flush=True)


if __name__ == "__main__":
    main()
