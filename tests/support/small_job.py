"""The small job that the tests of the cluster train, and comparisons of params."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.job import ClusterConf, Job, loads

# Layers whose results must not depend on how the batch is cut: convolution, normalisation over the whole batch, dropout
# keyed by the global row, a loss that divides by the global batch.
JOB = """
name: "small"
train_steps: 50
disp_freq: 10
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 weight_decay: 0.001 learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain
    store_conf { path: "train.zarr" batchsize: 100 shape: 1 shape: 8 shape: 8 std_value: 16 } }
  layer { name: "data" type: kRecordInput include: kTest
    store_conf { path: "test.zarr" batchsize: 64 shape: 1 shape: 8 shape: 8 std_value: 16 } }
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 8 kernel: 3 pad: 1 }
    param { name: "w1" init { type: kUniformSqrtFanIn } } param { name: "b1" init { type: kConstant value: 0 } } }
  layer { name: "relu" type: kReLU srclayers: "conv" }
  layer { name: "norm" type: kBM srclayers: "relu" }
  layer { name: "pool" type: kPooling srclayers: "norm" pooling_conf { kernel: 2 stride: 2 } }
  layer { name: "drop" type: kDropout srclayers: "pool" dropout_conf { dropout_ratio: 0.2 } }
  layer { name: "ip" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 10 }
    param { name: "w2" init { type: kUniformSqrtFanIn } }
    param { name: "b2" lr_scale: 2 init { type: kConstant value: 0 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


# A linear classifier: where a test is about records, and not about layers. Overrides give it a path, sizes and steps.
LINEAR = """
name: "linear" train_steps: 8
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 20 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { name: "w" init { type: kUniform low: -0.1 high: 0.1 } } param { name: "b" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


# A table of words, whose gradients are sparse rows; STORE stands for where its records are.
WORDS = """
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { STORE } }
  layer { name: "embed" type: kEmbedding srclayers: "data" embedding_conf { vocab_size: 50 feature_dim: 3 }
    param { name: "table" init { type: kGaussian std: 0.5 } } }
  layer { name: "ip" type: kInnerProduct srclayers: "embed" innerproduct_conf { num_output: 10 }
    param { name: "w" init { type: kGaussian std: 0.3 } } param { name: "b" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def linear(*overrides: str) -> Job:
    """Return the linear job with fields of its input layer, as ``"path=x.zarr"``, or of the whole job, as "=seed=1"."""
    fields = (text[1:] if text[0] == "=" else f"neuralnet.layer[data].store_conf.{text}" for text in overrides)
    return loads(LINEAR, "linear.conf", list(fields))


def with_topology(job: Job, workers: int, servers: int = 1) -> Job:
    """Return the job with one group of so many workers and servers."""
    cluster = ClusterConf(nworkers_per_group=workers, nservers_per_group=servers)
    return job.replace(cluster=cluster)


def place_layers(job: Job, places: Mapping[str, int | str]) -> None:
    """Give the layers of a job their partition_dim, or the worker that computes them, "at 1", by their names."""
    for layer in job.neuralnet.layer:
        place = places.get(layer.name)
        if isinstance(place, str):
            layer.location = int(place.removeprefix("at "))
        elif place is not None:
            layer.partition_dim = place


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that two sets of params are equal."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def assert_close(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Assert that two sets of params differ by at most ``tolerance`` of the largest value of each param."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        atol = tolerance * np.abs(value).max()
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=atol, err_msg=name)


def without_restarts(job: Job) -> Job:
    """Return the job such that its run ends where a Dask worker is lost."""
    return job.replace(cluster=(job.cluster or ClusterConf()).replace(max_restarts=0))
