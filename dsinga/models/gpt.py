"""A small GPT: a language model of causal attention, which predicts the next code of a text from all codes before it.

Radford et al., Language Models are Unsupervised Multitask Learners (2019), with the changes of LLaMA (Touvron et al.,
2023): RMSNorm before each branch, rotary positions, and SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020). No
layer has a bias. The output layer shares the embedding's weight (Press and Wolf, 2017).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.job import Job
from dsinga.models.blocks import layer, make_job, updater
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import Symbol

STDDEV = 0.02  # the deviation of initial params


@typed("models.")
def gpt(
    vocabulary: int,
    data: str = "",
    *,
    blocks: int = 4,
    width: int = 256,
    heads: int = 4,
    hidden: int = 0,
    steps: int = 256,
    dropout: float = 0.0,
    batchsize: int = 16,
    learning_rate: float = 0.001,
    **job: Any,
) -> Job:
    """Return the job of a small GPT that reads a text imported by ``dsinga data import text``.

    The metric "loss" is the mean cross-entropy of a code, in nats. ``dsinga.generate`` writes texts with the trained
    net.

    Args:
        vocabulary: number of different codes, which ``dsinga data info`` shows.
        data: folder with train_data.zarr and test_data.zarr, made with ``--held-out``.
        blocks: number of blocks, each an attention and a perceptron.
        width: features of a step; a multiple of ``heads``.
        heads: heads of each attention, with an even number of features each.
        hidden: hidden units of each perceptron; defaults to 8/3 of ``width``, rounded up to a multiple of 32.
        steps: number of codes that the net sees at once.
        dropout: fraction of the embeddings and of each branch's output to drop in training.
        batchsize: positions of the text read at once.
        learning_rate: for Adam.
        job: further fields of the job.
    """
    text = {"batchsize": batchsize, "unroll_len": steps, "labels": True}
    parts = (("train", ["kTrain"]), ("test", ["kVal", "kTest"]))
    readers = [
        layer(
            "data",
            "kCharRNN",
            include=phases,
            char_rnn_conf={"path": posixpath.join(data, f"{part}_data.zarr"), **text},
        )
        for part, phases in parts
    ]
    net = _GPTBlocks(width, heads, hidden or -(-8 * width // 96) * 32, blocks, dropout)
    codes = nn.Input(steps, "data")
    x = nn.Embedding(vocabulary, width, nn.RandomNormal(stddev=STDDEV), dense_gradient=True, name="embedding")(codes)
    x = net.drop("embedding", x)
    for number in range(1, blocks + 1):
        x = net.attend(f"block{number}_attention", x)
        x = net.perceptron(f"block{number}_perceptron", x)
    tied = [nn.Param(share_from="embedding_weight")]
    scores = nn.Dense(vocabulary, use_bias=False, name="scores", param=tied)(net.norm("last", x))
    loss = nn.Layer("kSoftmaxLoss", per_step=True, name="loss")(scores, codes)
    adam = updater("kAdam", learning_rate, adam_conf={"beta2": 0.95, "bias_correction": True})
    often = {"train_steps": 5000, "disp_freq": 100, "test_freq": 500, "test_steps": 20}
    return make_job(job, "gpt", [*readers, *confs_of(loss)], adam, **often)


@dataclass
class _GPTBlocks:
    """Makes the layers of a GPT's blocks, with ``width`` features."""

    width: int
    heads: int
    hidden: int
    blocks: int
    dropout: float

    def norm(self, name: str, x: Symbol) -> Symbol:
        return nn.RMSNorm(first_axis=2, name=f"{name}_norm")(x)

    def drop(self, name: str, x: Symbol) -> Symbol:
        return nn.Dropout(self.dropout, name=f"{name}_drop")(x) if self.dropout else x

    def dense(self, name: str, outputs: int, x: Symbol, stddev: float = STDDEV) -> Symbol:
        return nn.Dense(outputs, use_bias=False, kernel_initializer=nn.RandomNormal(stddev=stddev), name=name)(x)

    def attend(self, name: str, x: Symbol) -> Symbol:
        normal = self.norm(name, x)
        roles = (self.dense(f"{name}_{role}", self.width, normal) for role in ("query", "key", "value"))
        settings = {"num_heads": self.heads, "causal": True, "rotary": True}
        heads = nn.Layer("kAttention", name=f"{name}_heads", attention_conf=settings)(*roles)
        return self.residual(name, x, heads)

    def perceptron(self, name: str, x: Symbol) -> Symbol:
        """Add a SwiGLU to x: (silu(x G)∘(x U)) W, with the weights G, U and W."""
        normal = self.norm(name, x)
        gate = nn.Activation("silu", name=f"{name}_silu")(self.dense(f"{name}_gate", self.hidden, normal))
        product = nn.Multiply(name=f"{name}_product")([gate, self.dense(f"{name}_up", self.hidden, normal)])
        return self.residual(name, x, product)

    def residual(self, name: str, x: Symbol, branch: Symbol) -> Symbol:
        """Add a branch to x; the branch's initial weight is smaller, because all branches add up (GPT-2)."""
        output = self.dense(f"{name}_output", self.width, branch, STDDEV / (2 * self.blocks) ** 0.5)
        return nn.Add(name=name)([x, self.drop(name, output)])
