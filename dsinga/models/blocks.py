"""Building blocks of jobs: single layers, and the input layers, the loss and the job that most nets need.

A net is a list of layers: ``[*records(...), dense("ip", "data", 10), loss("ip")]``. With a loss built by layers of
``dsinga.nn`` it is ``[*records(...), *confs_of(loss)]``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsinga.job import Job, LayerConf

HE = {"type": "kGaussianSqrtFanIn", "value": 1.41421356}
"""Normal initial weights of variance 2/inputs: He et al., Delving Deep into Rectifiers (2015)."""

FAN_IN = {"type": "kUniformSqrtFanIn"}
NORMAL = {"type": "kGaussian", "std": 0.1}
GRU_PARAMS: list[dict[str, Any]] = [*[{"init": FAN_IN}] * 6, {}, {}, {}]  # the params of one direction

TESTS = ("kVal", "kTest")

Init = Mapping[str, Any]


def layer(name: str, type: Any, *sources: str, **fields: Any) -> LayerConf:
    """Return a layer of any type; ``fields`` are further fields, such as ``dropout_conf={...}``."""
    return LayerConf(name=name, type=type, srclayers=list(sources), **fields)


def job_fields(job: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """Complete a job's fields by ``defaults``.

    A given ``epochs`` drops the default ``train_steps`` and frequencies; a given ``train_steps`` drops the default
    ``epochs``.
    """
    replaced = {"train_steps", "disp_freq", "validate_freq", "test_freq"} if "epochs" in job else set()
    replaced |= {"epochs"} if "train_steps" in job else set()
    return {name: value for name, value in defaults.items() if name not in replaced} | {**job}


def make_job(
    job: Mapping[str, Any], name: str, layers: Sequence[LayerConf], updater: Mapping[str, Any], **defaults: Any
) -> Job:
    """Return the job of a net; fields in ``job`` replace the others, as in :func:`job_fields`."""
    return Job(**job_fields(job, name=name, seed=1, **defaults, updater=updater, net={"layer": layers}))


def records(
    folder: str, batchsize: int, shape: Sequence[int], test_batchsize: int = 100, **store: Any
) -> list[LayerConf]:
    """Return the input layers "data": train_data.zarr for training, test_data.zarr for validation and test.

    ``store`` has further store_conf fields for both, such as ``std_value``; ``*_file`` names are relative to
    ``folder``.
    """
    store = {name: posixpath.join(folder, value) if name.endswith("_file") else value for name, value in store.items()}
    store["shape"] = list(shape)
    return [
        read("data", posixpath.join(folder, "train_data.zarr"), ["kTrain"], batchsize, **store),
        read("data", posixpath.join(folder, "test_data.zarr"), TESTS, test_batchsize, **store),
    ]


def read(name: str, path: str, phases: Sequence[str], batchsize: int, **store: Any) -> LayerConf:
    """Return an input layer that reads a store in some phases; ``store`` has further store_conf fields."""
    return layer(name, "kRecordInput", include=phases, store_conf={"path": path, "batchsize": batchsize, **store})


def read_phases(names: str | Iterable[str], folder: str, batchsize: int, test_batchsize: int) -> list[LayerConf]:
    """Return input layers for each name, one a phase, that read <name>.zarr in ``folder``'s train, val and test."""
    parts = {"train": ("kTrain", batchsize), "val": ("kVal", test_batchsize), "test": ("kTest", test_batchsize)}
    return [
        read(name, posixpath.join(folder, part, f"{name}.zarr"), [phase], size)
        for name in ([names] if isinstance(names, str) else names)
        for part, (phase, size) in parts.items()
    ]


def embedding(name: str, source: str, codes: int, width: int, std: float = 0.1) -> LayerConf:
    """Return a kEmbedding layer with normal initial weights of deviation ``std``."""
    init = {"init": {"type": "kGaussian", "std": std}} if std else {"init": {"type": "kConstant", "value": 0.0}}
    return layer(name, "kEmbedding", source, embedding_conf={"vocab_size": codes, "feature_dim": width}, param=[init])


def dense(name: str, source: str, outputs: int, init: Init = HE, **conf: Any) -> LayerConf:
    """Return a fully connected layer (kInnerProduct); ``init`` initialises its weight."""
    return layer(
        name, "kInnerProduct", source, innerproduct_conf={"num_output": outputs, **conf}, param=[{"init": init}]
    )


def conv(name: str, source: str, filters: int, kernel: int = 3, init: Init = HE, **conf: Any) -> LayerConf:
    """Return a convolution (kConvolution); ``init`` initialises its weight, ``conf`` has ``stride`` or ``pad``."""
    settings = {"num_filters": filters, "kernel": kernel, **conf}
    return layer(name, "kConvolution", source, convolution_conf=settings, param=[{"init": init}])


def pool(name: str, source: str, method: str = "MAX", kernel: int = 3, stride: int = 2) -> LayerConf:
    """Return a pooling layer (kPooling) by its settings."""
    return layer(name, "kPooling", source, pooling_conf={"pool": method, "kernel": kernel, "stride": stride})


def relu(name: str, source: str) -> LayerConf:
    """Return a rectifier layer (kReLU)."""
    return layer(name, "kReLU", source)


def loss(source: str, name: str = "loss", **conf: Any) -> LayerConf:
    """Return a softmax loss (kSoftmaxLoss) with labels from "data"."""
    return layer(name, "kSoftmaxLoss", source, "data", softmaxloss_conf=conf or None)


def updater(type: str, rate: float, **settings: Any) -> dict[str, Any]:
    """Return a job's updater as a dict: type, fixed learning rate, and settings such as ``momentum``."""
    return {"type": type, **settings, "learning_rate": {"type": "kFixed", "base_lr": rate}}


def sgd_by_steps(rates: Mapping[int, float], weight_decay: float) -> dict[str, Any]:
    """Return SGD with momentum 0.9 and a learning rate that changes at the steps in ``rates``."""
    rate = {"type": "kFixedStep", "fixedstep_conf": {"step": [*rates], "step_lr": [*rates.values()]}}
    return {"type": "kSGD", "momentum": 0.9, "weight_decay": weight_decay, "learning_rate": rate}
