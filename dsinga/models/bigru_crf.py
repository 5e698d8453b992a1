"""Tags words, as for named entities, by a bidirectional GRU and a conditional random field.

The net of the article on PaddlePaddle; Huang, Xu and Yu, Bidirectional LSTM-CRF Models for Sequence Tagging (2015).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga import nn
from dsinga.base.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.job import Job
from dsinga.models.blocks import FAN_IN, GRU_PARAMS, NORMAL, make_job, read_phases, updater
from dsinga.nn.writing.net_conf import confs_of

FEATURES = {"words": 64, "shapes": 16, "prefixes": 24, "suffixes": 24}
"""The stores that describe a word, and the width of the embedding of each."""


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
    inputs = {name: nn.Input(1, name) for name in vocabulary}  # of any length
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
