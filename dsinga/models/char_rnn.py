"""A language model of characters: SINGA's char-rnn."""

from __future__ import annotations

import posixpath
from typing import Any

from dsinga.job import Job
from dsinga.models.blocks import job_fields, layer

UNIFORM = {"init": {"type": "kUniform", "low": -0.08, "high": 0.08}}


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
        vocabulary: number of different characters in the text; ``dsinga data info`` shows it.
        data: folder of train_data.zarr and test_data.zarr, made by ``dsinga data import text --held-out``; by default
            the folder of the job file.
        hidden: number of units of each recurrent layer.
        layers: number of recurrent layers, one above the other.
        cell: kGRU, kLSTM or kRNN.
        steps: number of characters through which a gradient goes back.
        batchsize: number of positions of the text that are read at once.
        job: further fields of the job, such as ``train_steps``.
    """
    kind = cell.removeprefix("k").lower()
    params = [UNIFORM] * (9 if cell == "kGRU" else 3)

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
        layer("ip1", "kInnerProduct", source, innerproduct_conf={"num_output": vocabulary}, param=[UNIFORM] * 2),
        layer("loss", "kSoftmaxLoss", "ip1", "label"),
    ]
    rate = {"type": "kStep", "base_lr": 0.002, "step_conf": {"gamma": 0.97, "change_freq": 2000}}
    updater = {
        "type": "kRMSProp", "rmsprop_conf": {"rho": 0.95}, "learning_rate": rate, "clip_low": -5.0, "clip_high": 5.0,
    }  # fmt: skip
    often = {"train_steps": 20000, "disp_freq": 100, "test_freq": 1000, "test_steps": 20, "checkpoint_freq": 1000}
    fields = {"name": "char-rnn", "seed": 1, "train_one_batch": {"alg": "kBPTT"}, **often}
    return Job(**job_fields(job, **fields, updater=updater, net={"unroll_len": steps, "layer": net}))
