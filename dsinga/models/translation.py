"""Translates sentences by recurrent layers and attention.

The encoder reads the source sentence in both directions (Bahdanau, Cho and Bengio, Neural Machine Translation by
Jointly Learning to Align and Translate, 2015). The decoder has two recurrent layers. The first begins with a state made
of the mean of the encoder's states; its states are the queries of an attention by dot products (Luong, Pham and
Manning, Effective Approaches to Attention-based Neural Machine Translation, 2015). The second also reads what the
attention gives, as in Wu et al., Google's Neural Machine Translation System (2016).
"""

from __future__ import annotations

from typing import Any

from dsinga import nn
from dsinga.base.argument_types import typed
from dsinga.job import Job
from dsinga.models.blocks import FAN_IN, GRU_PARAMS, NORMAL, make_job, read_phases, updater
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import LayerBuilder, Symbol


@typed("models.")
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
    sentences = read_phases(("source", "target"), data, batchsize, test_batchsize)
    source, target = nn.Input(1, "source"), nn.Input(1, "target")  # of any length
    source_steps, words = _embed("source", source, source_words, embedding, dropout)
    encoder = nn.GRU(hidden, bidirectional=True, param=GRU_PARAMS * 2, name="encoder", return_sequences=True)(
        words, source_steps
    )
    keys = _dense("keys", hidden, use_bias=False)(encoder)
    target_steps, words = _embed("target", target, target_words, embedding, dropout)
    mean = nn.GlobalAveragePooling1D(name="mean")(encoder, source_steps)
    state = nn.Activation("tanh", name="state")(_dense("begin", hidden)(mean))
    initial = {"dim_hidden": hidden, "initial_state": True}
    query = nn.Layer("kGRU", gru_conf=initial, param=GRU_PARAMS, name="query")(words, target_steps, state)
    attention = nn.Attention(name="attention")(query, encoder, keys, source_steps)
    attended = nn.Dropout(dropout, name="attended_drop")(nn.Concatenate(name="attended")(query, attention))
    decoder = nn.GRU(hidden, param=GRU_PARAMS, name="decoder", return_sequences=True)(attended, target_steps)
    mixed = _dense("mixed", embedding)(nn.Concatenate(name="joined")(decoder, attention))
    drop = nn.Dropout(dropout, name="drop")(nn.Activation("tanh", name="tanh")(mixed))
    loss = nn.SoftmaxLoss(name="loss")(_dense("scores", target_words)(drop), labels=target)
    weights = nn.Layer(
        "kAttentionWeights", attention_conf={"score": "kDot"}, exclude=["kTrain", "kVal"], name="weights"
    )(query, keys, source_steps)
    layers = [*sentences, *confs_of(source_steps, keys, target_steps, loss, weights)]
    adam = updater("kAdam", 0.001, clip_norm=5.0, adam_conf={"bias_correction": True})
    return make_job(job, "gru-translator", layers, adam, epochs=10)


def _embed(name: str, codes: Symbol, words: int, width: int, dropout: float) -> tuple[Symbol, Symbol]:
    """Return what tells where the sentences of a language end, and the embeddings of their words."""
    embedded = nn.Embedding(words, width, NORMAL, name=f"{name}_embedding")(codes)
    return nn.SequenceLength(name=f"{name}_steps")(codes), nn.Dropout(dropout, name=f"{name}_drop")(embedded)


def _dense(name: str, outputs: int, **settings: Any) -> LayerBuilder:
    return nn.Dense(outputs, kernel_initializer=FAN_IN, name=name, **settings)
