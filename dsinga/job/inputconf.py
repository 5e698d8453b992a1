"""The configuration of input layers, and of stores (SINGA 0.3's job.proto)."""

from __future__ import annotations

from dataclasses import field

from dsinga.job.message import Message


class StoreConf(Message):
    """Where an input layer reads its records, or an output layer writes its results."""

    backend: str | None = None
    path: str | None = None
    separator: str = ","
    mean_file: str | None = None
    std_file: str | None = None
    mean_value: float | None = None
    std_value: float | None = None
    batchsize: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    encoded: bool = False
    random_skip: int = 0
    has_label: bool = True
    prefetching: bool = False


class DataConf(Message):
    """kLMDBData and kShardData: a store by path."""

    path: str
    batchsize: int
    random_skip: int = 0


class MnistConf(Message):
    """kMnist: x/norm_a - norm_b; the elastic distortion of SINGA's documentation was never in its source."""

    norm_a: float = 1.0
    norm_b: float = 0.0
    kernel: int = 0
    sigma: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    resize: int = 0
    elastic_freq: int = 0


class RGBImageConf(Message):
    """kImagePreprocess and kRGBImage: crop, mirror, scale; ``cropsize`` 0 keeps the whole image.

    Beyond SINGA: ``pad`` pixels of zeros on every side, before the cut.
    """

    scale: float = 1.0
    cropsize: int = 0
    mirror: bool = False
    meanfile: str = ""
    pad: int = 0


class CharRNNConf(Message):
    """kCharRNN: a text, its vocabulary, streams and steps."""

    path: str | None = None
    vocab_path: str | None = None
    unroll_len: int = 50
    batchsize: int = 1


class OnehotConf(Message):
    """kOneHot."""

    vocab_size: int = 0
