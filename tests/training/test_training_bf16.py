"""Nets of every layer type in bfloat16: near float32, cut as whole, and the same bits twice."""

from __future__ import annotations

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.errors import UserError
from dsinga.layers.activation import ReLU
from dsinga.layers.declarations import Bfloat16
from dsinga.net import partition
from dsinga.ops import get_ops
from tests.support.partition_nets import NETS, STRATEGIES, net_of
from tests.support.partitioned_run import Run, batches_of, initial, run_partitioned, run_whole

pytestmark = pytest.mark.skipif(
    get_ops().name != "onednn" or bool(get_ops().lacks_bf16()), reason="the processor has no bfloat16"
)


def bf16_ops():
    return get_ops().for_worker(precision="bf16")


def distance(first: Run, second: Run) -> float:
    """Return the largest relative difference of the gradients of a param in the first step."""
    largest = max(np.linalg.norm(array) for array in second.gradients[0].values())
    return max(
        np.linalg.norm(first.gradients[0][name] - array) / max(np.linalg.norm(array), 0.01 * largest)
        for name, array in second.gradients[0].items()
    )


def whole(name: str, ops=None) -> Run:
    net = net_of(name)
    return run_whole(net, initial(net, np.float32), batches_of(net, 1, 4, np.float32), ops or bf16_ops())


@pytest.mark.parametrize("name", NETS)
def test_gradients_differ_from_float32_by_rounding(name):
    rounded, exact = whole(name), whole(name, get_ops())
    assert all(array.dtype == np.float32 for array in rounded.gradients[0].values())
    assert 0 < distance(rounded, exact) < 0.1
    again = whole(name)
    assert all(array.tobytes() == again.gradients[0][param].tobytes() for param, array in rounded.gradients[0].items())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NETS)
def test_a_cut_net_gives_the_gradients_of_the_whole_net(name, strategy):
    net = net_of(name, strategy, 2)
    values, batches = initial(net, np.float32), batches_of(net, 1, 4, np.float32)
    cut = run_partitioned(partition(net, 2), values, batches, ops=bf16_ops())
    assert distance(cut, run_whole(net, values, batches, bf16_ops())) < 0.05


def test_a_layer_of_each_step_takes_images_in_bfloat16():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 5, 1, 6, 6)).astype("float32"), random.integers(2, size=40)
    steps = [nn.TimeDistributed(layer) for layer in (nn.Conv2D(4, 3, activation="relu"), nn.Dense(5))]
    model = nn.Sequential([nn.Input((5, 1, 6, 6)), *steps, nn.GRU(6), nn.GlobalMaxPooling1D(), nn.Dense(2)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, y, epochs=1, precision="kBF16", progress=False)


def test_training_testing_and_predicting_use_the_precision_of_the_job():
    random = np.random.default_rng(0)
    y = random.integers(3, size=300)
    x = (random.normal(size=(300, 1, 6, 6)) + y[:, None, None, None]).astype("float32")

    def train(precision: str, workers: int = 1):
        model = nn.Sequential([nn.Conv2D(8, 3, activation="relu"), nn.MaxPooling2D(2), nn.Flatten(), nn.Dense(3)])
        model.compile("sgd", "sparse_categorical_crossentropy")
        result = dsinga.train(
            model.job(x, y, epochs=2, seed=1).replace(precision=precision), data={"train": (x, y)}, workers=workers,
            progress=False,
        )  # fmt: skip
        return result.params

    exact, rounded, again, on_two = train("kFloat32"), train("kBF16"), train("kBF16"), train("kBF16", 2)
    for name, array in rounded.items():
        assert array.dtype == np.float32
        assert array.tobytes() == again[name].tobytes()
        np.testing.assert_allclose(array, exact[name], atol=0.05)
        np.testing.assert_allclose(array, on_two[name], atol=0.01)
    assert any((array != exact[name]).any() for name, array in rounded.items())


def test_a_class_that_computes_anew_gets_float32():
    class Own(ReLU):
        def forward(self, x, ops):
            return np.maximum(x, 0)

    class Named(ReLU):
        """Computes what its base does."""

    assert Own.bf16 is Bfloat16.kNothing
    assert Named.bf16 is Bfloat16.kFeatures


def test_what_compute_gradient_returns_wrongly_is_told_as_in_float32(monkeypatch):
    net = net_of("convnet")
    wrong = next(node.layer for node in net.nodes if isinstance(node.layer, ReLU))
    monkeypatch.setattr(wrong, "compute_gradient", lambda *arguments: ((arguments[3], arguments[3]), ()))
    with pytest.raises(UserError, match="must return a sequence of 1 for its sources, not 2"):
        run_whole(net, initial(net, np.float32), batches_of(net, 1, 4, np.float32), bf16_ops())


def test_machines_of_kcd_train_in_bfloat16():
    random = np.random.default_rng(0)
    x = (random.uniform(size=(200, 16)) < 0.3).astype("float32")
    model = nn.Sequential([nn.Input(16), nn.RBM(8)])
    model.compile("sgd", algorithm=nn.CD())
    model.fit(x, epochs=1, precision="kBF16", progress=False)
