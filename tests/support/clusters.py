"""Fixtures: the small job with its stores, and the clusters to train it on. Imported by tests/conftest.py."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dsinga.data import write_store
from dsinga.job import Job, loads
from tests.support.small_job import JOB

if TYPE_CHECKING:
    from distributed import Client

# What Dask looks at many times a second, in each of a dozen workers: a tenth of the time of tests that train by graphs.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
# What workers, and functions of tests that are sent to them, import: dask.array and estimators take a second of CPU.
WORKER_MODULES = [
    *("dsinga.cluster.run.driver", "dsinga.estimators", "dask.array", "distributed.nanny", "hypothesis", "pytest"),
    *("distributed.protocol.numpy", "distributed.http.worker.prometheus", "distributed.http.health"),
    "tests.support.gc_thresholds",
]


@pytest.fixture(scope="session")
def forked() -> Iterator[None]:
    """Fork worker processes from one that has imported what they need: each alone takes three seconds of CPU for that.

    How users' workers start, test_cluster_commands.py has: ``dask worker`` knows nothing of dsinga before.
    """
    import dask.config
    from distributed.utils import get_mp_context

    from dsinga.cluster.dask.worker_memory import MALLOC_SETTINGS

    # The C library reads them as the fork server starts, and whichever cluster a test starts first starts that.
    malloc = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in MALLOC_SETTINGS.items()}
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver", **QUIET, **malloc}):
        get_mp_context()  # names modules of its own, the first time
        multiprocessing.set_forkserver_preload(WORKER_MODULES)
        yield


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.zarr (1,000 records) and test.zarr (150): ten blurred prototypes with noise."""
    folder = tmp_path_factory.mktemp("stores")
    rng = np.random.default_rng(7)
    prototypes = rng.uniform(0, 16, (10, 1, 8, 8))
    for name, count in (("train", 1000), ("test", 150)):
        labels = rng.integers(0, 10, count)
        images = np.clip(prototypes[labels] + rng.normal(0, 3, (count, 1, 8, 8)), 0, 16)
        write_store(folder / f"{name}.zarr", [(images.astype(np.uint8), labels)])
    return folder


@pytest.fixture
def job(stores: Path) -> Job:
    """The small job, as if its file lay beside the stores."""
    return loads(JOB, str(stores / "small.conf"))


@pytest.fixture(scope="session")
def threads() -> Iterator[Client]:
    """An in-process cluster of three Dask workers."""
    from dsinga.cluster import connect  # tests of the mathematics do not wait for Dask

    with connect(workers=3) as client:
        yield client


@pytest.fixture(scope="session")
def processes(forked: None) -> Iterator[Client]:
    """A cluster of three worker processes."""
    from dsinga.cluster import connect  # tests of the mathematics do not wait for Dask

    with connect(workers=3, separate_processes=True) as client:
        yield client


@pytest.fixture(params=["threads", "processes"])
def client(request: pytest.FixtureRequest) -> Client:
    """Each of the two clusters, in turn: they use different transports."""
    return request.getfixturevalue(request.param)
