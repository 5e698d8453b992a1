"""A worker group whose workers are lost begins anew in other threads, while another group goes on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from dsinga.api import roots
from dsinga.job import ClusterConf, Job, Phase
from dsinga.job.topology import topology
from dsinga.server import Shard
from dsinga.server.service import ShardService
from dsinga.training import create_updater, initial_values
from dsinga.transport.endpoints import Endpoint, close_endpoints, connect
from dsinga.worker.config import RoundReport, ServerKey, WorkerKey, new_run_name
from dsinga.worker.configure import configure, open_job
from dsinga.worker.group_worker import GroupWorker
from dsinga.worker.nets import cut_nets
from dsinga.worker.param_slices import slice_specs, sliced_values
from dsinga.worker.processor import Processor

WAIT = 60.0  # seconds; only a failing test waits so long
STEPS = 12


class TwoGroups:
    """Two worker groups of two workers, and two servers, in threads of this process."""

    def __init__(self, job: Job):
        shape, stores = topology(job, 4, 1), roots(job, None)
        opened = open_job(job, shape, stores)
        nets = cut_nets(opened.nets, opened.readers, False)
        updater = create_updater(job.updater)
        self.config = configure(job, shape, opened, nets, updater, run=new_run_name(), timeout=WAIT)
        values = initial_values(opened.nets[Phase.kTrain].params, job.seed)
        specs, (pieces, _) = slice_specs(self.config), sliced_values(self.config, values, None)
        self.shards, self.servers = [], [ServerKey(self.config.run, 0, 0, server) for server in range(shape.servers)]
        for key in self.servers:
            kept = [spec for spec in specs if spec.slice.server == key.server]
            shard = Shard(kept, updater, range(shape.groups))
            shard.put({spec.slice.id: pieces[spec.slice.id].copy() for spec in kept})
            service = ShardService(shard, {spec.slice.id: spec.slice.size for spec in kept})
            Endpoint(key.name, service, to_host=False)
            self.shards.append(shard)
        self._all: list[GroupWorker] = []

    def create_workers(self, group: int, generation: int, step: int) -> list[GroupWorker]:
        keys = [WorkerKey(self.config.run, generation, group, partition, "threads") for partition in (0, 1)]
        workers = [GroupWorker(key, self.config, dict.fromkeys(self.servers), Processor(1), step) for key in keys]
        for key, worker in zip(keys, workers, strict=True):
            Endpoint(key.name, worker.peers.mailbox, to_host=False)
        for worker in workers:
            worker.peers.connect([connect(key.name) for key in keys])
        self._all += workers
        return workers

    def close(self) -> None:
        for worker in self._all:
            worker.abort("the test is over")
        close_endpoints(lambda name: name.startswith(self.config.run), "the test is over")
        for worker in self._all:
            worker.close()


@pytest.fixture
def groups(job: Job) -> Iterator[TwoGroups]:
    shape = ClusterConf(nworker_groups=2, nworkers_per_group=2, nservers_per_group=2)
    groups = TwoGroups(job.replace(cluster=shape, train_steps=STEPS))
    yield groups
    groups.close()


def send(workers: list[GroupWorker], start: int, stop: int) -> list[Future[RoundReport]]:
    return [worker.thread.submit(worker.train, start, stop) for worker in workers]


def steps_done(rounds: list[Future[RoundReport]]) -> int:
    reports = [round.result(WAIT) for round in rounds]
    (steps,) = {len(report.metrics) for report in reports}
    return steps


def test_steps_whose_reports_were_lost_are_computed_again_without_a_change(groups: TwoGroups) -> None:
    lost = groups.create_workers(1, 0, 0)
    assert steps_done(send(lost, 0, 5)) == 5
    step = max(shard.restart(1, 1) for shard in groups.shards)
    assert {shard.restart(1, 1, step) for shard in groups.shards} == {step} == {5}
    before = [shard.snapshot(None, WAIT).values for shard in groups.shards]
    workers = groups.create_workers(1, 1, 2)
    assert steps_done(send(workers, 2, 5)) == 3
    for shard, values in zip(groups.shards, before, strict=True):
        for id, value in shard.snapshot(None, WAIT).values.items():
            np.testing.assert_array_equal(value, values[id])
    assert steps_done(send(workers, 5, 7)) == 2
    assert any((value != before[0][id]).any() for id, value in groups.shards[0].snapshot(None, WAIT).values.items())
