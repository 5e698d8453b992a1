"""The command line, run in this process in a folder with a small job and its stores."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsinga.commands.cli import main
from dsinga.data import write_store

JOB = """name: "cli"
train_steps: 20
test_freq: 10
test_steps: 2
disp_freq: 10
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain
    store_conf { path: "train.zarr" batchsize: 20 shape: 8 std_value: 255 } }
  layer { name: "data" type: kRecordInput include: kTest
    store_conf { path: "test.zarr" batchsize: 20 shape: 8 std_value: 255 } }
  layer { name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { name: "w1" init { type: kUniform low: -0.1 high: 0.1 } }
    param { name: "b1" init { type: kConstant value: 0 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip1" srclayers: "data" }
}
cluster { workspace: "work" }
"""

Dsinga = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with job.conf and its stores."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 100), ("test", 50)):
        labels = rng.integers(0, 3, count)
        data = rng.integers(0, 40, (count, 8)) + 80 * (np.arange(8) % 3 == labels[:, None])
        write_store(tmp_path / f"{name}.zarr", [(data.astype(np.uint8), labels)])
    (tmp_path / "job.conf").write_text(JOB)
    return tmp_path


@pytest.fixture
def dsinga(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Dsinga:
    """Run the command line in the folder, in this process."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        monkeypatch.setattr(sys, "argv", ["dsinga", *arguments])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, out.getvalue(), err.getvalue())

    return run


def check_hosts_and_resources(dsinga: Dsinga, name: str, *options: str) -> None:
    """Check that a command says where no Dask worker is that its options ask for."""
    refused = dsinga(name, "job.conf", *options, "--hosts", "nowhere")
    assert refused.returncode == 2
    assert "no Dask worker is on 'nowhere'" in refused.stderr
    refused = dsinga(name, "job.conf", *options, "--resources", "GPU=1")
    assert refused.returncode == 2
    assert "no Dask worker has the resource GPU=1" in refused.stderr
