"""The predicted memory of a worker, compared with the arrays that back-propagation keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from dsinga.base import buffers
from dsinga.base.registry import register
from dsinga.cutting.partitioning import partition
from dsinga.cutting.worker_memory import FIXED, Memory, team_memory, training_memory, worker_memory
from dsinga.engine.nets_by_shape import open_cut_nets
from dsinga.job import Job, Phase, load
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.layers.dense.activation import ReLU
from dsinga.net import NeuralNet, create_net
from dsinga.ops import Ops, SparseRows, get_ops
from dsinga.ops.interface import NumpyOps
from dsinga.reading.checked_job import check_job
from dsinga.training import algorithm, bp, initial_values
from tests.support.device_array import DeviceArray, StubOps


def unet() -> Job:
    """Return the job of a U-Net with periodic padding and group normalisation."""
    model = models.unet((4, 32, 32), width=16, padding="periodic", normalisation="group")
    model.compile("sgd", "mse")
    return model.job(train_steps=1, batch_size=16)


def volumes() -> Job:
    """Return the job of a net of volumes."""
    layers = [
        nn.Input((2, 12, 16, 16)),
        *(nn.Conv3D(16, 3, padding="same", activation="relu"), nn.MaxPooling3D(2)),
        *(nn.Conv3D(32, 3, activation="relu"), nn.AveragePooling3D(2), nn.Dense(1)),
    ]
    model = nn.Sequential(layers)
    model.compile("sgd", "mse")
    return model.job(train_steps=1, batch_size=16)


CONVNET = Path(__file__).parents[2] / "datasets/cifar10/convnet.conf"
NETS = {
    "convnet": (
        load(CONVNET, ["neuralnet.layer[data,kTrain].store_conf.batchsize=32"]),
        RecordInfo((3, 32, 32), 32, has_labels=True),
    ),
    "resnet": (models.resnet(batchsize=16), RecordInfo((3, 32, 32), 16, has_labels=True)),
    "unet": (unet(), RecordInfo((4, 32, 32), 16, label_shape=(1024,), label_dtype=np.dtype(np.float32))),
    "volumes": (volumes(), RecordInfo((2, 12, 16, 16), 16, label_shape=(1,), label_dtype=np.dtype(np.float32))),
    "char_rnn": (
        models.char_rnn(batchsize=16, hidden=128, steps=20),
        RecordInfo((21,), 16, has_labels=False, codes=101),
    ),
    "gpt": (
        models.gpt(101, blocks=2, width=96, heads=4, steps=64, batchsize=8),
        RecordInfo((64,), 8, label_shape=(64,), codes=101),
    ),
}


def net_of(job: Job, info: RecordInfo) -> NeuralNet:
    return create_net(job.neuralnet, Phase.kTrain, {"data": info})


@pytest.mark.parametrize(
    ("name", "precision", "stretches"),
    [
        *((name, "float32", 0) for name in NETS),
        *((name, "bf16", 0) for name in ("convnet", "volumes")),
        *((name, precision, 4) for name, precision in (("resnet", "float32"), ("unet", "bf16"))),
    ],
)
def test_an_iteration_needs_the_predicted_memory(
    name: str, precision: str, stretches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "bf16" and get_ops().lacks_bf16():
        pytest.skip("the processor has no bfloat16")
    ops = get_ops().for_worker(precision=precision)
    job, info = NETS[name]
    job = job.replace(neuralnet=job.neuralnet.replace(recompute=stretches))
    net, rng = net_of(job, info), np.random.default_rng(0)
    pool = buffers.ResultPool()
    monkeypatch.setattr(buffers, "pool", pool)
    values = initial_values(net.params, 1)
    data = rng.integers(0, info.codes or 256, (info.batchsize, *info.shape))
    labels = np.zeros((info.batchsize, *info.label_shape), info.label_dtype)
    records = Records(data.astype(np.int32 if info.codes else np.uint8), labels)
    if not info.has_labels:
        records = records._replace(labels=None)
    for _ in range(2):  # the second iteration reuses the arrays of the first one
        gradients: dict[str, Any] = {}
        ctx = Context(ops, Phase.kTrain, Rows(0, info.batchsize, info.batchsize), 1, 0)
        bp(net, values, {"data": records}, ctx, gradients.__setitem__)
    allocated = pool.size
    memory = worker_memory(net, slots=1, bf16=ops.has_bf16_features)
    iteration = memory.features + memory.workspaces + memory.gradients - memory.passing
    assert allocated == pytest.approx(iteration, rel=0.16)


def test_micro_batches_add_each_gradient_to_a_sum() -> None:
    net = net_of(*NETS["convnet"])
    whole, part = worker_memory(net, slots=1), worker_memory(net, slots=1, micro_batches=4)
    sizes = {4 * param.size for param in net.params.values()}
    assert part.gradients - whole.gradients == sum(sizes)
    assert part._replace(gradients=0) == whole._replace(gradients=0)


def test_a_thread_has_one_copy_of_the_params_for_its_blocks() -> None:
    block = worker_memory(net_of(*NETS["convnet"]), slots=1, workers=4)
    team = team_memory([block, block], at_once=1)
    assert (team.params, team.state) == (2 * block.params - block.handed_out, 2 * block.state)
    assert (team.features, team.workspaces) == (block.features, block.workspaces)


def test_blocks_in_turns_need_the_predicted_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    convolutions = [nn.Conv2D(24, 3, padding="same", activation="relu") for _ in range(3)]
    layers = [nn.Input((4, 24, 24)), *convolutions, nn.Conv2D(24, 3), nn.Dense(8), nn.Dense(3)]
    model, rng, measured = nn.Sequential(layers), np.random.default_rng(0), []
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = rng.normal(size=(64, 4, 24, 24)).astype(np.float32), rng.integers(3, size=64)
    for count in (1, 2, 8):
        job = model.job(x, y, batch_size=64, train_steps=1, blocks=8, micro_batches=count)
        reader = check_job(job).reader(Phase.kTrain)
        net, pool = create_net(job.neuralnet, Phase.kTrain, reader.infos), buffers.ResultPool()
        monkeypatch.setattr(buffers, "pool", pool)
        nets, ctx = open_cut_nets(job, 8, lambda net: 1, 1), Context(get_ops(), Phase.kTrain, Rows(0, 64, 64), 1)
        nets.backward(bp, net, initial_values(net.params, 1), {"data": Records(x, y)}, ctx, lambda name, gradient: None)
        measured.append(pool.size)
        (memory,) = training_memory(job, [net], reader)
        assert measured[-1] < 1.08 * (memory.features + memory.workspaces + memory.gradients)
    assert measured[1] < measured[0] * 2 / 3  # of half the blocks, and the sums of gradients
    assert measured[2] < measured[0] / 3


def test_features_between_convolutions_take_half_the_memory_in_bf16() -> None:
    net = net_of(*NETS["resnet"])
    wide, narrow = worker_memory(net, slots=1), worker_memory(net, slots=1, bf16=True)
    assert 0.5 <= narrow.features / wide.features < 0.52  # the images that are read, and the scores, stay float32
    assert (narrow.params, narrow.gradients, narrow.state) == (wide.params, wide.gradients, wide.state)


@register("layer", "SavingReLU")
class SavingReLU(ReLU):
    """kReLU that says it saves 1001 bytes a row."""

    def saved_sizes(self, rows: int) -> list[int]:
        return [1001 * rows]


def test_what_a_layer_of_the_user_says_that_it_saves_is_counted() -> None:
    layers = [
        {"name": "data", "type": "kRecordInput", "store_conf": {"batchsize": 8}},
        {"name": "act", "type": "kReLU", "srclayers": "ip"},
        {"name": "ip", "type": "kInnerProduct", "srclayers": "data", "innerproduct_conf": {"num_output": 5}},
        {"name": "loss", "type": "kSoftmaxLoss", "srclayers": ["act", "data"]},
    ]
    info = RecordInfo((4,), 8, has_labels=True)
    plain = worker_memory(net_of(Job(net={"layer": layers}), info), slots=1)
    layers[1] = {"name": "act", "type": "kUserLayer", "user_type": "SavingReLU", "srclayers": "ip"}
    saving = worker_memory(net_of(Job(net={"layer": layers}), info), slots=1)
    assert saving.peak - plain.peak == saving.workspaces - plain.workspaces == 1001 * 8


def test_params_and_state_are_shared_out_over_the_servers() -> None:
    net = net_of(*NETS["char_rnn"])
    size = 4 * sum(param.size for param in net.params.values())
    single = worker_memory(net, slots=2)
    assert (single.params, single.state, single.handed_out) == (size, 2 * size, size)
    first = worker_memory(partition(net, 2).locals[0], slots=2, workers=2)
    assert (first.params, first.state) == (size + size // 2, size)
    assert first.features == pytest.approx(single.features / 2, rel=0.01)


def test_the_peak_is_at_the_update_or_when_params_are_handed_out() -> None:
    assert Memory(params=10, gradients=10, handed_out=10, fixed=5).peak == 35
    assert Memory(params=10, gradients=10, passing=10, handed_out=10, fixed=5).peak == 25
    records = worker_memory(net_of(*NETS["resnet"]), 0, record_bytes=1 << 20, kept_bytes=128 << 20).records
    assert records == (5 << 20) + (128 << 20)
    assert Memory().peak == FIXED


# Every family of models trains on a simulated device, whose arrays host code cannot touch, with numpy's numbers.
IMAGES = RecordInfo((3, 32, 32), 2)
SENTENCE = RecordInfo((7,), 3, label_range=(0, 4), label_shape=(7,), codes=9)
TEXT = RecordInfo((6,), 3, has_labels=False, codes=9)
MODELS: dict[str, tuple[Job, dict[str, RecordInfo]]] = {
    "convnet": (models.convnet(batchsize=2), {"data": IMAGES}),
    "resnet": (models.resnet(8, batchsize=2), {"data": IMAGES}),
    "mlp": (models.mlp((8,), 12, dropout=0.5, batchsize=4), {"data": RecordInfo((12,), 4)}),
    "mdnn": (
        models.mdnn(image=(8,), text=(6,), code=4, batchsize=4),
        {"image": RecordInfo((10,), 4), "text": RecordInfo((12,), 4)},
    ),
    "autoencoder": (models.autoencoder((12, 6, 3), batchsize=4), {"data": RecordInfo((12,), 4)}),
    "rbm": (models.rbm(1, (12, 6), batchsize=4, cd_k=2), {"data": RecordInfo((12,), 4)}),
    "persistent rbm": (models.rbm(1, (12, 6), batchsize=4, persistent=True), {"data": RecordInfo((12,), 4)}),
    "char-rnn": (models.char_rnn(batchsize=3, hidden=4, steps=5), {"data": TEXT}),
    "rnnlm": (models.rnnlm([5, 4, 3, 2, 1, 1, 1, 1, 1], classes=2, hidden=4, steps=5, batchsize=3), {"text": TEXT}),
    "bigru-crf": (models.bigru_crf({"words": 9}, 5, hidden=4, batchsize=3), {"words": SENTENCE}),
    "bigru": (models.bigru_crf({"words": 9}, 5, crf=False, hidden=4, batchsize=3), {"words": SENTENCE}),
}


def records_of(infos: dict[str, RecordInfo]) -> dict[str, Records]:
    """Return random records; sequences of labels end at different steps."""
    rng, records = np.random.default_rng(3), {}
    for name, info in infos.items():
        data = rng.integers(0, info.codes or 256, (info.batchsize, *info.shape))
        labels = rng.integers(0, 5, (info.batchsize, *info.label_shape))
        for row in range(info.batchsize) if info.codes and info.label_shape else ():
            data[row, 3 + 2 * row :], labels[row, 3 + 2 * row :] = -1, -1
        labels = labels.astype(info.label_dtype) if info.has_labels else None
        records[name] = Records(data.astype(np.int32 if info.codes else np.uint8), labels)
    return records


def learn(job: Job, net: NeuralNet, records: dict[str, Records], ops: Ops) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train two steps, keeping lasting state; return the gradients of the last step, and its metrics."""
    values = {name: ops.asarray(value) for name, value in initial_values(net.params, 1).items()}
    train = algorithm(job.train_one_batch)
    rows = net.nodes[0].layer.shape[0]
    for step in range(2):
        pushed: dict[str, Any] = {}
        metrics = train(
            net, values, records, Context(ops, Phase.kTrain, Rows(0, rows, rows), 1, step), pushed.__setitem__
        )
        values |= {name: value for name, value in pushed.items() if not net.params[name].spec.trainable}
    return pushed, metrics


@pytest.mark.parametrize(
    ("name", "folded"), [*((name, True) for name in MODELS), ("char-rnn", False), ("rnnlm", False)]
)
def test_a_model_learns_on_a_device(name: str, folded: bool):
    job, infos = MODELS[name]
    net, records, ops = create_net(job.net, Phase.kTrain, infos, folded), records_of(infos), StubOps()
    expected, means = learn(job, net, records, NumpyOps())
    pushed, metrics = learn(job, net, records, ops)
    assert metrics == means
    assert pushed.keys() == expected.keys()
    for param, gradient in pushed.items():
        assert isinstance(gradient, (DeviceArray, SparseRows)), param
        array = gradient if isinstance(gradient, SparseRows) else ops.to_numpy(gradient)
        np.testing.assert_array_equal(np.asarray(array), np.asarray(expected[param]), err_msg=param)
    assert not ops.record.syncs
