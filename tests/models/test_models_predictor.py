"""Predictor: a net with fixed params in any thread and process, in batches, with labels and with carried states."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dsinga
from dsinga.engine.local_net import LocalNet
from dsinga.job import Phase
from dsinga.layers import RecordInfo, Records
from dsinga.models import char_rnn
from dsinga.net import NeuralNet, create_net
from dsinga.passes import predictor as predictor_module
from dsinga.passes.predictor import Predictor
from tests.support.device_array import StubOps

JOB = """
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 8 } }
  layer { name: "fc" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 7 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "ip" type: kInnerProduct srclayers: "fc" innerproduct_conf { num_output: 3 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 5)).astype(np.float32), RNG.integers(0, 3, 20)
RECORDS = {"data": Records(X, Y)}


@pytest.fixture
def local_net() -> LocalNet:
    return LocalNet(dsinga.loads(JOB), X, Y)


def create(layers: int) -> NeuralNet:
    """Return the test net with its first layers."""
    conf = dsinga.loads(JOB).neuralnet
    return create_net(conf.replace(layer=conf.layer[:layers]), Phase.kTest, {"data": RecordInfo((5,), 8)})


@pytest.fixture
def predictor(local_net: LocalNet) -> Predictor:
    return Predictor(create(4), local_net.initial_params())


def test_any_thread_and_a_pickled_copy_compute_the_bits_of_the_local_net(predictor: Predictor, local_net: LocalNet):
    expected = local_net.forward(local_net.initial_params(), X, Y, layers=["fc", "ip"])
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(predictor.forward, RECORDS, 20, ("fc", "ip")) for _ in range(6)]
        results = [future.result(timeout=60) for future in futures]
    results.append(pickle.loads(pickle.dumps(predictor)).forward(RECORDS, 20, ("fc", "ip")))
    for features, metrics in results:
        assert metrics == expected.metrics.sums
        for name in ("fc", "ip"):
            np.testing.assert_array_equal(features[name].data, expected.outputs[name])


def test_labels_come_with_features_of_as_many_rows(predictor: Predictor) -> None:
    features, _ = predictor.forward(RECORDS, 20, ("data", "ip", "loss"))
    for feature in features.values():
        np.testing.assert_array_equal(feature.labels, Y)
    other_rows = {"data": Records(X, Y[:19])}
    assert predictor.for_net(create(2)).forward(other_rows, 20, ("fc",))[0]["fc"].labels is None


@pytest.mark.parametrize("rows", [1, 8, 20])
def test_records_are_predicted_in_batches_of_bounded_memory(predictor: Predictor, monkeypatch, rows: int) -> None:
    expected = predictor.forward(RECORDS, 20, ("ip",))[0]["ip"].data
    monkeypatch.setattr(predictor_module, "batch_rows", lambda net: rows)
    np.testing.assert_allclose(predictor.for_net(create(3)).predict(X, "ip"), expected, rtol=1e-5, atol=1e-6)


def test_params_are_copied_to_a_device_once(local_net: LocalNet, predictor: Predictor) -> None:
    params, ops = local_net.initial_params(), StubOps()
    on_device = Predictor(create(4), params, ops=lambda: ops)
    expected = predictor.forward(RECORDS, 20, ("ip",))[0]["ip"].data
    for net in (create(4), create(3), create(4)):
        features, _ = on_device.for_net(net).forward(RECORDS, 20, ("ip",))
        np.testing.assert_allclose(features["ip"].data, expected, rtol=1e-5, atol=1e-6)
    shapes = [shape for _, _, shape in ops.record.placed]
    assert [shapes.count(param.shape) for param in params.values()] == [1] * 4


def test_states_are_carried_from_batch_to_batch() -> None:
    codes = RNG.integers(0, 5, (2, 8))

    def create_text_predictor(steps: int, params: dict[str, np.ndarray]) -> Predictor:
        conf = char_rnn(5, hidden=6, steps=steps, batchsize=2).neuralnet
        conf = conf.replace(layer=[layer for layer in conf.layer if layer.name in ("data", "onehot", "gru1", "ip1")])
        info = RecordInfo((steps,), 2, has_labels=False, continues=True, codes=5)
        net = create_net(conf, Phase.kTrain, {"data": info})
        for name, param in net.params.items():
            params.setdefault(name, RNG.normal(size=param.shape).astype(np.float32))
        return Predictor(net, params, phase=Phase.kTest, carries_state=True)

    params: dict[str, np.ndarray] = {}
    carried, whole = create_text_predictor(4, params), create_text_predictor(8, params)
    parts = [carried.forward({"data": Records(codes[:, k : k + 4])}, 2, ("ip1",))[0]["ip1"].data for k in (0, 4)]
    expected = whole.forward({"data": Records(codes)}, 2, ("ip1",))[0]["ip1"].data
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-5, atol=1e-6)
