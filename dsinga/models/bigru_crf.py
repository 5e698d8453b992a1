"""Named entities, or other tags of words: a bidirectional GRU below a conditional random field.

The net of the article on PaddlePaddle; Huang, Xu and Yu, Bidirectional LSTM-CRF Models for Sequence Tagging (2015).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Job, LayerConf
from dsinga.models.blocks import layer

FEATURES = {"words": 64, "shapes": 16, "prefixes": 24, "suffixes": 24}
"""What is known of each word, a store each, and the columns of its embedding."""

UNIFORM = {"init": {"type": "kUniformSqrtFanIn"}}


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
    """Return the job of a tagger of the sentences that ``dsinga data import conll`` has imported.

    Args:
        vocabulary: how many codes each store has, by its name: "words", and of "shapes", "prefixes" and "suffixes"
            those that are to be used. ``dsinga data info`` tells them.
        tags: how many tags there are; for F1 of entities, O and the B- and I- of each type.
        data: folder of train, val and test, each with words.zarr and so on; by default that of the job file.
        crf: False for a softmax of each word by itself instead of the conditional random field.
        hidden: units of each direction.
        dropout: share of the embedding and of the hidden units that is dropped in training.
        batchsize: sentences of an iteration.
        job: further fields of the job, such as ``train_steps``.

    Raises:
        UserError: a store that is not known, or no "words".
    """
    if "words" not in vocabulary or not vocabulary.keys() <= FEATURES.keys():
        raise UserError(f"vocabulary has words, and of {', '.join(FEATURES)} what is to be used; not {[*vocabulary]}")
    embedded = [f"{name}_embedding" for name in vocabulary]
    layers = [
        *(one for name in vocabulary for one in _read(name, data, batchsize)),
        *(_embed(name, size) for name, size in vocabulary.items()),
        layer("embedding", "kConcate", *embedded, concate_conf={"concate_dim": 2}),
        layer("drop1", "kDropout", "embedding", dropout_conf={"dropout_ratio": dropout}),
        layer(
            "gru", "kGRU", "drop1", "words", gru_conf={"dim_hidden": hidden, "bidirectional": True},
            param=[*[UNIFORM] * 6, {}, {}, {}] * 2,
        ),
        layer("drop2", "kDropout", "gru", dropout_conf={"dropout_ratio": dropout}),
        layer(
            "scores", "kInnerProduct", "drop2", per_step=True, innerproduct_conf={"num_output": tags}, param=[UNIFORM]
        ),
        layer("tags", "kCRF" if crf else "kSoftmaxLoss", "scores", "words", per_step=not crf),
        layer("entities", "kEntityF1", "tags", "words", exclude=["kTrain"]),
    ]  # fmt: skip
    updater = {"type": "kAdam", "clip_norm": 5.0, "learning_rate": {"type": "kFixed", "base_lr": 0.002}}
    often = {"disp_freq": 106, "validate_freq": 106, "validate_steps": 32, "test_freq": 1060, "test_steps": 41}
    fields = {"name": "bigru-crf", "seed": 1, "train_steps": 1060, **often}
    return Job(**{**fields, "updater": updater, "net": {"layer": layers}, **job})


def _read(name: str, folder: str, batchsize: int) -> list[LayerConf]:
    """Return the layers that read one store of each phase."""
    parts = {"train": ("kTrain", batchsize), "val": ("kVal", 32), "test": ("kTest", 32)}
    return [
        layer(
            name,
            "kRecordInput",
            include=[phase],
            store_conf={"path": posixpath.join(folder, part, f"{name}.zarr"), "batchsize": size},
        )  # fmt: skip
        for part, (phase, size) in parts.items()
    ]


def _embed(name: str, size: int) -> LayerConf:
    """Return the embedding of what one store gives."""
    settings = {"vocab_size": size, "feature_dim": FEATURES[name]}
    init = {"init": {"type": "kGaussian", "std": 0.1}}
    return layer(f"{name}_embedding", "kEmbedding", name, embedding_conf=settings, param=[init])
