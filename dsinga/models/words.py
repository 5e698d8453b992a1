"""Word vectors: the n-gram net of Bengio et al., and the skip-gram of Mikolov et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.base.argument_types import typed
from dsinga.job import Job, LayerConf
from dsinga.models import blocks
from dsinga.models.blocks import FAN_IN, dense, layer, loss, make_job, records


@typed("models.")
def word_ngram(
    vocabulary: int,
    data: str = "",
    *,
    context: int = 4,
    embedding: int = 64,
    hidden: int = 128,
    batchsize: int = 100,
    learning_rate: float = 0.002,
    **job: Any,
) -> Job:
    """Return the job of Bengio et al., A Neural Probabilistic Language Model (2003): the next word by those before it.

    Args:
        vocabulary: number of different words, which ``dsinga data info`` shows.
        data: folder of train_data.zarr and test_data.zarr: ngrams, made by ``dsinga data import contexts``.
        context: words of a record, the window of the import.
        embedding: numbers that stand for a word.
        hidden: units of the hidden layer.
        batchsize: records of an iteration.
        learning_rate: learning rate of Adam.
        job: further fields of the job, such as ``train_steps``.
    """
    layers = [
        *records(data, batchsize, [context], test_batchsize=500),
        blocks.embedding("vectors", "data", vocabulary, embedding),
        dense("hidden", "vectors", hidden, FAN_IN),
        layer("tanh", "kActivation", "hidden", activation_conf={"type": "TANH"}),
        dense("scores", "tanh", vocabulary, FAN_IN),
        loss("scores"),
    ]
    return _job(job, "word-ngram", learning_rate, layers)


@typed("models.")
def skip_gram(
    counts: Sequence[int],
    data: str = "",
    *,
    embedding: int = 64,
    samples: int = 5,
    batchsize: int = 500,
    learning_rate: float = 0.005,
    **job: Any,
) -> Job:
    """Return the job of Mikolov et al., Distributed Representations of Words and Phrases (2013): near words of a word.

    Args:
        counts: how often each word occurs, of which the random words of the loss are drawn; if all are equal, each is
            as likely.
        data: folder of train_data.zarr and test_data.zarr: skipgrams, made by ``dsinga data import contexts``.
        embedding: numbers that stand for a word.
        samples: random words for each pair of the text.
        batchsize: pairs of an iteration.
        learning_rate: learning rate of Adam.
        job: further fields of the job, such as ``train_steps``.
    """
    settings = {"vocab_size": len(counts), "num_samples": samples, "counts": [*map(int, counts)]}
    layers = [
        *records(data, batchsize, [], test_batchsize=500),
        blocks.embedding("vectors", "data", len(counts), embedding),
        layer("loss", "kSampledLoss", "vectors", "data", sampledloss_conf=settings),  # params begin at 0: word2vec
    ]
    return _job(job, "skip-gram", learning_rate, layers)


def _job(job: dict[str, Any], name: str, learning_rate: float, layers: list[LayerConf]) -> Job:
    adam = blocks.updater("kAdam", learning_rate)
    return make_job(job, name, layers, adam, epochs=2, disp_freq=200, test_freq=1000)
