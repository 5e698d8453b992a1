"""A group of 64 or 256 workers, simulated by Dask workers in one process, loses one of its Dask workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsinga import cluster
from dsinga.api import roots
from dsinga.cluster import connect
from dsinga.job import ClusterConf, loads
from tests.support.observers import Recorder, of_phase
from tests.support.small_job import assert_same

# Transitions of tasks on the scheduler from the loss to the next new step, for each worker of the group: its old Actor
# and tasks end, the new ones are made, some rounds run.
TRANSITIONS_PER_WORKER = 200
JOB = """
name: "small"
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" shape: 64 std_value: 16 } }
  layer { name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 32 }
    param { name: "w1" init { type: kUniformSqrtFanIn } } param { name: "b1" init { type: kConstant value: 0 } } }
  layer { name: "tanh" type: kSTanh srclayers: "ip1" }
  layer { name: "ip2" type: kInnerProduct srclayers: "tanh" innerproduct_conf { num_output: 10 }
    param { name: "w2" init { type: kUniformSqrtFanIn } } param { name: "b2" init { type: kConstant value: 0 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip2" srclayers: "data" }
}
"""


class Counter(Recorder):
    """A recorder that notes how far the scheduler's count of transitions is at the loss and at the recovery."""

    def __init__(self, step: int, scheduler: Any, worker: Any, loop: Any):
        super().__init__(step, self.lose)
        self._scheduler, self._worker, self._loop = scheduler, worker, loop
        self.counts: dict[str, int] = {}

    def lose(self) -> None:
        self.counts["loss"] = self._scheduler.transition_counter
        self._loop.add_callback(self._worker.close)

    def record(self, row: dict[str, Any]) -> None:
        super().record(row)
        if row["phase"] == "recovery":
            self.counts["recovery"] = self._scheduler.transition_counter


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("workers", "steps"), [(64, 160), (256, 160)])
def test_one_of_many_workers_is_lost(stores: Path, workers: int, steps: int) -> None:
    job = loads(JOB, str(stores / "job.conf"), [f"neuralnet.layer[data].store_conf.batchsize={2 * workers}"])
    cluster_conf = ClusterConf(nworkers_per_group=workers)
    job = job.replace(train_steps=steps, disp_freq=steps // 8, cluster=cluster_conf)
    outcomes = []
    for lost_at in (2 * steps, steps // 4):
        with connect(workers=workers) as client:
            local = client.cluster
            victim = list(local.workers.values())[workers // 2]
            recorder = Counter(lost_at, local.scheduler, victim, local.loop)
            outcomes.append(cluster.train(job, client, recorder, roots=roots(job, None)))
    (row,) = of_phase(recorder.rows, "recovery")
    transitions = recorder.counts["recovery"] - recorder.counts["loss"]
    print(f"{workers} workers: {row}; {transitions} transitions of tasks on the scheduler")
    assert transitions < TRANSITIONS_PER_WORKER * workers
    assert_same(outcomes[0].params, outcomes[1].params)
