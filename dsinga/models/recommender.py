"""Predicts how a user rates a film, from embeddings of users and films, the films' titles and their genres."""

from __future__ import annotations

import posixpath
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Job, LayerConf
from dsinga.models.blocks import dense, embedding, job_fields, layer, updater

FAN_IN = {"type": "kUniformSqrtFanIn"}
SIMILARITIES = ("cosine", "product")
MIDDLE = 3.5
"""The rating that the net begins with, for each user and film."""


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
    """Return the job of a recommender for ratings imported by ``dsinga data import movielens``.

    A user is an embedding; a film is an embedding, its title by a convolution over the words, and its genres. Each is
    brought to ``width`` numbers. The rating is their similarity, plus a number of the user and one of the film, which
    say how high the user rates films and how high users rate the film (Koren, Bell and Volinsky, Matrix Factorization
    Techniques for Recommender Systems, 2009).

    Args:
        users: number of users.
        films: number of films.
        words: number of codes of the words of titles.
        data: folder of train and test, with users.zarr and so on; by default the folder of the job file.
        similarity: "cosine", scaled, as in PaddlePaddle's book; or "product" of the two, as in matrix factorisation.
        scale: the largest cosine similarity.
        width: numbers that stand for a user or a film.
        dropout: fraction of the embeddings to drop in training.
        batchsize: ratings of an iteration.
        job: further fields of the job, such as ``train_steps``.

    Raises:
        UserError: there is no such similarity.
    """
    if similarity not in SIMILARITIES:
        raise UserError(f"similarity is {similarity!r}; give one of {', '.join(SIMILARITIES)}")
    layers = [
        *(conf for name in ("users", "films", "titles", "genres") for conf in _read(name, data, batchsize)),
        *_user(users, width, dropout),
        *_film(films, words, width, dropout),
        *_similarity(similarity, scale),
        embedding("user_mean", "users", users, 1, 0.0),
        embedding("film_mean", "films", films, 1, 0.0),
        layer("score", "kAdd", "similarity", "user_mean", "film_mean"),
        layer("rating", "kLabel", "users"),
        layer("loss", "kEuclideanLoss", "score", "rating"),
        layer("error", "kRegressionError", "score", "users", exclude=["kTrain"]),
    ]
    adam = updater("kAdam", 0.002)
    return Job(**job_fields(job, name="recommender", seed=1, epochs=7, updater=adam, net={"layer": layers}))


def _read(name: str, folder: str, batchsize: int) -> list[LayerConf]:
    """Return the layers that read one store: in training that of train, else that of test."""
    parts = {"train": (["kTrain"], batchsize), "test": (["kVal", "kTest"], 200)}
    return [
        layer(
            name,
            "kRecordInput",
            include=phases,
            store_conf={"path": posixpath.join(folder, part, f"{name}.zarr"), "batchsize": size},
        )
        for part, (phases, size) in parts.items()
    ]


def _drop(name: str, source: str, dropout: float) -> LayerConf:
    return layer(name, "kDropout", source, dropout_conf={"dropout_ratio": dropout})


def _user(users: int, width: int, dropout: float) -> list[LayerConf]:
    """Return the layers that give the vector of a user."""
    return [
        embedding("user_embedding", "users", users, width),
        _drop("user_drop", "user_embedding", dropout),
        dense("user", "user_drop", width, FAN_IN),
    ]


def _film(films: int, words: int, width: int, dropout: float) -> list[LayerConf]:
    """Return the layers that give the vector of a film."""
    convolution = {"num_filters": width, "kernel": 3, "same": True}
    return [
        embedding("film_embedding", "films", films, width),
        layer("lengths", "kSequenceLength", "titles"),
        embedding("word_embedding", "titles", words, width),
        layer(
            "title_conv",
            "kConvolution1D",
            "word_embedding",
            "lengths",
            convolution1d_conf=convolution,
            param=[{"init": FAN_IN}],
        ),
        layer("title_relu", "kReLU", "title_conv"),
        layer("title", "kPooling1D", "title_relu", "lengths"),
        layer("described", "kConcate", "film_embedding", "title", "genres", concate_conf={"concate_dim": 1}),
        _drop("film_drop", "described", dropout),
        dense("film", "film_drop", width, FAN_IN),
    ]


def _similarity(similarity: str, scale: float) -> list[LayerConf]:
    """Return the layers from the two vectors to one number, which begins about MIDDLE."""
    if similarity == "cosine":
        cosine = layer("cosine", "kCosineSimilarity", "user", "film", cosinesimilarity_conf={"scale": scale})
        return [cosine, _sum("similarity", "cosine", {"type": "kConstant", "value": 1.0})]
    return [layer("product", "kMultiply", "user", "film"), _sum("similarity", "product", FAN_IN)]


def _sum(name: str, source: str, init: dict[str, Any]) -> LayerConf:
    """Return a kInnerProduct layer with one output, whose bias begins at MIDDLE."""
    bias = {"init": {"type": "kConstant", "value": MIDDLE}}
    return layer(name, "kInnerProduct", source, innerproduct_conf={"num_output": 1}, param=[{"init": init}, bias])
