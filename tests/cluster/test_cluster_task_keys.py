"""Dask's dashboard groups the tasks of runs by what they do, whatever the run, the group and the worker."""

from __future__ import annotations

import pytest
from dask.utils import key_split
from distributed import Client, get_task_stream
from distributed.utils import key_split_group

from dsinga.api import train
from dsinga.cluster.task_keys import task_key
from dsinga.job import Job
from tests.support.small_job import with_topology


@pytest.mark.parametrize("run", ["12345678", "abcdefab", "1a2b3c4d"])
@pytest.mark.parametrize("words", ["train round", "forward conv_1..pool_1", "backward loss"])
def test_the_run_is_in_the_group_and_not_in_the_prefix(words: str, run: str) -> None:
    key = task_key(words.replace("_", "-"), run, "step 3", "worker 0")
    assert key_split(key) == words
    assert key_split_group(key) == f"{words}-{run}"


def test_groups_and_workers_share_the_names_of_tasks(job: Job, threads: Client) -> None:
    job = with_topology(job, 1).replace(train_steps=12, test_freq=6, test_steps=1)
    job = job.replace(cluster=job.cluster.replace(nworker_groups=2, nserver_groups=2))
    with get_task_stream(threads) as stream:
        for _ in range(2):
            train(job, threads, progress=False)
    names = {"start server", "start worker", "connect servers", "train round", "evaluate", "pull values"}
    assert {key_split(task["key"]) for task in stream.data} == names
