"""Translates sentences by recurrent layers and attention.

The encoder reads the source sentence in both directions (Bahdanau, Cho and Bengio, Neural Machine Translation by
Jointly Learning to Align and Translate, 2015). The decoder has two recurrent layers. The first begins with a state made
of the mean of the encoder's states; its states are the queries of an attention by dot products (Luong, Pham and
Manning, Effective Approaches to Attention-based Neural Machine Translation, 2015). The second also reads what the
attention gives, as in Wu et al., Google's Neural Machine Translation System (2016).
"""

from __future__ import annotations

from typing import Any

from dsinga.job import Job, LayerConf
from dsinga.models import blocks
from dsinga.models.blocks import dense, job_fields, layer, read_phases, updater

UNIFORM = {"init": {"type": "kUniformSqrtFanIn"}}
GRU_PARAMS = [*[UNIFORM] * 6, {}, {}, {}]


def gru_translator(
    source_words: int,
    target_words: int,
    data: str = "",
    *,
    embedding: int = 256,
    hidden: int = 256,
    dropout: float = 0.4,
    batchsize: int = 64,
    test_batchsize: int = 64,
    **job: Any,
) -> Job:
    """Return the job of a translator for pairs imported by ``dsinga data import pairs``.

    Args:
        source_words: number of codes of the source language, which ``dsinga data info`` shows.
        target_words: number of codes of the target language.
        data: folder of train, val and test, each with source.zarr and target.zarr; by default that of the job file.
        embedding: numbers that stand for a word.
        hidden: units of each recurrent layer, in the encoder in each direction.
        dropout: fraction of the embeddings, and of the layer below the scores, to drop in training.
        batchsize: sentences of an iteration.
        test_batchsize: sentences of an iteration in validation and test.
        job: further fields of the job, such as ``train_steps``.
    """
    gru = {"dim_hidden": hidden}
    net = [
        *read_phases("source", data, batchsize, test_batchsize),
        *read_phases("target", data, batchsize, test_batchsize),
        *_embed("source", source_words, embedding, dropout),
        layer(
            "encoder", "kGRU", "source_drop", "source_steps", gru_conf={**gru, "bidirectional": True},
            param=GRU_PARAMS * 2,
        ),
        _dense_steps("keys", "encoder", hidden, bias_term=False),
        *_embed("target", target_words, embedding, dropout),
        layer("mean", "kPooling1D", "encoder", "source_steps", pooling1d_conf={"pool": "AVG"}),
        dense("begin", "mean", hidden, UNIFORM["init"]),
        layer("state", "kActivation", "begin", activation_conf={"type": "TANH"}),
        layer(
            "query", "kGRU", "target_drop", "target_steps", "state", gru_conf={**gru, "initial_state": True},
            param=GRU_PARAMS,
        ),
        layer("attention", "kAttention", "query", "keys", "encoder", "source_steps", attention_conf={"score": "kDot"}),
        _join("attended", "query", "attention"),
        layer("attended_drop", "kDropout", "attended", dropout_conf={"dropout_ratio": dropout}),
        layer("decoder", "kGRU", "attended_drop", "target_steps", gru_conf=gru, param=GRU_PARAMS),
        _join("joined", "decoder", "attention"),
        _dense_steps("mixed", "joined", embedding),
        layer("tanh", "kActivation", "mixed", activation_conf={"type": "TANH"}),
        layer("drop", "kDropout", "tanh", dropout_conf={"dropout_ratio": dropout}),
        _dense_steps("scores", "drop", target_words),
        layer("loss", "kSoftmaxLoss", "scores", "target", per_step=True),
        layer(
            "weights", "kAttentionWeights", "query", "keys", "source_steps", attention_conf={"score": "kDot"},
            exclude=["kTrain", "kVal"],
        ),
    ]  # fmt: skip
    adam = updater("kAdam", 0.001, clip_norm=5.0, adam_conf={"bias_correction": True})
    return Job(**job_fields(job, name="gru-translator", seed=1, epochs=10, updater=adam, net={"layer": net}))


def _embed(name: str, words: int, width: int, dropout: float) -> list[LayerConf]:
    """Return the embedding of the words of a language, and the layer that tells where its sentences end."""
    return [
        layer(f"{name}_steps", "kSequenceLength", name),
        blocks.embedding(f"{name}_embedding", name, words, width),
        layer(f"{name}_drop", "kDropout", f"{name}_embedding", dropout_conf={"dropout_ratio": dropout}),
    ]


def _dense_steps(name: str, source: str, outputs: int, **conf: Any) -> LayerConf:
    """Return a fully connected layer of each step."""
    settings = {"num_output": outputs, **conf}
    return layer(name, "kInnerProduct", source, per_step=True, innerproduct_conf=settings, param=[UNIFORM])


def _join(name: str, *sources: str) -> LayerConf:
    """Return the features of several layers, side by side at each step."""
    return layer(name, "kConcate", *sources, concate_conf={"concate_dim": 2})
