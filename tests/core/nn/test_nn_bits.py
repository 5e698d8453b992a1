"""A net described in Python is the job that a file describes, and trains to the same bits."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.job import loads, to_text
from tests.support.small_job import assert_same

ROOT = Path(__file__).parents[3]
INIT = "kUniformSqrtFanIn"


def digits() -> nn.Sequential:
    """Return the net of datasets/digits/job.conf."""
    model = nn.Sequential(
        [
            nn.Input(shape=(1, 8, 8)),
            nn.Rescaling(1 / 16),
            nn.Conv2D(16, 3, padding="same", kernel_initializer=INIT, name="conv1"),
            nn.ReLU(name="relu1"),
            nn.MaxPooling2D(2, name="pool1"),
            nn.Conv2D(32, 3, padding="same", kernel_initializer=INIT, name="conv2"),
            nn.ReLU(name="relu2"),
            nn.MaxPooling2D(2, name="pool2"),
            nn.Dense(10, kernel_initializer=INIT, name="ip"),
        ],
        name="digits",
    )
    rate = nn.ExponentialDecay(0.05, decay_steps=200, decay_rate=0.3, staircase=True)
    optimizer = nn.SGD(rate, momentum=0.9, weight_decay=0.0005)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture
def in_digits(monkeypatch):
    monkeypatch.chdir(ROOT / "datasets" / "digits")


def test_the_job_trains_to_the_bits_of_the_job_file(in_digits):
    fields = {"train_steps": 30, "disp_freq": 10, "test_freq": 30, "seed": 1}
    model = digits()
    job = model.job("train_data.zarr", test_data="test_data.zarr", batch_size=64, **fields)
    read = nn.from_job(loads(str(job)))
    assert to_text(read.job()) == to_text(job)
    read.compile(nn.Adam(0.01), cluster=nn.Cluster(workers=2))
    assert (read.job().updater.type.name, read.job().cluster.nworkers_per_group) == ("kAdam", 2)
    of_file = dsinga.load("job.conf").replace(**fields, test_steps=0)
    result, expected = (dsinga.train(each, progress=False) for each in (job, of_file))
    assert_same(result.params, expected.params)
    losses = result.history.phase("train")[:, "loss"]
    assert losses == expected.history.phase("train")[:, "loss"]
    assert result.history[-1, "accuracy"] == pytest.approx(expected.history[-1, "accuracy"])


def test_a_final_softmax_changes_no_bit_of_training(in_digits):
    def params(*end):
        model = nn.Sequential([nn.Input((1, 8, 8)), nn.Dense(10, name="ip"), *end])
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit("train_data.zarr", train_steps=5, batch_size=64, progress=False)
        return model.params

    assert_same(params(), params(nn.Softmax()))


def test_initial_values_have_the_distributions_of_keras():
    model = nn.Sequential(
        [
            nn.Input((3, 16, 16)),
            nn.Conv2D(64, 5, name="conv"),
            nn.Flatten(),
            nn.Dense(200, name="ip"),
            nn.Dense(100, kernel_initializer="he_normal", name="he"),
            nn.Dense(100, kernel_initializer="glorot_normal", name="gn", bias_initializer="ones"),
        ]
    )
    params = model.params
    limit = np.sqrt(6 / (25 * (3 + 64)))  # Keras counts the outputs of a convolution with its window
    assert 0.98 * limit < np.abs(params["conv_weight"]).max() < limit
    limit = np.sqrt(6 / (64 * 144 + 200))
    assert 0.999 * limit < np.abs(params["ip_weight"]).max() < limit
    assert params["he_weight"].std() == pytest.approx(np.sqrt(2 / 200), rel=0.02)
    assert params["gn_weight"].std() == pytest.approx(np.sqrt(2 / 200), rel=0.02)
    assert (params["gn_bias"] == 1).all()
    assert not params["ip_bias"].any()
