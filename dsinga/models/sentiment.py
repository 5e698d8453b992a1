"""Sentiment of sentences: convolution over words, and a stacked bidirectional LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.job import Job, LayerConf
from dsinga.models import blocks
from dsinga.models.blocks import dense, job_fields, layer, loss, records

FAN_IN = {"init": {"type": "kUniformSqrtFanIn"}}


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
    layers = _words(vocabulary, data, embedding, batchsize, std=0.02)
    layers.append(layer("drop_words", "kDropout", "embedding", dropout_conf={"dropout_ratio": dropout}))
    for kernel in kernels:
        settings = {"num_filters": filters, "kernel": kernel}
        layers += [
            layer(
                f"conv{kernel}", "kConvolution1D", "drop_words", "lengths", convolution1d_conf=settings, param=[FAN_IN]
            ),
            layer(f"relu{kernel}", "kReLU", f"conv{kernel}"),
            layer(f"pool{kernel}", "kPooling1D", f"relu{kernel}", f"conv{kernel}"),
        ]
    layers += [
        layer("patterns", "kConcate", *(f"pool{kernel}" for kernel in kernels), concate_conf={"concate_dim": 1}),
        *_classify("patterns", classes, dropout),
    ]
    return _job(job, "sentiment-convolution", 5, 0.0007, layers)


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
    layers = _words(vocabulary, data, embedding, batchsize, std=0.1)
    below = "embedding"
    for number in range(1, stacked + 1):
        settings = {"dim_hidden": hidden, "bidirectional": True}
        drop, lstm = f"drop{number}", f"lstm{number}"
        layers += [
            layer(drop, "kDropout", below, dropout_conf={"dropout_ratio": dropout}),
            layer(lstm, "kLSTM", drop, "lengths", lstm_conf=settings, param=[FAN_IN, FAN_IN, {}] * 2),
        ]
        below = lstm
    layers += [layer("pool", "kPooling1D", below, "lengths"), *_classify("pool", classes, dropout)]
    return _job(job, "sentiment-lstm", 5, 0.001, layers)


def _words(vocabulary: int, data: str, embedding: int, batchsize: int, std: float) -> list[LayerConf]:
    """Return the layers that read words, tell where each sentence ends, and look up the words."""
    return [
        *records(data, batchsize, ()),
        layer("lengths", "kSequenceLength", "data"),
        blocks.embedding("embedding", "data", vocabulary, embedding, std),
    ]


def _classify(source: str, classes: int, dropout: float) -> list[LayerConf]:
    """Return the layers from the features of a sentence to the loss."""
    return [
        layer("drop", "kDropout", source, dropout_conf={"dropout_ratio": dropout}),
        dense("scores", "drop", classes),
        loss("scores"),
    ]


def _job(job: dict[str, Any], name: str, epochs: int, rate: float, layers: list[LayerConf]) -> Job:
    adam = blocks.updater("kAdam", rate, clip_norm=5.0)
    return Job(**job_fields(job, name=name, seed=1, epochs=epochs, updater=adam, net={"layer": layers}))
