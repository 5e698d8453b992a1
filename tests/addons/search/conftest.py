"""The cluster and the job of the tests of searches."""

from pathlib import Path

import pytest
from distributed import Client

from dsinga.job import Job, loads
from tests.support.small_job import JOB, with_topology


@pytest.fixture
def client(threads: Client) -> Client:
    """A client of an in-process cluster of three Dask workers."""
    return threads


@pytest.fixture(scope="session")
def short(stores: Path) -> Job:
    """A job of one worker, and of few steps."""
    job = loads(JOB, str(stores / "small.conf"), ["neuralnet.layer[data,kTrain].store_conf.batchsize=40"])
    return with_topology(job, 1).replace(train_steps=4, disp_freq=2)
