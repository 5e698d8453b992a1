"""Every kind of run with every extension, by the one loop. How they resume: test_loop_resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga.checkpoint import latest, read_checkpoint
from dsinga.job import ClusterConf, Job

X = np.random.default_rng(3).normal(size=(48, 6)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int32)
DATA = {"train": (X, Y), "test": (X[:16], Y[:16])}
NET = """
train_steps: 24 disp_freq: 8 test_freq: 8 checkpoint_freq: 8
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.05 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 16 shape: 6 } }
  layer { name: "fc" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 8 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "relu" type: kReLU srclayers: "fc" }
  layer { name: "ip" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 2 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def net_job(conf: ClusterConf) -> Job:
    return dsinga.loads(NET).replace(cluster=conf)


KINDS: dict[str, tuple[Callable[[], Job], bool]] = {  # the job, and whether it gets a client
    "here": (lambda: net_job(ClusterConf()), False),
    "one worker": (lambda: net_job(ClusterConf()), True),
    "two workers": (lambda: net_job(ClusterConf(nworkers_per_group=2)), True),
    "two groups": (lambda: net_job(ClusterConf(nworker_groups=2)), True),
}


def stops_early(result: Any, folder: Path) -> None:
    assert result.step < 24
    assert "has not improved" in result.stopped


def keeps_the_best(result: Any, folder: Path) -> None:
    assert (folder / "best.safetensors").exists()


def changes_the_rate(result: Any, folder: Path) -> None:
    assert read_checkpoint(latest(folder / "checkpoint")).loop["rate_factors"]


def stops_on_time(result: Any, folder: Path) -> None:
    assert result.step < 24
    assert latest(folder / "checkpoint") is not None


MONITOR = "monitor: 'METRIC' patience: 1 min_delta: 1e9"
EXTENSIONS: dict[str, Callable[[Any, Path], None]] = {
    f"type: kEarlyStopping {MONITOR}": stops_early,
    "type: kKeepBest monitor: 'METRIC'": keeps_the_best,
    f"type: kReduceOnPlateau {MONITOR}": changes_the_rate,
    "type: kStopOnTime seconds: 1e-6": stops_on_time,
}


def train(job: Job, client: Client | None, folder: Path, text: str, metric: str = "test/loss", **options: Any) -> Any:
    """Train a job with an extension that monitors a metric."""
    written = dsinga.loads(f"extension {{ {text.replace('METRIC', metric)} }} neuralnet {{ }} train_steps: 1")
    return dsinga.train(job.replace(extension=written.extension), client, workspace=folder, progress=False, **options)


def train_kind(kind: str, threads: Client, folder: Path, text: str) -> Any:
    """Train a net in a kind of run with an extension."""
    make, has_client = KINDS[kind]
    return train(make(), threads if has_client else None, folder, text, data=DATA)


@pytest.mark.parametrize("text", EXTENSIONS, ids=lambda text: text.split()[1])
@pytest.mark.parametrize("kind", KINDS)
def test_every_extension_holds_in_every_kind_of_run(kind: str, text: str, threads: Client, tmp_path: Path) -> None:
    EXTENSIONS[text](train_kind(kind, threads, tmp_path, text), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_an_extension_that_can_never_run_is_refused_in_every_kind(kind: str, threads: Client, tmp_path: Path) -> None:
    with pytest.raises(dsinga.base.errors.UserError, match="'nothing/there'"):
        train_kind(kind, threads, tmp_path, "type: kEarlyStopping monitor: 'nothing/there'")
