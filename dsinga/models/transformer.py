"""The Transformer: translates sentences by attention alone, without recurrence.

Vaswani et al., Attention Is All You Need (2017). Each block normalises its input, not its output (Xiong et al., On
Layer Normalization in the Transformer Architecture, 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.job import Job
from dsinga.models.blocks import make_job, read_phases, updater
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import Symbol


@typed("models.")
def transformer(
    source_words: int,
    target_words: int,
    data: str = "",
    *,
    blocks: int = 3,
    width: int = 256,
    heads: int = 4,
    hidden: int = 512,
    dropout: float = 0.1,
    label_smoothing: float = 0.1,
    tie_weights: bool = True,
    batchsize: int = 64,
    test_batchsize: int = 64,
    **job: Any,
) -> Job:
    """Return the job of a Transformer that translates sentences.

    Source sentences are codes (B, T), -1 after the end. Target sentences begin with the code of <s>; their labels are
    the next words, </s> after the last one, then -1.

    Args:
        source_words: number of codes of the source language.
        target_words: number of codes of the target language.
        data: folder with train, val and test, each with source.zarr and target.zarr.
        blocks: number of blocks of the encoder, and of the decoder.
        width: features of a step; a multiple of ``heads``.
        heads: heads of each attention.
        hidden: hidden units of each block's perceptron.
        dropout: fraction of the embeddings and of each block's output to drop in training.
        label_smoothing: share of the target spread over all words.
        tie_weights: whether the output layer shares the target language's embedding as its weight.
        batchsize: records per iteration.
        test_batchsize: as ``batchsize``, in tests.
        job: further fields of the job.
    """
    sentences = read_phases(("source", "target"), data, batchsize, test_batchsize)
    net = _Blocks(width, heads, hidden, dropout)
    source, target = nn.Input(1, "source"), nn.Input(1, "target")  # sentences of any length
    steps = nn.SequenceLength(name="source_steps")(source)
    memory = net.encoder(net.embed("source", steps, source_words), steps, blocks)
    decoded = net.decoder(net.embed("target", target, target_words), memory, steps, blocks)
    embedding = [nn.Param(share_from="target_embedding_weight")] if tie_weights else None
    scores = nn.Dense(target_words, use_bias=not tie_weights, name="scores", param=embedding)(decoded)
    smoothing = {"label_smoothing": label_smoothing}
    loss = nn.Layer("kSoftmaxLoss", per_step=True, softmaxloss_conf=smoothing, name="loss")(scores, target)
    adam = updater("kAdam", 0.0005, adam_conf={"beta2": 0.98, "bias_correction": True}, clip_norm=5.0)
    return make_job(job, "transformer", [*sentences, *confs_of(memory, loss)], adam, epochs=10)


@dataclass
class _Blocks:
    """Makes the blocks of a Transformer with ``width`` features, with initial weights of Glorot and Bengio (2010)."""

    width: int
    heads: int
    hidden: int
    dropout: float

    def embed(self, name: str, codes: Symbol, words: int) -> Symbol:
        """Embed a language's codes, times √width, and add positions."""
        init = nn.RandomNormal(stddev=self.width**-0.5)
        embedded = nn.Embedding(words, self.width, init, name=f"{name}_embedding")(codes)
        placed = nn.PositionalEncoding(self.width**0.5, name=f"{name}_position")(embedded)
        return nn.Dropout(self.dropout, name=f"{name}_input")(placed)

    def encoder(self, x: Symbol, steps: Symbol, blocks: int) -> Symbol:
        """Encode x by blocks of self-attention; the labels of ``steps`` give sentence lengths."""
        for name in (f"encoder{number}" for number in range(1, blocks + 1)):
            x = self.attend(f"{name}_self", x, None, [steps])
            x = self.perceptron(f"{name}_perceptron", x)
        return nn.LayerNormalization(name="encoder")(x)

    def decoder(self, x: Symbol, memory: Symbol, steps: Symbol, blocks: int) -> Symbol:
        """Decode x: each step sees the steps before it, and all of ``memory``, the encoded sentence."""
        for name in (f"decoder{number}" for number in range(1, blocks + 1)):
            x = self.attend(f"{name}_self", x, None, [], causal=True)
            x = self.attend(f"{name}_cross", x, memory, [steps])
            x = self.perceptron(f"{name}_perceptron", x)
        return nn.LayerNormalization(name="decoder")(x)

    def attend(self, name: str, x: Symbol, memory: Symbol | None, steps: list[Symbol], **conf: Any) -> Symbol:
        """Add attention from the normalised x to ``memory``, or to the normalised x itself by default, to x."""
        normal = nn.LayerNormalization(name=f"{name}_norm")(x)
        keys = normal if memory is None else memory
        query = nn.Dense(self.width, name=f"{name}_query")(normal)
        key = nn.Dense(self.width, use_bias=False, name=f"{name}_key")(keys)  # a bias adds the same to all scores
        value = nn.Dense(self.width, name=f"{name}_value")(keys)
        attention = nn.Layer("kAttention", name=f"{name}_heads", attention_conf={"num_heads": self.heads, **conf})
        return self.residual(name, x, attention(query, key, value, *steps))

    def perceptron(self, name: str, x: Symbol) -> Symbol:
        """Add a perceptron with one hidden layer, applied to each step of the normalised x, to x."""
        hidden = nn.Dense(self.hidden, name=f"{name}_hidden")(nn.LayerNormalization(name=f"{name}_norm")(x))
        return self.residual(name, x, nn.ReLU(name=f"{name}_relu")(hidden))

    def residual(self, name: str, x: Symbol, branch: Symbol) -> Symbol:
        """Add a branch, projected to the width of x, with dropout, to x."""
        output = nn.Dense(self.width, name=f"{name}_output")(branch)
        return nn.Add(name=name)(x, nn.Dropout(self.dropout, name=f"{name}_drop")(output))
