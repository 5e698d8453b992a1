"""Sentiment of sentences: convolution over words, and a stacked bidirectional LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga import nn
from dsinga.base.argument_types import typed
from dsinga.job import Job
from dsinga.models.blocks import FAN_IN, make_job, records, updater
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import Symbol

LSTM_PARAMS: list[dict[str, Any]] = [{"init": FAN_IN}, {"init": FAN_IN}, {}]  # of one direction


@typed("models.")
def sentiment_convolution(
    vocabulary: int,
    data: str = "",
    *,
    classes: int = 2,
    embedding: int = 300,
    kernels: Sequence[int] = (3, 4, 5),
    filters: int = 100,
    dropout: float = 0.5,
    batchsize: int = 50,
    **job: Any,
) -> Job:
    """Return the job of Kim's net, Convolutional Neural Networks for Sentence Classification (2014).

    Args:
        vocabulary: number of codes of words, which ``dsinga data info`` shows.
        data: folder of train_data.zarr and test_data.zarr, made by ``dsinga data import sentences``.
        classes: number of classes of sentences.
        embedding: numbers that stand for a word.
        kernels: how many words the windows of each convolution have.
        filters: patterns that each convolution looks for.
        dropout: fraction of the embedding and of the patterns to drop in training.
        batchsize: sentences of an iteration.
        job: further fields of the job, such as ``train_steps``.
    """
    words, lengths, embedded = _words(vocabulary, embedding, 0.02, max([1, *kernels]))
    embedded = nn.Dropout(dropout, name="drop_words")(embedded)
    pools = []
    for kernel in kernels:
        conv = nn.Conv1D(filters, kernel, kernel_initializer=FAN_IN, name=f"conv{kernel}")(embedded, lengths)
        pools.append(nn.Layer("kPooling1D", name=f"pool{kernel}")(nn.ReLU(name=f"relu{kernel}")(conv), conv))
    loss = _loss(nn.Concatenate(name="patterns")(*pools), words, classes, dropout)
    layers = [*records(data, batchsize, ()), *confs_of(lengths, loss)]
    return make_job(job, "sentiment-convolution", layers, updater("kAdam", 0.0007, clip_norm=5.0), epochs=5)


@typed("models.")
def sentiment_lstm(
    vocabulary: int,
    data: str = "",
    *,
    classes: int = 2,
    embedding: int = 128,
    hidden: int = 64,
    stacked: int = 2,
    dropout: float = 0.5,
    batchsize: int = 50,
    **job: Any,
) -> Job:
    """Return the job of a stack of bidirectional LSTMs, of which each feature's maximum over the words is classified.

    Args:
        vocabulary: number of codes of words, which ``dsinga data info`` shows.
        data: folder of train_data.zarr and test_data.zarr, made by ``dsinga data import sentences``.
        classes: number of classes of sentences.
        embedding: numbers that stand for a word.
        hidden: units of an LSTM in each direction.
        stacked: how many LSTMs stand on each other.
        dropout: fraction of the units to drop in training, below each LSTM and above the last.
        batchsize: sentences of an iteration.
        job: further fields of the job, such as ``train_steps``.
    """
    words, lengths, x = _words(vocabulary, embedding, 0.1)
    for number in range(1, stacked + 1):
        x = nn.Dropout(dropout, name=f"drop{number}")(x)
        x = nn.LSTM(hidden, bidirectional=True, param=LSTM_PARAMS * 2, name=f"lstm{number}", return_sequences=True)(
            x, lengths
        )
    loss = _loss(nn.Layer("kPooling1D", name="pool")(x, lengths), words, classes, dropout)
    layers = [*records(data, batchsize, ()), *confs_of(lengths, loss)]
    return make_job(job, "sentiment-lstm", layers, updater("kAdam", 0.001, clip_norm=5.0), epochs=5)


def _words(vocabulary: int, width: int, std: float, length: int = 1) -> tuple[Symbol, Symbol, Symbol]:
    """Return the words of sentences, here of ``length`` words, what tells where each ends, and the words' vectors."""
    words = nn.Input(length)
    vectors = nn.Embedding(vocabulary, width, nn.RandomNormal(stddev=std), name="embedding")(words)
    return words, nn.SequenceLength(name="lengths")(words), vectors


def _loss(features: Symbol, words: Symbol, classes: int, dropout: float) -> Symbol:
    """Return the loss of the classes of sentences, whose labels ``words`` have."""
    drop = nn.Dropout(dropout, name="drop")(features)
    scores = nn.Dense(classes, kernel_initializer="he_normal", name="scores")(drop)
    return nn.SoftmaxLoss(name="loss")(scores, labels=words)
