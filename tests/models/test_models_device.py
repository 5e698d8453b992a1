"""Every family of models trains on a simulated device, whose arrays host code cannot touch, with numpy's numbers.

See ``tests/support/device_array.py``. Each of SINGA's updaters runs there, too.
"""

from typing import Any

import numpy as np
import pytest

from dsinga import models
from dsinga.job import Job, Phase
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.ops import Ops, SparseRows
from dsinga.ops.interface import NumpyOps
from dsinga.training import algorithm, initial_values
from tests.support.device_array import DeviceArray, StubOps

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
