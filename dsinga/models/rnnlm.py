"""A language model of words: a simple recurrent layer and a softmax that is factored by classes of words.

Mikolov et al., Extensions of recurrent neural network language model (2011); the net of SINGA's rnnlm example, over
streams of text instead of one sentence at a time.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

from dsinga.job import Job
from dsinga.models.blocks import job_fields, layer

UNIFORM = {"init": {"type": "kUniform", "low": -0.1, "high": 0.1}}


def rnnlm(
    counts: Sequence[int],
    data: str = "",
    *,
    classes: int = 100,
    hidden: int = 100,
    steps: int = 20,
    batchsize: int = 20,
    learning_rate: float = 0.2,
    **job: Any,
) -> Job:
    """Return the job of a language model of words imported by ``dsinga data import text --words``.

    Args:
        counts: number of times that each word occurs in the training text, by code; frequent words have low codes.
        data: folder of train_text.zarr, valid_text.zarr and test_text.zarr; by default the folder of the job file.
        classes: number of classes of words; each class makes up about the same share of the text.
        hidden: number of units of the recurrent layer, and width of the embedding.
        steps: number of words through which a gradient goes back.
        batchsize: number of streams of text that are read at once.
        learning_rate: learning rate of SGD; gradients are sums over the words of a stream, clipped to a norm of 5.
        job: further fields of the job, such as ``train_steps``.
    """
    words = len(counts)
    one_to_all = {"unroll_conn_type": ["kUnrollOneToAll"]}
    factored = {"vocab_size": words, "class_start": frequency_classes(counts, classes)}
    read = {"unroll_len": steps, "batchsize": batchsize}
    layers = [
        *(
            layer(
                "text", "kCharRNN", include=[phase], unroll_len=1,
                char_rnn_conf={"path": posixpath.join(data, f"{part}_text.zarr"), **read},
            )
            for part, phase in (("train", "kTrain"), ("valid", "kVal"), ("test", "kTest"))
        ),
        layer("next", "kRNNLabel", "text", **one_to_all),
        layer(
            "embedding", "kEmbedding", "text", embedding_conf={"vocab_size": words, "feature_dim": hidden},
            param=[UNIFORM], **one_to_all,
        ),
        layer("hidden", "kRNN", "embedding", rnn_conf={"dim_hidden": hidden}, param=[UNIFORM, UNIFORM]),
        layer("loss", "kClassSoftmaxLoss", "hidden", "next", classsoftmaxloss_conf=factored, param=[UNIFORM, UNIFORM]),
    ]  # fmt: skip
    rate = {"type": "kFixed", "base_lr": learning_rate}
    fields = {"name": "rnnlm", "seed": 1, "epochs": 5, "train_one_batch": {"alg": "kBPTT"}}
    updater = {"type": "kSGD", "clip_norm": 5.0, "learning_rate": rate}
    return Job(**job_fields(job, **fields, updater=updater, net={"unroll_len": steps, "layer": layers}))


def frequency_classes(counts: Sequence[int], classes: int) -> list[int]:
    """Return the first word of each class; a class has neighbouring words that make up its share of the text.

    The rule of Mikolov's rnnlm and of SINGA: the word that completes the share of its class is the last in it. A word
    more frequent than a share is a class on its own, so there may be fewer classes than ``classes``.
    """
    total, seen, number, starts = sum(counts), 0, 0, [0]
    for word, count in enumerate(counts[:-1]):
        seen += count
        if seen * classes > (number + 1) * total and number < classes - 1:
            number += 1
            starts.append(word + 1)
    return starts
