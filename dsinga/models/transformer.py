"""The Transformer: translates sentences by attention alone, without recurrence.

Vaswani et al., Attention Is All You Need (2017). Each block normalises its input, not its output (Xiong et al., On
Layer Normalization in the Transformer Architecture, 2020): it then trains without a slow start of the learning rate.
"""

from __future__ import annotations

import math
from typing import Any

from dsinga.job import Job, LayerConf
from dsinga.models.blocks import job_fields, layer, read_phases, updater

GLOROT = {"init": {"type": "kUniformFanInOut", "value": 1.0, "low": -1.0, "high": 1.0}}
"""Uniform numbers of variance 2/(inputs + outputs): Glorot and Bengio (2010)."""

Layers = list[LayerConf]


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
    """Return the job of a translator.

    The sentences of the source language are codes (B, T), -1 after the end. Those of the target language begin with the
    code of <s>; their labels are the next words, </s> after the last one, then -1.

    Args:
        source_words: number of codes of the source language.
        target_words: number of codes of the target language.
        data: folder of train, val and test, each with source.zarr and target.zarr; by default that of the job file.
        blocks: number of blocks of the encoder, and of the decoder.
        width: number of features of a step; a multiple of ``heads``.
        heads: number of heads of each attention.
        hidden: number of hidden units of the perceptron in each block.
        dropout: fraction of the embeddings and of each block's output to drop in training.
        label_smoothing: share of the target that is spread over all words.
        tie_weights: whether the scores of words have the embedding of the target language as their weight.
        batchsize: sentences of an iteration.
        test_batchsize: sentences of an iteration in validation and test.
        job: further fields of the job, such as ``train_steps``.
    """
    embedding = {"init": {"type": "kGaussian", "std": width**-0.5}}
    scores = {"share_from": "target_embedding_weight"} if tie_weights else GLOROT
    net = [
        *read_phases("source", data, batchsize, test_batchsize),
        *read_phases("target", data, batchsize, test_batchsize),
        layer("source_steps", "kSequenceLength", "source"),
        *embed("source", "source_steps", source_words, width, dropout, embedding),
        *encoder("source_input", "source_steps", blocks, width, heads, hidden, dropout),
        *embed("target", "target", target_words, width, dropout, embedding),
        *decoder("target_input", "encoder", "source_steps", blocks, width, heads, hidden, dropout),
        layer(
            "scores", "kInnerProduct", "decoder", per_step=True, param=[scores],
            innerproduct_conf={"num_output": target_words, "bias_term": not tie_weights},
        ),
        layer(
            "loss", "kSoftmaxLoss", "scores", "target", per_step=True,
            softmaxloss_conf={"label_smoothing": label_smoothing},
        ),
    ]  # fmt: skip
    adam = updater("kAdam", 0.0005, adam_conf={"beta2": 0.98, "bias_correction": True}, clip_norm=5.0)
    return Job(**job_fields(job, name="transformer", seed=1, epochs=10, updater=adam, net={"layer": net}))


def embed(name: str, codes: str, words: int, width: int, dropout: float, init: dict[str, Any]) -> Layers:
    """Return the layers from the codes of a language to ``<name>_input``: embeddings, times √width, with positions."""
    return [
        layer(
            f"{name}_embedding", "kEmbedding", codes, param=[init],
            embedding_conf={"vocab_size": words, "feature_dim": width},
        ),
        layer(
            f"{name}_position", "kPositionalEncoding", f"{name}_embedding",
            positionalencoding_conf={"scale": math.sqrt(width)},
        ),
        layer(f"{name}_input", "kDropout", f"{name}_position", dropout_conf={"dropout_ratio": dropout}),
    ]  # fmt: skip


def encoder(x: str, steps: str, blocks: int, width: int, heads: int, hidden: int, dropout: float) -> Layers:
    """Return the layers from ``x`` to "encoder"; the labels of ``steps`` give the lengths of sentences."""
    net: Layers = []
    for number in range(1, blocks + 1):
        name = f"encoder{number}"
        net += attend(f"{name}_self", x, None, [steps], width, heads, dropout)
        net += perceptron(f"{name}_perceptron", f"{name}_self", width, hidden, dropout)
        x = f"{name}_perceptron"
    return [*net, norm("encoder", x)]


def decoder(
    x: str, memory: str, steps: str, blocks: int, width: int, heads: int, hidden: int, dropout: float
) -> Layers:
    """Return the layers from ``x`` to "decoder"; each step sees the steps before it, and all of ``memory``."""
    net: Layers = []
    for number in range(1, blocks + 1):
        name = f"decoder{number}"
        net += attend(f"{name}_self", x, None, [], width, heads, dropout, causal=True)
        net += attend(f"{name}_cross", f"{name}_self", memory, [steps], width, heads, dropout)
        net += perceptron(f"{name}_perceptron", f"{name}_cross", width, hidden, dropout)
        x = f"{name}_perceptron"
    return [*net, norm("decoder", x)]


def attend(
    name: str, x: str, memory: str | None, steps: list[str], width: int, heads: int, dropout: float, **conf: Any
) -> Layers:
    """Return x plus multi-head attention from x to ``memory``, by default to x itself, which is then normalised."""
    keys = memory or f"{name}_norm"
    query, key, value = (f"{name}_{role}" for role in ("query", "key", "value"))
    return [
        norm(f"{name}_norm", x),
        dense(query, f"{name}_norm", width),
        dense(key, keys, width, bias_term=False),  # which would add the same to all scores of a query
        dense(value, keys, width),
        layer(f"{name}_heads", "kAttention", query, key, value, *steps, attention_conf={"num_heads": heads, **conf}),
        dense(f"{name}_output", f"{name}_heads", width),
        *residual(name, f"{name}_output", x, dropout),
    ]


def perceptron(name: str, x: str, width: int, hidden: int, dropout: float) -> Layers:
    """Return x plus a perceptron with one hidden layer, applied to each step of the normalised x."""
    return [
        norm(f"{name}_norm", x),
        dense(f"{name}_hidden", f"{name}_norm", hidden),
        layer(f"{name}_relu", "kReLU", f"{name}_hidden"),
        dense(f"{name}_output", f"{name}_relu", width),
        *residual(name, f"{name}_output", x, dropout),
    ]


def residual(name: str, branch: str, x: str, dropout: float) -> Layers:
    """Return the sum of x and a branch of which a part is dropped."""
    return [
        layer(f"{name}_drop", "kDropout", branch, dropout_conf={"dropout_ratio": dropout}),
        layer(name, "kAdd", x, f"{name}_drop"),
    ]


def norm(name: str, x: str) -> LayerConf:
    """Return the layer normalisation of each step."""
    return layer(name, "kLayerNorm", x, layernorm_conf={"first_axis": 2})


def dense(name: str, source: str, outputs: int, **conf: Any) -> LayerConf:
    """Return a kInnerProduct layer that is applied to each step."""
    settings = {"num_output": outputs, **conf}
    return layer(name, "kInnerProduct", source, per_step=True, innerproduct_conf=settings, param=[GLOROT])
