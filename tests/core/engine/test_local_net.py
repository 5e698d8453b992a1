"""One's own loop on numpy arrays gives the bits of dsinga.train, whole and cut, for batches of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

import dsinga
from dsinga import RunError, nn
from dsinga.api import roots
from dsinga.cutting import cut_runner as local_cut
from dsinga.data import open_store
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, Phase
from dsinga.ops import Processor, SparseRows
from dsinga.reading.checked_job import CheckedJob
from tests.support.device_array import StubOps
from tests.support.refusals import refused
from tests.support.small_job import assert_close, assert_same, with_topology

Arrays = dict[str, np.ndarray]


def batches(job: Job, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the batches of training, as arrays."""
    reader = CheckedJob(job, roots(job, None)).reader(Phase.kTrain)
    return [reader.stores["data"].read(reader.sampler.rows(step)) for step in range(steps)]


def own_loop(net: LocalNet, steps: int) -> tuple[Arrays, list[float]]:
    params, updater, losses = net.initial_params(), net.updater(), []
    for x, y in batches(net.job, steps):
        result = net.backward(params, x, y)
        updater.step(params, result.gradients)
        losses.append(result.loss)
    return params, losses


def cut_by_features(job: Job) -> Job:
    layers = [layer.replace(partition_dim=1) if layer.name == "ip" else layer for layer in job.neuralnet.layer]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_loop_gives_the_bits_of_a_cluster(job: Job, threads: Client, workers: int) -> None:
    job = cut_by_features(with_topology(job, workers)).replace(train_steps=6, disp_freq=1)
    result = dsinga.train(job, threads, progress=False)
    net = LocalNet(job, roots=roots(job, None))
    params, losses = own_loop(net, 6)
    assert_same(params, result.params)
    assert losses == list(result.history.phase("train")[:, "loss"])
    expected = dsinga.predict(job, result.params, "ip", client=threads)
    store = open_store("test.zarr", roots=roots(job, None))
    x, y = store.read(range(len(store)))
    np.testing.assert_allclose(net.predict(params, x, "ip", batchsize=100), expected, rtol=0, atol=1e-4)
    metrics = dsinga.evaluate(job, result.params, client=threads)
    assert net.evaluate(params, x, y, batchsize=70) == pytest.approx(metrics, rel=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 100, 230])
def test_a_cut_net_computes_batches_of_any_size(job: Job, rows: int) -> None:
    whole, cut = (LocalNet(cut_by_features(with_topology(job, n)), roots=roots(job, None)) for n in (1, 3))
    store = open_store("train.zarr", roots=roots(job, None))
    x, y = store.read(range(rows))
    params = whole.initial_params()
    first, second = whole.backward(params, x, y), cut.backward(params, x, y)
    assert_close(second.gradients, first.gradients, 1e-5)
    assert second.metrics == pytest.approx(first.metrics, rel=1e-5)
    names = ["conv", "pool", "ip", "loss"]
    before, after = whole.forward(params, x, y, layers=names), cut.forward(params, x, y, layers=names)
    assert_close(after.outputs, before.outputs, 1e-5)
    assert after.loss == pytest.approx(before.loss, rel=1e-5)
    unlabelled = cut.forward(params, x)
    assert list(unlabelled.outputs) == ["ip"]
    np.testing.assert_allclose(unlabelled.outputs["ip"], before.outputs["ip"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cut.predict(params, x, "loss"), before.outputs["loss"], rtol=1e-4, atol=1e-6)


class NumpyDevice(StubOps):
    """The simulated device, as the kernels of a worker."""

    def for_worker(self, device: int = 0, precision: str = "float32") -> NumpyDevice:
        return self


CUTS = """
name: "cuts" seed: 2
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 8 } }
  layer { name: "a" type: kInnerProduct srclayers: "data" A innerproduct_conf { num_output: 7 }
    param { name: "wa" init { type: kUniformSqrtFanIn } } param { name: "ba" init { type: kConstant } } }
  layer { name: "drop" type: kDropout srclayers: "a" dropout_conf { dropout_ratio: 0.3 } }
  layer { name: "b" type: kInnerProduct srclayers: "drop" B innerproduct_conf { num_output: 4 }
    param { name: "wb" init { type: kUniformSqrtFanIn } } param { name: "bb" init { type: kConstant } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "b" srclayers: "data" }
}
"""
CUT = st.sampled_from(["", "partition_dim: 0", "partition_dim: 1", "partition_dim: -1", "location: 1"])


WHOLE = CUTS.replace("A ", "").replace("B ", "")
TANH = "activation_conf { type: TANH }"
SMALL = WHOLE.replace("kDropout", "kActivation").replace("dropout_conf { dropout_ratio: 0.3 }", TANH)


def test_the_quickest_kernels_of_a_small_net_give_the_gradients_of_the_usual_ones() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 5)).astype(np.float32), rng.integers(0, 4, 8)
    usual, small = (LocalNet(dsinga.loads(SMALL), x, y, is_small=is_small) for is_small in (False, True))
    params = usual.initial_params()
    expected, actual = (net.backward(params, x, y).gradients for net in (usual, small))
    for name, gradient in expected.items():
        np.testing.assert_allclose(actual[name], gradient, rtol=1e-5, atol=1e-7)
    params = {name: value * np.float32(1e30) for name, value in params.items()}
    outputs = small.forward(params, np.full((8, 5), 1e30, np.float32), layers=["a"]).outputs
    assert not np.isfinite(outputs["a"]).all(), "and overflow is not warned of"


@settings(max_examples=20)
@given(a=CUT, b=CUT, workers=st.integers(2, 4), rows=st.integers(4, 11), step=st.integers(0, 3))
def test_any_cut_gives_the_gradients_and_features_of_the_whole_net(a, b, workers, rows, step):
    job = dsinga.loads(CUTS.replace("A inner", f"{a} inner").replace("B inner", f"{b} inner"))
    rng = np.random.default_rng(rows)
    x, y = rng.normal(size=(rows, 5)), rng.integers(0, 4, rows)
    whole = LocalNet(dsinga.loads(WHOLE), x, y)
    cut = LocalNet(job, x, y, workers=workers)
    params = whole.initial_params()
    first, second = (net.backward(params, x, y, step=step) for net in (whole, cut))
    assert_close(second.gradients, first.gradients, 1e-5)
    assert second.metrics == pytest.approx(first.metrics, rel=1e-5)
    layers = ["a", "drop", "b", "loss"]
    before, after = (net.forward(params, x, y, layers=layers, phase="train", step=step) for net in (whole, cut))
    assert_close(after.outputs, before.outputs, 1e-5)
    given = {"b": before.outputs["loss"] - np.eye(4)[y]}  # the softmax loss, as a loss of one's own
    third = cut.backward(params, x, gradients=given, step=step)
    assert_close(third.gradients, first.gradients, 1e-5)
    assert third.loss == pytest.approx(np.sum(given["b"] * before.outputs["b"]) / rows, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("gradients", "y", "message"),
    [
        ({}, None, "give those of at least one layer, and no y"),
        ({"b": np.zeros((8, 4))}, np.zeros(8, int), "give those of at least one layer, and no y"),
        ({"bb": np.zeros((8, 4))}, None, "no layer 'bb' in phase kTrain; did you mean 'b'"),
        ({"loss": np.zeros((8, 3))}, None, r"'gradient of loss' gets records of shape \(3,\), but the net was"),
        ({"b": np.zeros((7, 4))}, None, "'gradient of b' gets 7 records in a batch of 8 records"),
    ],
)
def test_gradients_that_do_not_fit(gradients: Arrays, y: np.ndarray | None, message: str) -> None:
    x = np.zeros((8, 5), np.float32)
    net = LocalNet(dsinga.loads(WHOLE), x, np.zeros(8, int))
    refused(lambda: net.backward(net.initial_params(), x, y, gradients=gradients), message)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_device_computes_the_same(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    job = dsinga.loads(CUTS.replace("A inner", "partition_dim: 1 inner").replace("B ", ""))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 5)), rng.integers(0, 4, 8)
    host = LocalNet(job, x, y, workers=workers)
    params = host.initial_params()
    device = NumpyDevice()
    monkeypatch.setattr(Processor, "ops", lambda _: device)
    monkeypatch.setattr(local_cut, "cpu_ops", lambda precision: device)
    net = LocalNet(job, x, y, workers=workers)
    first, second = host.backward(params, x, y), net.backward(params, x, y)
    assert_close(second.gradients, first.gradients, 1e-5)
    net.updater().step(params, second.gradients)
    np.testing.assert_allclose(net.predict(params, x, "b"), host.predict(params, x, "b"), rtol=1e-4, atol=1e-6)


EMBEDDING = """
name: "words" train_steps: 3 seed: 4
updater { type: kAdaGrad learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "none.zarr" batchsize: 8 } }
  layer { name: "embed" type: kEmbedding srclayers: "data" partition_dim: DIM
    embedding_conf { vocab_size: 20 feature_dim: 6 }
    param { name: "table" init { type: kUniform low: -1 high: 1 } } }
  layer { name: "ip" type: kInnerProduct srclayers: "embed" innerproduct_conf { num_output: 5 }
    param { name: "w" init { type: kUniformSqrtFanIn } } param { name: "b" init { type: kConstant } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


@pytest.mark.parametrize("dim", [0, 1])
def test_sparse_gradients_of_a_cut_embedding_are_joined(dim: int) -> None:
    job = dsinga.loads(EMBEDDING.replace("DIM", str(dim)))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 20, (8, 1), dtype=np.int32)[:, 0], rng.integers(0, 5, 8)
    nets = [LocalNet(job, x, y, workers=workers) for workers in (1, 2)]
    params = nets[0].initial_params()
    first, second = (net.backward(params, x, y).gradients for net in nets)
    assert isinstance(second["table"], SparseRows)
    np.testing.assert_array_equal(second["table"].rows, first["table"].rows)
    np.testing.assert_allclose(second["table"].dense(), first["table"].dense(), rtol=1e-5, atol=1e-7)
    before = params["table"].copy()
    nets[1].updater().step(params, second)
    changed = np.flatnonzero((params["table"] != before).any(axis=1))
    np.testing.assert_array_equal(changed, np.unique(x))


def test_arrays_that_cannot_change_are_replaced(job: Job) -> None:
    net = LocalNet(job, np.zeros((1, 64), np.uint8), np.zeros(1, int))
    params = net.initial_params()
    params["w2"].flags.writeable = False
    params["b2"] = params["b2"].astype(np.float64)
    before = params["w2"]
    gradients = {name: np.ones(param.shape, np.float32) for name, param in net.net.params.items()}
    net.updater().step(params, gradients)
    assert params["w2"] is not before
    np.testing.assert_allclose(params["b2"], -0.02)
    np.testing.assert_array_equal(params["norm_mean"], 1)  # a running mean is replaced


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 63)), np.zeros(3, int), "'data' gets records of shape .63,., but the net was made for .64,."),
        (np.zeros((3, 64)), np.zeros(4, int), "'data' gets 4 labels in a batch of 3 records"),
        (np.zeros((0, 64)), np.zeros(0, int), "the batch is empty"),
        ({"date": np.zeros((3, 64))}, None, "lacks records for the input layer 'data'"),
        (np.zeros((3, 64)), np.full(3, 10), "label 10 is none of its 10 classes"),
        (np.zeros((3, 64)), None, "'data' has no labels"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(job: Job, x: Any, y: Any, message: str) -> None:
    net = LocalNet(job, np.zeros((1, 64), np.uint8), np.zeros(1, int))
    refused(lambda: net.backward(net.initial_params(), x, y), message)


def test_mistakes_are_named_with_their_remedies(job: Job) -> None:
    x = np.zeros((4, 5), np.float32)
    net = LocalNet(nn.Sequential([nn.Input(shape=5), nn.Dense(2)]).job(), x)
    refused(lambda: net.backward(net.initial_params(), x), "no loss layer in phase", "first")
    net = LocalNet(job, np.zeros((1, 64), np.uint8), np.zeros(1, int))
    params, x = net.initial_params(), np.zeros((2, 64))
    refused(lambda: net.predict(params, x, "conb"), "'conb'", "did you mean 'conv'")
    refused(lambda: net.forward(params, x, phase="testing"), "no phase 'testing'")
    refused(lambda: net.updater().step(params, {"w3": np.zeros(3, np.float32)}), "'w3', which is no param")
    refused(lambda: net.updater().step({}, {"w2": np.zeros((10, 128), np.float32)}), "'w2'", "given params lack")


WEIGHTED = """
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 4 } }
  layer { name: "weights" type: kRecordInput store_conf { batchsize: 4 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "target" type: kLabel srclayers: "data" }
  layer { name: "loss" type: kSigmoidCrossEntropyLoss srclayers: ["ip", "target", "weights"] }
}
"""


@pytest.mark.parametrize("size", [1, 4])
def test_metrics_are_weighted_over_all_batches(size: int) -> None:
    rng = np.random.default_rng(0)
    x = {"data": rng.normal(size=(11, 6)).astype(np.float32), "weights": rng.uniform(0, 2, 11).astype(np.float32)}
    y = {"data": rng.integers(0, 2, (11, 3)).astype(np.float32)}
    net = LocalNet(dsinga.loads(WEIGHTED), x, y)
    params = {"ip_weight": rng.normal(size=(3, 6)).astype(np.float32), "ip_bias": np.zeros(3, np.float32)}
    scores = x["data"] @ params["ip_weight"].T
    losses = np.logaddexp(0, scores) - scores * y["data"]
    right = ((scores > 0) == (y["data"] > 0.5)).mean(axis=1)
    expected = {"loss": (losses.sum(axis=1) * x["weights"]).mean(), "accuracy": np.average(right, weights=x["weights"])}
    assert net.evaluate(params, x, y, batchsize=size) == pytest.approx(expected, rel=1e-5)


def test_passes_that_are_replayed_give_the_results_of_the_first_ones() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 9, 8)).astype(np.float32), rng.integers(0, 3, (12, 9))
    net = LocalNet(dsinga.loads(WHOLE), x[0], y[0])
    params, updater = net.initial_params(), net.updater()
    target = {name: value + np.float32(0.1) for name, value in params.items()}
    kept = []
    for step in range(12):
        new = LocalNet(dsinga.loads(WHOLE), x[0], y[0])
        for values in (params, target):
            kept.append((net.forward(values, x[step]).outputs, new.forward(values, x[step]).outputs))
        result, expected = (each.backward(params, x[step], y[step], step=step) for each in (net, new))
        kept.append((result.gradients, expected.gradients))
        assert result.metrics == expected.metrics
        updater.step(params, result.gradients)
    for arrays, expected_arrays in kept:  # which later replays have not overwritten
        assert list(arrays) == list(expected_arrays)
        assert_same(arrays, expected_arrays)
    copied = {name: value.copy() for name, value in params.items()}
    assert_same(net.forward(copied, x[0]).outputs, net.forward(params, x[0]).outputs)
    assert_same(net.forward(params, x[0].astype(float)).outputs, net.forward(params, x[0]).outputs)
    x[0, 4, 2] = np.nan
    refused(lambda: net.backward(params, x[0], y[0]), "has NaN", "4, column 2")
    next(iter(params.values()))[:] = 3e38
    assert len(net._captured) == 3
    with pytest.raises(RunError, match="not finite"), np.errstate(all="ignore"):
        net.backward(params, x[1], y[1])


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_nan_in_arrays_is_refused_with_record_and_column(number: float) -> None:
    model = nn.Sequential([nn.Input((3,)), nn.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((20, 3), np.float32), np.ones(20, np.float32)
    model.predict(x)
    bad, value = x.copy(), "NaN" if np.isnan(number) else "infinity"
    bad[13, 2] = number
    for call in (lambda: model.predict(bad, batch_size=8), lambda: model.evaluate(bad, y, batch_size=8)):
        refused(call, f"'x' of layer '.*' has {value} in record 13, column 2; leave such")
    refused(lambda: model.evaluate(x, bad[:, 2]), f"'y' of layer '.*' has {value} in record 13")


@pytest.mark.parametrize("workers", [1, 2])
def test_micro_batches_give_the_gradients_of_the_batch(workers: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 8)).astype(np.float32), rng.integers(0, 3, 12)
    whole, parts = (LocalNet(dsinga.loads(WHOLE).replace(micro_batches=n), x, y, workers=workers) for n in (1, 3))
    params = whole.initial_params()
    first, second = whole.backward(params, x, y), parts.backward(params, x, y)
    assert_close(second.gradients, first.gradients, 1e-6)
    np.testing.assert_allclose(second.loss, first.loss, rtol=1e-6)
    refused(lambda: parts.backward(params, x[:10], y[:10]), "micro_batches", "into 3 equal")


def test_values_that_are_known_take_the_place_of_initial_ones(job: Job) -> None:
    net = LocalNet(job, roots=roots(job, None))
    initial = net.initial_params()
    (first, *_), known = initial, {name: array + 1 for name, array in reversed(initial.items())}
    assert list(net.initial_params(known)) == list(initial)
    assert all(net.initial_params(known)[name] is array for name, array in known.items())
    del known[first]
    assert (net.initial_params(known)[first] == initial[first]).all()
    assert list(net.initial_params({"further": initial[first]})) == [*initial, "further"]
