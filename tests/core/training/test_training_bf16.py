"""Nets of every layer type in bfloat16: near float32, cut as whole, and the same bits twice."""

from collections import Counter

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.cutting import thread_group
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.cutting.thread_group import ThreadPeers
from dsinga.engine.local_net import LocalNet
from dsinga.job import Phase, loads
from dsinga.layers import Context, Rows
from dsinga.layers.bridge import BridgeEnd
from dsinga.layers.dense.activation import ReLU
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.net import NeuralNet, create_net
from dsinga.ops import get_ops
from dsinga.ops.onednn.bf16_ops import Bf16Ops
from dsinga.ops.types import BFLOAT16
from dsinga.training import bp
from tests.support.partition_nets import INFOS, NETS, PAIRS, net_of
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


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_a_cut_net_gives_the_gradients_of_the_whole_net(name, strategy):
    net = net_of(name, strategy, 2)
    values, batches = initial(net, np.float32), batches_of(net, 1, 4, np.float32)
    cut = run_partitioned(partition(net, 2), values, batches, ops=bf16_ops())
    assert distance(cut, run_whole(net, values, batches, bf16_ops())) < 0.05


def sends(cut: PartitionedNet, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Counter]:
    """Train a step in bfloat16; return also the bytes of each dtype that bridges send, by the direction."""
    sent = Counter[tuple[str, str]]()

    class CountingPeers(ThreadPeers):
        def send(self, location, key, array):
            sent["back" if key.endswith("/gradient") else "there", array.dtype.name] += array.nbytes
            super().send(location, key, array)

    monkeypatch.setattr(thread_group, "ThreadPeers", CountingPeers)
    net = cut.whole
    return run_partitioned(cut, initial(net, np.float32), batches_of(net, 1, 4, np.float32), ops=bf16_ops()), sent


def in_float32(cut: PartitionedNet, *fields: str) -> PartitionedNet:
    """Let the bridges of a net send what is float32 as float32."""
    for layer in (node.layer for local in cut.locals for node in local.nodes):
        if isinstance(layer, BridgeEnd):
            vars(layer).update(dict.fromkeys(fields, False))
    return cut


@pytest.mark.parametrize("strategy", ["features", "mixed"])
@pytest.mark.parametrize("name", NETS)
def test_a_feature_that_is_rounded_anyway_is_sent_in_bfloat16(name, strategy, monkeypatch):
    cut = in_float32(partition(net_of(name, strategy, 2), 2), "bf16_gradient")
    rounded, sent = sends(cut, monkeypatch)
    exact, sent_exactly = sends(in_float32(cut, "bf16_feature"), monkeypatch)
    assert all(array.tobytes() == exact.gradients[0][param].tobytes() for param, array in rounded.gradients[0].items())
    saved = sent_exactly["there", "float32"] - sent["there", "float32"]
    assert 2 * (sent["there", "bfloat16"] - sent_exactly["there", "bfloat16"]) == saved
    assert saved or (name, strategy) in (("sentences", "features"), ("members", "mixed"))


def mlp(activation: str, first: str, second: str, sizes: tuple[int, int] = (24, 10)) -> NeuralNet:
    """Return a net of two inner products that are cut as ``first`` and ``second`` say."""
    conf = f"""neuralnet {{
        layer {{ name: "rows" type: kRecordInput store_conf {{ path: "x" batchsize: 10 }} partition_dim: 0 }}
        layer {{ name: "ip1" type: kInnerProduct srclayers: "rows"
                innerproduct_conf {{ num_output: {sizes[0]} }} {first} }}
        layer {{ name: "act1" type: {activation} srclayers: "ip1" {first} }}
        layer {{ name: "ip2" type: kInnerProduct srclayers: "act1"
                innerproduct_conf {{ num_output: {sizes[1]} }} {second} }}
        layer {{ name: "loss" type: kSoftmaxLoss srclayers: ["ip2", "rows"] partition_dim: 0 }} }}"""
    return create_net(loads(conf, "mlp.conf").neuralnet, Phase.kTrain, INFOS)


@pytest.mark.parametrize("dim", ["location: 0", "partition_dim: 1"])
@pytest.mark.parametrize("activation", ["kReLU", "kSTanh"])
def test_a_gradient_is_sent_in_bfloat16_to_layers_that_round_it(activation, dim, monkeypatch):
    net = mlp(activation, "partition_dim: 1", dim)
    rounded, sent = sends(partition(net, 2), monkeypatch)
    exact, sent_exactly = sends(in_float32(partition(net, 2), "bf16_feature", "bf16_gradient"), monkeypatch)
    hidden = 10 * 12 if dim == "location: 0" else 2 * 10 * 12
    assert sent["back", "float32"] == (0 if activation == "kReLU" else 4 * hidden)
    assert 2 * sent["back", "bfloat16"] == sent_exactly["back", "float32"] - sent["back", "float32"]
    difference = distance(rounded, exact)
    if activation == "kSTanh" or dim == "location: 0":  # what no other gradient is added to is rounded once either way
        assert difference == 0
    else:
        assert 0 < difference < 2**-8


def test_inputs_gathered_for_a_weight_are_sent_in_bfloat16(monkeypatch):
    net = mlp("kReLU", "partition_dim: 0", "partition_dim: 0", (240, 100))
    values, batches = initial(net, np.float32), batches_of(net, 1, 4, np.float32)
    cut, gathered = partition(net, 2, gather=True), list[np.dtype]()

    class CountingGroup(thread_group._ThreadGroup):
        def combine(self, worker, key, array, *how):
            gathered.append(array.dtype.name)
            return super().combine(worker, key, array, *how)

    monkeypatch.setattr(thread_group, "_ThreadGroup", CountingGroup)
    rounded = run_partitioned(cut, values, batches, ops=bf16_ops())
    assert {*gathered} == {"bfloat16"}
    monkeypatch.setattr(Bf16Ops, "to_numpy_bf16", Bf16Ops.to_float32)
    exact = run_partitioned(cut, values, batches, ops=bf16_ops())
    assert "float32" in gathered
    assert distance(rounded, exact) == 0


def test_a_layer_of_each_step_takes_images_in_bfloat16():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 5, 1, 6, 6)).astype("float32"), random.integers(2, size=40)
    steps = [nn.TimeDistributed(layer) for layer in (nn.Conv2D(4, 3, activation="relu"), nn.Dense(5))]
    model = nn.Sequential(
        [nn.Input((5, 1, 6, 6)), *steps, nn.GRU(6, return_sequences=True), nn.GlobalMaxPooling1D(), nn.Dense(2)]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, y, epochs=1, precision="kBF16", progress=False)


STEPS = """neuralnet {
  layer { name: "words" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
  layer { name: "embed" type: kEmbedding srclayers: "words" embedding_conf { vocab_size: 7 feature_dim: 8 } }
  layer { name: "wide" type: kInnerProduct srclayers: "embed" innerproduct_conf { num_output: 64 } per_step: true }
  layer { name: "act" type: kActivation srclayers: "wide" activation_conf { type: GELU } }
  layer { name: "narrow" type: kInnerProduct srclayers: "act" innerproduct_conf { num_output: 8 } per_step: true }
  layer { name: "sum" type: kAdd srclayers: ["narrow", "embed"] }
  layer { name: "scores" type: kInnerProduct srclayers: "sum" innerproduct_conf { num_output: 10 } per_step: true }
  layer { name: "loss" type: kSoftmaxLoss srclayers: ["scores", "words"] per_step: true } }"""


@pytest.mark.parametrize("recompute", ["", "recompute: true"])
def test_products_over_steps_are_bfloat16_where_only_activations_and_products_take_them(recompute):
    job = loads(STEPS.replace("per_step: true }\n", f"per_step: true {recompute} }}\n"), "steps.conf")
    net = create_net(job.neuralnet, Phase.kTrain, INFOS)
    values, batches, kinds = initial(net, np.float32), batches_of(net, 1, 4, np.float32), {}

    def observe(layer, phase, compute, params, sources, *arguments):
        result = compute(params, sources, *arguments)
        kinds[layer.name, phase] = getattr(result.feature if phase == "forward" else result[0][0], "dtype", None)
        return result

    rounded, exact = (run_whole(net, values, batches, ops) for ops in (bf16_ops(), get_ops()))
    assert 0 < distance(rounded, exact) < 0.02
    rows = Rows(0, 10, 10)
    bp(net, values, batches[0], Context(bf16_ops(), net.phase, rows, observer=observe), lambda *pushed: None)
    assert [kinds[name, "forward"] for name in ("wide", "act")] == [BFLOAT16] * 2
    assert [kinds[name, "backward"] for name in ("act", "narrow")] == [BFLOAT16] * 2
    others = ("narrow", "forward"), ("sum", "forward"), ("wide", "backward"), ("scores", "forward")
    assert {kinds[call] for call in others if call in kinds} == {np.dtype(np.float32)}


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


@pytest.mark.parametrize("optimizer", [nn.SGD(0.01, momentum=0.9), nn.Adam(clipvalue=1e-4), nn.SGD(1.0, clipnorm=0.1)])
def test_params_that_updates_round_give_the_bits_of_steps_that_round_them(optimizer):
    """Updates apply the gradient of a large weight part by part; LocalNet has whole ones, and rounds in each step."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(96, 1024)).astype("float32"), random.integers(10, size=96)
    model = nn.Sequential([nn.Dense(1100, activation="relu"), nn.Dense(1024, activation="relu"), nn.Dense(10)])
    model.compile(optimizer, "sparse_categorical_crossentropy")
    net = LocalNet(model.job(x, y, batch_size=24, epochs=1, seed=1).replace(precision="kBF16"))
    model.fit(x, y, batch_size=24, epochs=1, seed=1, shuffle=False, precision="bf16", progress=False)
    params, updater = net.initial_params(), net.updater()
    for batch in np.arange(96).reshape(4, 24):
        updater.step(params, net.backward(params, x[batch], y[batch]).gradients)
    np.testing.assert_equal(model.params, params)


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
