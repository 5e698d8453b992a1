"""Nets for texts: word vectors, sentiment of sentences, tags of words, and translation.

The tagger: Huang, Xu and Yu, Bidirectional LSTM-CRF Models for Sequence Tagging (2015).

The translator's encoder reads the source sentence in both directions (Bahdanau, Cho and Bengio, Neural Machine
Translation by Jointly Learning to Align and Translate, 2015). Its decoder has two recurrent layers. The first layer's
states are the queries of dot-product attention (Luong, Pham and Manning, 2015). The second also reads the attention's
output, as in Wu et al., Google's Neural Machine Translation System (2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.job import Job, LayerConf
from dsinga.models import blocks
from dsinga.models.blocks import FAN_IN, GRU_PARAMS, NORMAL, dense, layer, loss, make_job, read_phases, records, updater
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import LayerBuilder, Symbol

LSTM_PARAMS: list[dict[str, Any]] = [{"init": FAN_IN}, {"init": FAN_IN}, {}]  # the params of one direction
FEATURES = {"words": 64, "shapes": 16, "prefixes": 24, "suffixes": 24}
"""The stores that describe a word, and the width of each embedding."""


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
    """Return the job of a neural language model, which predicts the next word from ``context`` words.

    Bengio et al., A Neural Probabilistic Language Model (2003).

    Args:
        vocabulary: number of different words.
        data: folder with the ngrams train_data.zarr and test_data.zarr, made by ``dsinga data import contexts``.
        context: words of a record, the window of the import.
        embedding: width of the word vectors.
        hidden: units of the hidden layer.
        batchsize: records per iteration.
        learning_rate: for Adam.
        job: further fields of the job.
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
    """Return the job that trains word vectors (word2vec's skip-gram), which predict the near words of a word.

    Mikolov et al., Distributed Representations of Words and Phrases (2013).

    Args:
        counts: how often each word occurs; the loss draws random words by these counts. Equal counts make all words
            equally likely.
        data: folder with the skipgrams train_data.zarr and test_data.zarr, made by ``dsinga data import contexts``.
        embedding: width of the word vectors.
        samples: random words for each pair of the text.
        batchsize: records per iteration.
        learning_rate: for Adam.
        job: further fields of the job.
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
    """Return the job of Kim's convolutional net, which classifies sentences.

    Kim, Convolutional Neural Networks for Sentence Classification (2014).

    Args:
        vocabulary: number of word codes.
        data: folder with train_data.zarr and test_data.zarr, made by ``dsinga data import sentences``.
        classes: number of classes.
        embedding: width of the word vectors.
        kernels: window of each convolution, in words.
        filters: filters of the convolutions.
        dropout: fraction of the embedding and of the pooled filters to drop in training.
        batchsize: records per iteration.
        job: further fields of the job.
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
    """Return the job of stacked bidirectional LSTMs that classify sentences by each feature's maximum over the words.

    Args:
        vocabulary: number of word codes.
        data: folder with train_data.zarr and test_data.zarr, made by ``dsinga data import sentences``.
        classes: number of classes.
        embedding: width of the word vectors.
        hidden: units of an LSTM in each direction.
        stacked: number of stacked LSTMs.
        dropout: fraction of the units to drop in training, below each LSTM and above the last.
        batchsize: records per iteration.
        job: further fields of the job.
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
    """Return the codes of sentences' words, the layer of sentence lengths, and the word vectors."""
    words = nn.Input(length)
    vectors = nn.Embedding(vocabulary, width, nn.RandomNormal(stddev=std), name="embedding")(words)
    return words, nn.SequenceLength(name="lengths")(words), vectors


def _loss(features: Symbol, words: Symbol, classes: int, dropout: float) -> Symbol:
    """Return the loss that classifies sentences; ``words`` has the labels."""
    drop = nn.Dropout(dropout, name="drop")(features)
    scores = nn.Dense(classes, kernel_initializer="he_normal", name="scores")(drop)
    return nn.SoftmaxLoss(name="loss")(scores, labels=words)


@typed("models.")
def bigru_crf(
    vocabulary: Mapping[str, int],
    tags: int,
    data: str = "",
    *,
    crf: bool = True,
    hidden: int = 64,
    dropout: float = 0.5,
    batchsize: int = 32,
    **job: Any,
) -> Job:
    """Return the job of a tagger, such as for named entities, of sentences imported by ``dsinga data import conll``.

    Args:
        vocabulary: number of codes in each store to use, by name: "words", and any of "shapes", "prefixes" and
            "suffixes".
        tags: number of different tags; for named entities O, and B- and I- of each type.
        data: folder with train, val and test, each with words.zarr and so on.
        crf: whether a conditional random field chooses the tags, not a softmax for each word.
        hidden: units of the GRU in each direction.
        dropout: fraction of the embedding and of the hidden units to drop in training.
        batchsize: records per iteration.
        job: further fields of the job.

    Raises:
        UserError: ``vocabulary`` has an unknown store, or no "words".
    """
    if "words" not in vocabulary or not vocabulary.keys() <= FEATURES.keys():
        raise UserError(f"vocabulary needs 'words' and may have others of {', '.join(FEATURES)}, not {[*vocabulary]}")
    inputs = {name: nn.Input(1, name) for name in vocabulary}  # texts of any length
    embedded = [
        nn.Embedding(size, FEATURES[name], NORMAL, name=f"{name}_embedding")(inputs[name])
        for name, size in vocabulary.items()
    ]
    x = nn.Dropout(dropout, name="drop1")(nn.Concatenate(name="embedding")(embedded))
    x = nn.GRU(hidden, bidirectional=True, param=GRU_PARAMS * 2, name="gru", return_sequences=True)(x, inputs["words"])
    x = nn.Dropout(dropout, name="drop2")(x)
    scores = nn.Dense(tags, kernel_initializer=FAN_IN, name="scores")(x)
    decoded = (nn.CRF(name="tags") if crf else nn.SoftmaxLoss(name="tags"))(scores, labels=inputs["words"])
    entities = nn.Layer("kEntityF1", exclude=["kTrain"], name="entities")(decoded, inputs["words"])
    layers = [*read_phases(vocabulary, data, batchsize, 32), *confs_of(entities)]
    adam = updater("kAdam", 0.002, clip_norm=5.0)
    return make_job(job, "bigru-crf", layers, adam, epochs=10)


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
        source_words: number of codes of the source language.
        target_words: number of codes of the target language.
        data: folder with train, val and test, each with source.zarr and target.zarr.
        embedding: width of the word vectors.
        hidden: units of each recurrent layer, in the encoder in each direction.
        dropout: fraction of the embeddings, and of the layer below the scores, to drop in training.
        batchsize: records per iteration.
        test_batchsize: as ``batchsize``, in tests.
        job: further fields of the job.
    """
    sentences = read_phases(("source", "target"), data, batchsize, test_batchsize)
    source, target = nn.Input(1, "source"), nn.Input(1, "target")  # texts of any length
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
    """Return the layer of sentence lengths of a language, and the embeddings of its words."""
    embedded = nn.Embedding(words, width, NORMAL, name=f"{name}_embedding")(codes)
    return nn.SequenceLength(name=f"{name}_steps")(codes), nn.Dropout(dropout, name=f"{name}_drop")(embedded)


def _dense(name: str, outputs: int, **settings: Any) -> LayerBuilder:
    return nn.Dense(outputs, kernel_initializer=FAN_IN, name=name, **settings)
