"""Language models: of words, with a softmax factored by classes of words, and of characters (SINGA's char-rnn).

The model of words is SINGA's rnnlm example, over streams of text instead of single sentences: Mikolov et al.,
Extensions of recurrent neural network language model (2011).
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

from dsinga.api.argument_types import typed
from dsinga.job import Job
from dsinga.models.blocks import job_fields, layer, updater

UNIFORM = {"init": {"type": "kUniform", "low": -0.1, "high": 0.1}}
CHARACTERS_UNIFORM = {"init": {"type": "kUniform", "low": -0.08, "high": 0.08}}


@typed("models.")
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
        counts: how often each word occurs in the training text, by code; frequent words have low codes.
        data: folder with train_text.zarr, valid_text.zarr and test_text.zarr.
        classes: number of word classes; each makes up about the same share of the text.
        hidden: units of the recurrent layer, and width of the embedding.
        steps: number of words through which a gradient goes back.
        batchsize: streams of text read at once.
        learning_rate: for SGD; gradients are sums over the words of a stream, clipped to a norm of 5.
        job: further fields of the job.
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
    fields = {"name": "rnnlm", "seed": 1, "epochs": 5, "train_one_batch": {"alg": "kBPTT"}}
    sgd = updater("kSGD", learning_rate, clip_norm=5.0)
    return Job(**job_fields(job, **fields, updater=sgd, net={"unroll_len": steps, "layer": layers}))


def frequency_classes(counts: Sequence[int], classes: int) -> list[int]:
    """Divide words, sorted by frequency, into classes of equal shares of the text; return each class's first word.

    As in Mikolov's rnnlm and SINGA, a class ends with the word that completes its share. A word more frequent than a
    share is a class on its own, so there can be fewer classes than ``classes``.
    """
    total, seen, number, starts = sum(counts), 0, 0, [0]
    for word, count in enumerate(counts[:-1]):
        seen += count
        if seen * classes > (number + 1) * total and number < classes - 1:
            number += 1
            starts.append(word + 1)
    return starts


@typed("models.")
def char_rnn(
    vocabulary: int = 101,
    data: str = "",
    *,
    hidden: int = 512,
    layers: int = 1,
    cell: str = "kGRU",
    steps: int = 50,
    batchsize: int = 50,
    **job: Any,
) -> Job:
    """Return the job of a net that predicts the next character of a text, with the settings of SINGA's example.

    Args:
        vocabulary: number of different characters in the text, which ``dsinga data info`` shows.
        data: folder with train_data.zarr and test_data.zarr, made by ``dsinga data import text --held-out``.
        hidden: units of each recurrent layer.
        layers: number of stacked recurrent layers.
        cell: kGRU, kLSTM or kRNN.
        steps: number of characters through which a gradient goes back.
        batchsize: positions of the text read at once.
        job: further fields of the job.
    """
    kind = cell.removeprefix("k").lower()
    params = [CHARACTERS_UNIFORM] * (9 if cell == "kGRU" else 3)

    def read(part: str, phases: list[str]) -> Any:
        text = {"path": posixpath.join(data, f"{part}_data.zarr"), "batchsize": batchsize, "unroll_len": steps}
        return layer("data", "kCharRNN", include=phases, unroll_len=1, char_rnn_conf=text)

    one_to_all = {"unroll_conn_type": ["kUnrollOneToAll"]}
    net = [
        read("train", ["kTrain"]),
        read("test", ["kVal", "kTest"]),
        layer("onehot", "kOneHot", "data", onehot_conf={"vocab_size": vocabulary}, **one_to_all),
        layer("label", "kRNNLabel", "data", **one_to_all),
    ]
    source = "onehot"
    for number in range(1, layers + 1):
        name = f"{kind}{number}"
        net.append(layer(name, cell, source, param=params, **{f"{kind}_conf": {"dim_hidden": hidden}}))
        source = name
    net += [
        layer(
            "ip1", "kInnerProduct", source, innerproduct_conf={"num_output": vocabulary}, param=[CHARACTERS_UNIFORM] * 2
        ),
        layer("loss", "kSoftmaxLoss", "ip1", "label"),
    ]
    rate = {"type": "kStep", "base_lr": 0.002, "step_conf": {"gamma": 0.97, "change_freq": 2000}}
    rmsprop = {
        "type": "kRMSProp", "rmsprop_conf": {"rho": 0.95}, "learning_rate": rate, "clip_low": -5.0, "clip_high": 5.0,
    }  # fmt: skip
    often = {"train_steps": 20000, "disp_freq": 100, "test_freq": 1000, "test_steps": 20, "checkpoint_freq": 1000}
    fields = {"name": "char-rnn", "seed": 1, "train_one_batch": {"alg": "kBPTT"}, **often}
    return Job(**job_fields(job, **fields, updater=rmsprop, net={"unroll_len": steps, "layer": net}))
