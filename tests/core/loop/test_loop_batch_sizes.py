"""A run that goes on with batches of another size continues at the same record, and does the epochs asked for."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import Result
from dsinga.checkpoint import latest, read_checkpoint
from dsinga.job import ClusterConf, Job, loads
from dsinga.training import bp
from tests.support.refusals import refused

seen: list[int] = []  # the numbers of the records that were trained on


def noting(net: Any, values: Mapping[str, Any], records: Mapping[str, Any], ctx: Any, push: Any) -> Any:
    """Note the records of a batch, and compute its gradients."""
    seen.extend(records["data"].data[:, 0].astype(int).tolist())
    return bp(net, values, records, ctx, push)


dsinga.register("algorithm", "Noting")(noting)
JOB = """
name: "sizes"
train_one_batch { user_alg: "Noting" }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.0001 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 1 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { name: "w" } param { name: "b" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
DATA = np.arange(100, dtype=np.float32)[:, None], np.arange(100) % 3


def job_of(batchsize: int, groups: int = 1, workers: int = 1, **fields: Any) -> Job:
    job = loads(JOB, "sizes.conf", [f"neuralnet.layer[data].store_conf.batchsize={batchsize}"])
    cluster = ClusterConf(nworker_groups=groups, nworkers_per_group=workers)
    return job.replace(cluster=cluster, **fields)


def train(job: Job, workspace: Path, resume: bool | Path = True, **options: Any) -> Result:
    return dsinga.train(job, data=DATA, workspace=workspace, resume=resume, progress=False, **options)


@pytest.mark.parametrize(("groups", "workers"), [(1, 1), (1, 2), (2, 1)])
def test_epochs_are_counted_in_records(groups: int, workers: int, tmp_path: Path) -> None:
    """10 records a step up to the middle of an epoch, then 50, then 20; several groups share them."""
    seen.clear()
    topology = {"groups": groups, "workers": workers}
    train(job_of(10 // groups, **topology, train_steps=15), tmp_path, resume=False)
    larger = train(job_of(50 // groups, **topology, epochs=5), tmp_path)
    rows = [(row["step"], row["epoch"]) for row in larger.history if "epoch" in row]
    assert rows == [(16, 2), (18, 3), (20, 4), (22, 5)]
    assert Counter(seen) == dict.fromkeys(range(100), 5)
    assert train(job_of(20 // groups, **topology, epochs=7), tmp_path).step == 32
    assert Counter(seen) == dict.fromkeys(range(100), 7)
    again = train(job_of(20 // groups, **topology, epochs=7), tmp_path)
    assert again.step == 32
    assert "nothing was left to do" in again.remarks[0]


def test_steps_go_on_at_the_same_record(tmp_path: Path) -> None:
    """The order of the records is that of a run whose batches all have one size."""
    seen.clear()
    train(job_of(10, train_steps=14), tmp_path, resume=False)
    train(job_of(30, train_steps=20), tmp_path)
    changed = [*seen]
    seen.clear()
    train(job_of(10, train_steps=32), tmp_path / "unbroken", resume=False)
    assert changed == seen


def test_the_place_is_that_of_the_checkpoint_that_is_resumed(tmp_path: Path) -> None:
    """A damaged one is passed over; one that is named is taken; older ones do not say how large their batches were."""
    train(job_of(10, train_steps=15), tmp_path, resume=False)
    train(job_of(50, epochs=5), tmp_path)
    path = latest(tmp_path / "checkpoint")
    assert path is not None
    (path / "params.safetensors").write_bytes(b"")
    assert train(job_of(20, epochs=7), tmp_path).step == 15 + 28
    named = train(job_of(25, epochs=3), tmp_path / "other", tmp_path / "checkpoint" / "step15")
    assert named.step == 15 + 6
    assert read_checkpoint(tmp_path / "other" / "checkpoint" / "step21").loop["records"] == {"rows": 25, "offset": -225}


def test_fewer_epochs_than_are_done_are_refused(tmp_path: Path) -> None:
    train(job_of(10, epochs=4), tmp_path, resume=False)
    refused(lambda: train(job_of(20, epochs=3), tmp_path), "s 3 epochs", "give epochs=4 or")
