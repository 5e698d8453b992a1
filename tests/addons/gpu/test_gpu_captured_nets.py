"""Nets of what was built for cores, on the emulated device: numbers of cores, bits of eager nets, why some are eager.

Losses, functions of users, convolutions, attention, normalisation and rollouts, as a worker trains and tests them.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.cluster.worker.group_worker import GroupWorker
from dsinga.job import Job, Phase
from tests.support import emulated_cupy
from tests.support.device_array import StubOps
from tests.support.device_worker import device_worker, params
from tests.support.field_nets import make_dataset
from tests.support.small_job import assert_same
from tests.support.train_in_threads import train_in_threads

STEPS, WARM_UPS, TESTS = 4, 2, 3
RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(12, n)).astype(np.float32) for n in (6, 2))
CLASSES, POINTS, CODES = (RNG.integers(0, 3, shape) for shape in ((12,), (12, 6, 6), (12, 5)))
IMAGES, STEPPED = (RNG.normal(size=(12, *shape)).astype(np.float32) for shape in ((4, 6, 6), (5, 6)))
WEIGHTS = RNG.uniform(0, 2, 12).astype(np.float32)
SOFTMAX = "sparse_categorical_crossentropy"
HOST_READS = "the host reads an array of the device (in compute_feature of layer {})"


class Made(NamedTuple):
    """A job, and why its training and its tests are not captured, "" where they are."""

    job: Job
    training: str = ""
    tests: str = ""


def made(model: Any, x: Any, y: Any, loss: Any, why: str = "", tests: str | None = None, **more: Any) -> Made:
    model.compile(nn.SGD(0.05, momentum=0.9), loss, metrics=more.pop("metrics", None))
    job = model.job(x, y, batch_size=4, train_steps=STEPS, seed=3, test_data=(x, y), **more)
    return Made(job, why, why if tests is None else tests)


def dense(outputs: int, loss: Any, *last: Any, y: Any = Y, **more: Any) -> Made:
    model = nn.Sequential([nn.Input(6), nn.Dense(5, "relu"), nn.Dense(outputs), *last])
    return made(model, X, y, loss, **more)


def images(*layers: Any, y: Any = None, loss: Any = SOFTMAX, **more: Any) -> Made:
    head = [nn.GlobalAveragePooling2D(), nn.Dense(3), nn.Softmax()] if y is None else []
    model = nn.Sequential([nn.Input((4, 6, 6)), *layers, *head])
    return made(model, IMAGES, CLASSES if y is None else y, loss, **more)


def steps(layer: Callable[[Any], Any]) -> Made:
    x = nn.Input((5, 6))
    return made(nn.Model(x, nn.Softmax()(nn.Dense(3)(nn.Flatten()(layer(x))))), STEPPED, CLASSES, SOFTMAX)


def channels_last() -> Made:
    x = nn.Input((6, 6, 4), data_format="channels_last")
    near = nn.Conv2D(4, 3, padding="same", activation="relu")(x)
    far = nn.UpSampling2D(2)(nn.Conv2D(4, 3, padding="same")(nn.MaxPooling2D(2)(near)))
    model = nn.Model(x, nn.Conv2D(2, 1)(nn.Concatenate(-1)([near, far])))
    last = np.ascontiguousarray(np.moveaxis(IMAGES, 1, -1))
    return made(model, last, last[..., :2], "mse")


def fields(loss: Any = "mse", numbers: int = 1, why: str = "", metrics: Any = (), **settings: Any) -> Made:
    dataset = make_dataset(time=10, latitude=6, longitude=8)
    if "mask" in settings:
        dataset["t"] = dataset.t.where(dataset.h < 1)
    given = {"input_dims": {"time": 1, "latitude": -1, "longitude": -1}, "lead": {"time": 1}, **settings}
    windows = dsinga.windows(dataset, inputs=["z", "t"], targets=["t", "z"], static="h", **given)
    x = nn.Input(windows.shape)
    hidden = nn.Dropout(0.2)(nn.ReLU()(nn.BatchNormalization()(nn.Conv2D(4, 3, padding="same")(x))))
    model = nn.Model(x, nn.Conv2D(numbers * windows.label_shape[0], 3, padding="same")(hidden))
    model.compile(nn.SGD(1e-3), loss, metrics=list(metrics))
    return Made(model.job(windows, batch_size=4, train_steps=STEPS, seed=3), why)


def negated(x: Any) -> Any:
    import torch

    return torch.exp(-x)


NETS: dict[str, Callable[[], Made]] = {
    "integers as targets": lambda: dense(1, "mse", y=CLASSES),
    "quantiles": lambda: dense(6, nn.QuantileLoss([0.1, 0.5, 0.9])),
    "quantiles, scored": lambda: dense(
        6, nn.QuantileLoss([0.1, 0.5, 0.9]), metrics=["crps"], why=HOST_READS.format("'forecast'")
    ),
    "likelihood": lambda: dense(4, nn.DistributionLoss("normal"), nn.DistributionParams("normal")),
    "CRPS": lambda: dense(4, nn.DistributionLoss("laplace", score="crps"), nn.DistributionParams("laplace")),
    "counts": lambda: dense(
        4, nn.DistributionLoss("negative_binomial"), nn.DistributionParams("negative_binomial"), y=np.floor(Y**2)
    ),
    "members": lambda: dense(8, nn.EnsembleLoss(4, fairness=0.5)),
    "yes or no": lambda: dense(1, "binary_crossentropy", nn.Activation("sigmoid"), y=CLASSES % 2),
    "weighted classes": lambda: dense(3, SOFTMAX, nn.Softmax(), y=CLASSES, sample_weight=WEIGHTS),
    "hinge": lambda: dense(
        3, nn.HingeLoss(), y=CLASSES, why="the host checks the labels (in compute_feature of layer 'loss')"
    ),
    "function": lambda: dense(2, "mse", nn.Lambda(negated), why=HOST_READS.format("'lambda'")),
    "channels last": channels_last,
    "groups": lambda: images(nn.Conv2D(8, 3, groups=2, activation="relu", padding="same")),
    "depthwise": lambda: images(nn.SeparableConv2D(6, 3, padding="same", activation="relu")),
    "dilated": lambda: images(nn.Conv2D(8, 3, dilation_rate=2, activation="relu")),
    "own statistics": lambda: images(nn.Conv2D(6, 3), nn.BatchNormalization(synchronized=False), nn.ReLU()),
    "group norm": lambda: images(nn.Conv2D(6, 3, activation="gelu"), nn.GroupNormalization(2), nn.PReLU()),
    "classes of points": lambda: images(nn.Conv2D(3, 3, padding="same"), y=POINTS, loss=nn.FieldSoftmaxLoss()),
    "overlaps": lambda: images(nn.Conv2D(3, 3, padding="same"), y=POINTS - (POINTS > 1) * 3, loss=nn.Dice()),
    "heads": lambda: steps(lambda x: nn.MultiHeadAttention(2, 4)(x, x)),
    "causal": lambda: steps(lambda x: nn.Attention(use_causal_mask=True)([x, x])),
    "additive": lambda: steps(lambda x: nn.RMSNorm()(nn.Attention(score_mode="additive")([x, x]))),
    "codes": lambda: made(
        nn.Sequential([nn.Input(5), nn.Embedding(3, 4), nn.Flatten(), nn.Dense(3), nn.Softmax()]), CODES, CLASSES,
        SOFTMAX, "the gradient of an embedding has as many rows as there are different codes "
        "(in compute_gradient of layer 'embedding')", tests="",
    ),
    "rollout": lambda: fields(leads=3),
    "rollout with a mask": lambda: fields(nn.MeanSquaredError(masked=True), leads=2, mask="t", fill=0.5),
    "rollout that grows": lambda: fields(
        leads=2, lead_start=[0, 2], why="the net that is trained depends on the step"
    ),
    "leads at once": lambda: fields(leads=2, direct=True),
    "fields, scored": lambda: fields(metrics=[nn.FieldError()], why=HOST_READS.format("'fields'")),
    "fields of quantiles": lambda: fields(nn.QuantileLoss([0.1, 0.5, 0.9]), 3),
}  # fmt: skip
QUICK = ("integers as targets", "hinge")


def quick(names: Any) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.ci) for name in names]


def launched() -> int:
    return sum(what == "graph" for _, what, _ in emulated_cupy.log)


def has_tests_of(job: Job) -> bool:
    return any(Phase.kTest in layer.include for layer in job.neuralnet.layer)


def run(worker: GroupWorker, has_tests: bool) -> tuple[dict[str, Any], list[Any], int]:
    """Train and test; return params, metrics and how many graphs of training were launched."""
    emulated_cupy.log.clear()
    submit = worker.thread.submit
    metrics = list(submit(worker.train, 0, STEPS).result(60).metrics)
    graphs = launched()
    metrics += submit(worker.evaluate, Phase.kTest, TESTS, STEPS).result(60) if has_tests else []
    return params(worker), metrics, graphs


def check(net: Made, caplog: pytest.LogCaptureFixture, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """Assert that graphs give the bits of calls, or say why there are none; return params and metrics."""
    job = net.job.replace(gpu=[0], **fields)
    has_tests = has_tests_of(job)
    with device_worker(job, captured=False) as worker:
        eager = run(worker, has_tests)
    caplog.clear()
    with caplog.at_level(logging.INFO, "dsinga"), device_worker(job) as worker:
        captured = run(worker, has_tests)
    for what, reason in (("training iterations", net.training), ("tests", net.tests if has_tests else "")):
        said = [text for text in caplog.messages if text.startswith(f"{what} are not captured")]
        assert said == ([f"{what} are not captured as CUDA graphs: {reason}"] if reason else [])
    assert captured[2] == (0 if net.training else STEPS - WARM_UPS)
    if has_tests and not net.tests:
        assert launched() == captured[2] + TESTS - WARM_UPS
    assert_same(captured[0], eager[0])
    for first, second in zip(captured[1], eager[1], strict=True):
        numbers = {name for name, total in first.items() if isinstance(total[0], (int, float))}
        assert {name: first[name] for name in numbers} == {name: second[name] for name in numbers}
        assert first.keys() == second.keys()
    return eager[0], eager[1]


@pytest.mark.parametrize("name", quick(NETS))
def test_a_net_on_a_device(name: str, caplog: pytest.LogCaptureFixture) -> None:
    if name == "function":
        pytest.importorskip("torch")
    net = NETS[name]()
    values, metrics = check(net, caplog)
    expected = train_in_threads(net.job)
    for param, value in expected.params.items():
        actual = np.reshape(values[param], value.shape)
        np.testing.assert_allclose(actual, value, rtol=1e-5, atol=1e-6, err_msg=param)
    for actual, cores in zip(metrics[:STEPS], expected.metrics, strict=True):
        assert actual["loss"][0] == pytest.approx(cores["loss"][0], rel=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["channels last", "groups", "depthwise", "own statistics", "group norm", "overlaps", "heads", "rollout"]
)
def test_a_net_on_a_device_in_bfloat16(name: str, caplog: pytest.LogCaptureFixture) -> None:
    net = NETS[name]()
    _, metrics = check(net, caplog, precision="kBF16")
    for actual, cores in zip(metrics[:STEPS], train_in_threads(net.job).metrics, strict=True):
        assert actual["loss"][0] == pytest.approx(cores["loss"][0], rel=0.02)


@pytest.mark.ci
@pytest.mark.parametrize("name", NETS)
def test_a_net_mixes_no_memory_of_host_and_device(name: str) -> None:
    """On arrays that host code cannot touch (``device_array.py``), and waits for none but by the backend."""
    if name == "function":
        pytest.importorskip("torch")
    net, ops = NETS[name](), StubOps()
    with device_worker(net.job.replace(gpu=[0]), ops=ops) as worker:
        run(worker, has_tests_of(net.job))
    assert not ops.record.syncs
    assert ops.record.kernels


def test_a_label_that_is_no_class_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The pass that is captured cannot check it: its loss is NaN, and the step runs eagerly, which raises the error."""
    labels = POINTS.copy()
    labels[9, 2, 4] = 3  # read in the third step, by the graph
    net = images(nn.Conv2D(3, 3, padding="same"), y=labels, loss=nn.FieldSoftmaxLoss())
    with device_worker(net.job.replace(gpu=[0])) as worker, pytest.raises(dsinga.UserError, match=r"label 3 in row \d"):
        worker.thread.submit(worker.train, 0, STEPS).result(60)
