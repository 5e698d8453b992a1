"""The job files that came with SINGA 0.3 train here, for two steps on records that are made up.

They are not ours to ship: $DSINGA_SINGA_EXAMPLES is the folder of them. The table of docs/singa-jobs.md says of each
what is to be expected.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.data import write_store

FOLDER = Path(os.environ.get("DSINGA_SINGA_EXAMPLES", ""))
STEPS = ("train_steps=2", "disp_freq=1", "test_freq=2", "test_steps=1", "checkpoint_freq=0", "warmup_steps=0")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (FOLDER / "mnist").is_dir(), reason="DSINGA_SINGA_EXAMPLES is not a folder with SINGA's examples"),
]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with stores where the jobs look for those that SINGA's tools would have made."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for folder, shape in (("mnist", (28, 28)), ("cifar10", (3, 32, 32))):
        for part, count in (("train", 300), ("test", 200)):
            data = random.integers(0, 256, (count, *shape)).astype(np.uint8)
            write_store(f"examples/{folder}/{part}_data.zarr", [(data, random.integers(0, 10, count))])
    write_store("examples/cifar10/image_mean.zarr", [(np.full((1, 3, 32, 32), 127.5, np.float32), None)])
    return tmp_path


def train(name: str, *overrides: str) -> dsinga.Result:
    return dsinga.train(dsinga.load(FOLDER / name, [*STEPS, *overrides]), progress=False)


def assert_trained(result: dsinga.Result) -> None:
    assert result.step == 2
    assert all(np.isfinite(value).all() for value in result.params.values())
    assert {row["phase"] for row in result.history} == {"train", "test"}
    assert all(np.isfinite(row["loss"]) for row in result.history if "loss" in row)


@pytest.mark.parametrize(
    "name",
    [
        "mnist/job.conf", "mnist/conv.conf",
        "cifar10/job.conf", "cifar10/hybrid.conf", "cifar10/cudnn.conf", "cifar10/cudnn_bm.conf", "cifar10/cudnn_hybrid.conf",
    ],
)  # fmt: skip
def test_feed_forward_nets(records: Path, name: str):
    assert_trained(train(name))


@pytest.mark.parametrize("name", ["alexnet/job.conf", "alexnet/cudnn.conf"])
def test_alexnet_with_few_images(records: Path, name: str):
    random, own = np.random.default_rng(0), []
    for part, phase in (("train", "kTrain"), ("val", "kTest")):
        images = random.integers(0, 256, (8, 3, 256, 256)).astype(np.uint8)
        write_store(f"{part}.zarr", [(images, random.integers(0, 1000, 8))])
        store = f"neuralnet.layer[data,{phase}].store_conf"
        own += [f'{store}.path="{part}.zarr"', f"{store}.mean_file=", f"{store}.batchsize=4", f"{store}.backend="]
    assert_trained(train(name, *own))
