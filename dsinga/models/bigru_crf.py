"""Tags words, as for named entities, by a bidirectional GRU and a conditional random field.

The net of the article on PaddlePaddle; Huang, Xu and Yu, Bidirectional LSTM-CRF Models for Sequence Tagging (2015).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Job
from dsinga.models.blocks import embedding, job_fields, layer, read_phases, updater

FEATURES = {"words": 64, "shapes": 16, "prefixes": 24, "suffixes": 24}
"""The stores that describe a word, and the width of the embedding of each."""

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
    """Return the job of a tagger for sentences imported by ``dsinga data import conll``.

    Args:
        vocabulary: number of codes in each store to use, by name: "words", and any of "shapes", "prefixes" and
            "suffixes". ``dsinga data info`` shows these numbers.
        tags: number of different tags; for named entities O, and B- and I- of each type.
        data: folder of train, val and test, each with words.zarr and so on; by default the folder of the job file.
        crf: False for a softmax of each word instead of the conditional random field.
        hidden: number of units of the GRU in each direction.
        dropout: fraction of the embedding and of the hidden units to drop in training.
        batchsize: sentences of an iteration.
        job: further fields of the job, such as ``train_steps``.

    Raises:
        UserError: ``vocabulary`` has an unknown store, or no "words".
    """
    if "words" not in vocabulary or not vocabulary.keys() <= FEATURES.keys():
        raise UserError(f"vocabulary needs 'words' and may have others of {', '.join(FEATURES)}, not {[*vocabulary]}")
    embedded = [f"{name}_embedding" for name in vocabulary]
    layers = [
        *(conf for name in vocabulary for conf in read_phases(name, data, batchsize, 32)),
        *(embedding(f"{name}_embedding", name, size, FEATURES[name]) for name, size in vocabulary.items()),
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
    adam = updater("kAdam", 0.002, clip_norm=5.0)
    return Job(**job_fields(job, name="bigru-crf", seed=1, epochs=10, updater=adam, net={"layer": layers}))
