"""Every kind of run with every extension, by the one loop. How other kinds than agents resume: test_loop_resumed."""

from __future__ import annotations

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
CUT = 8  # the step at which a run is cut, and at whose multiples it is tested
AGENT = """
train_steps: 24 disp_freq: 8 test_freq: 8 checkpoint_freq: 8
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.002 } }
neuralnet {
  layer { name: "observation" type: kRecordInput store_conf { shape: 4 } }
  layer { name: "fc" type: kInnerProduct srclayers: "observation" innerproduct_conf { num_output: 8 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "HEAD" type: kInnerProduct srclayers: "fc" innerproduct_conf { num_output: 2 }
    param { init { type: kUniformSqrtFanIn } } }
  VALUE
}
reinforcement { environment: "CartPole-v1" num_environments: 2 rollout_steps: 4 evaluation_episodes: 1 ALGORITHM }
"""
VALUE = """layer { name: "value" type: kInnerProduct srclayers: "fc" innerproduct_conf { num_output: 1 }
    param { init { type: kUniformSqrtFanIn } } }"""


def net_job(conf: ClusterConf) -> Job:
    job = dsinga.models.mlp([8], inputs=6, classes=2, batchsize=16, train_steps=24)
    return job.replace(cluster=conf, disp_freq=CUT, test_freq=CUT, checkpoint_freq=CUT)


def agent_job(algorithm: str, head: str, value: str = "") -> Job:
    return dsinga.loads(AGENT.replace("ALGORITHM", algorithm).replace("HEAD", head).replace("VALUE", value))


KINDS: dict[str, tuple[Callable[[], Job], bool]] = {  # the job, and whether it gets a client
    "here": (lambda: net_job(ClusterConf()), False),
    "one worker": (lambda: net_job(ClusterConf()), True),
    "two workers": (lambda: net_job(ClusterConf(nworkers_per_group=2)), True),
    "two groups": (lambda: net_job(ClusterConf(nworker_groups=2)), True),
    "agent of rollouts": (lambda: agent_job("algorithm: kA2C", "policy", VALUE), False),
    "agent with a memory": (
        lambda: agent_job("algorithm: kDQN replay_conf { learn_after: 4 batch_size: 4 }", "values"), False,
    ),
}  # fmt: skip


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


def writes_a_table(result: Any, folder: Path) -> None:
    assert len((folder / "metrics.csv").read_text().splitlines()) == 1 + len(result.history)


def writes_curves(result: Any, folder: Path) -> None:
    assert list((folder / "tensorboard").rglob("events.*"))


MONITOR = "monitor: 'METRIC' patience: 1 min_delta: 1e9"
EXTENSIONS: dict[str, Callable[[Any, Path], None]] = {
    f"type: kEarlyStopping {MONITOR}": stops_early,
    "type: kKeepBest monitor: 'METRIC'": keeps_the_best,
    f"type: kReduceOnPlateau {MONITOR}": changes_the_rate,
    "type: kStopOnTime seconds: 1e-6": stops_on_time,
    "type: kCSV": writes_a_table,
    "type: kTensorBoard": writes_curves,
}


def run(kind: str, threads: Client, folder: Path, text: str = "", **options: Any) -> Any:
    make, has_client = KINDS[kind]
    job = make()
    metric = "test/loss" if job.reinforcement is None else "test/episode_return"
    if text:
        message = dsinga.loads(f"extension {{ {text.replace('METRIC', metric)} }} {TRIVIAL}").extension
        job = job.replace(extension=message)
    steps = options.pop("steps", 0)
    if steps:
        job = job.replace(train_steps=steps)
    data = {"data": DATA} if job.reinforcement is None else {}
    client = threads if has_client else None
    return dsinga.train(job, client, workspace=folder, progress=False, **data, **options)


TRIVIAL = "neuralnet { } train_steps: 1"


@pytest.mark.parametrize("text", EXTENSIONS, ids=lambda text: text.split()[1])
@pytest.mark.parametrize("kind", KINDS)
def test_every_extension_holds_in_every_kind_of_run(kind: str, text: str, threads: Client, tmp_path: Path) -> None:
    EXTENSIONS[text](run(kind, threads, tmp_path, text), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_an_extension_that_can_never_run_is_refused_in_every_kind(kind: str, threads: Client, tmp_path: Path) -> None:
    with pytest.raises(dsinga.base.errors.UserError, match="'nothing/there'"):
        run(kind, threads, tmp_path, "type: kEarlyStopping monitor: 'nothing/there'")


@pytest.mark.parametrize("kind", ["agent of rollouts", "agent with a memory"])
def test_an_agent_that_was_cut_and_resumed_is_the_unbroken_one(kind: str, threads: Client, tmp_path: Path) -> None:
    whole = run(kind, threads, tmp_path / "whole")
    run(kind, threads, tmp_path / "parts", steps=CUT)
    parts = run(kind, threads, tmp_path / "parts", resume=True)
    assert whole.step == parts.step
    for name, value in whole.params.items():
        np.testing.assert_array_equal(value, parts.params[name])
    rows = [[{**row, "time": 0, "env_steps_per_second": 0} for row in result.history.phase("test")]
            for result in (whole, parts)]  # fmt: skip
    assert rows[0] == rows[1]
