"""Predicts how a user rates a film, from embeddings of users and films, the films' titles and their genres."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.job import Job
from dsinga.models.blocks import FAN_IN, NORMAL, TESTS, make_job, read, updater
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import Symbol

SIMILARITIES = ("cosine", "product")
MIDDLE = 3.5
"""The net's initial rating for each user and film."""


@typed("models.")
def recommender(
    users: int,
    films: int,
    words: int,
    data: str = "",
    *,
    similarity: str = "cosine",
    scale: float = 5.0,
    width: int = 32,
    dropout: float = 0.3,
    batchsize: int = 256,
    **job: Any,
) -> Job:
    """Return the job of a net that predicts ratings of films, imported by ``dsinga data import movielens``.

    A user is an embedding. A film is an embedding, a convolution over its title's words, and its genres. Both become
    vectors of ``width`` numbers. The rating is the vectors' similarity plus biases of the user and the film (Koren,
    Bell and Volinsky, Matrix Factorization Techniques for Recommender Systems, 2009).

    Args:
        users: number of users.
        films: number of films.
        words: number of word codes in titles.
        data: folder with train and test, each with users.zarr and so on.
        similarity: "cosine", scaled, as in PaddlePaddle's book, or "product", as in matrix factorisation.
        scale: largest cosine similarity.
        width: length of the vectors of users and films.
        dropout: fraction of the embeddings to drop in training.
        batchsize: records per iteration.
        job: further fields of the job.

    Raises:
        UserError: an unknown similarity.
    """
    if similarity not in SIMILARITIES:
        raise UserError(f"similarity is {similarity!r}; give one of {', '.join(SIMILARITIES)}")
    net = _net(users, films, words, similarity, scale, width, dropout)
    stores = [
        read(name, posixpath.join(data, part, f"{name}.zarr"), phases, size)
        for name in ("users", "films", "titles", "genres")
        for part, phases, size in (("train", ["kTrain"], batchsize), ("test", TESTS, 200))
    ]
    return make_job(job, "recommender", [*stores, *confs_of(*net)], updater("kAdam", 0.002), epochs=7)


def _net(
    users: int, films: int, words: int, similarity: str, scale: float, width: int, dropout: float
) -> Sequence[Symbol]:
    """Build the recommender: return features of user and film, title lengths, the loss and the error in tests."""
    user_codes, film_codes = nn.Input((), "users"), nn.Input((), "films")
    titles, genres = nn.Input(1, "titles"), nn.Input(1, "genres")  # titles of any length

    def embed(name: str, codes: int, source: Symbol) -> Symbol:
        return nn.Embedding(codes, width, NORMAL, name=f"{name}_embedding")(source)

    def dense(name: str, source: Symbol) -> Symbol:
        dropped = nn.Dropout(dropout, name=f"{name}_drop")(source)
        return nn.Dense(width, kernel_initializer=FAN_IN, name=name)(dropped)

    def mean(name: str, codes: int, source: Symbol) -> Symbol:
        return nn.Embedding(codes, 1, param=[nn.Param(init=0.0)], name=f"{name}_mean")(source)

    user = dense("user", embed("user", users, user_codes))
    film = embed("film", films, film_codes)
    lengths = nn.SequenceLength(name="lengths")(titles)
    convolution = nn.Conv1D(width, 3, padding="same", kernel_initializer=FAN_IN, name="title_conv")
    title = nn.ReLU(name="title_relu")(convolution(embed("word", words, titles), lengths))
    title = nn.Layer("kPooling1D", name="title")(title, lengths)
    described = dense("film", nn.Concatenate(name="described")(film, title, genres))
    cosine = similarity == "cosine"
    scaled = nn.Layer("kCosineSimilarity", cosinesimilarity_conf={"scale": scale}, name="cosine")
    product = scaled if cosine else nn.Multiply(name="product")
    init = 1.0 if cosine else FAN_IN
    rating = nn.Dense(1, kernel_initializer=init, bias_initializer=MIDDLE, name="similarity")
    means = [mean("user", users, user_codes), mean("film", films, film_codes)]
    score = nn.Add(name="score")(rating(product(user, described)), means)
    loss = nn.EuclideanLoss(name="loss")(score, nn.Layer("kLabel", name="rating")(user_codes))
    error = nn.Layer("kRegressionError", exclude=["kTrain"], name="error")(score, user_codes)
    return user, film, lengths, loss, error
