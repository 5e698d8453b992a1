"""How much memory a run within one process takes for its params, and what follows from it."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga import nn
from dsinga.base.errors import RunError
from dsinga.cluster import connect
from dsinga.extensions import EverySteps, Extension
from dsinga.ops import get_ops

WIDTH, LAYERS = 1200, 4


def fit(width: int, client: Client) -> None:
    images = np.ones((8, width), np.float32)
    model = nn.Sequential([nn.Dense(width) for _ in range(LAYERS)])
    model.compile(nn.SGD(0.001), "mse")
    model.fit(images, images, epochs=3, batch_size=8, client=client, progress=False)


@pytest.mark.ci
@pytest.mark.skipif(get_ops().name != "onednn", reason="numpy's gradients are no arrays of the pool")
def test_a_run_within_one_process_has_one_copy_of_params_and_of_the_largest_gradient() -> None:
    with connect(workers=1, separate_processes=False) as client:
        fit(WIDTH, client)  # what it imports and, where there is numba, compiles is no copy
        tracemalloc.start(1)
        try:
            fit(WIDTH, client)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 2 * LAYERS * WIDTH**2 * 4


class Closes(Extension):
    """Closes the Dask workers of a cluster in this process."""

    trigger = EverySteps(2)

    def __init__(self, client: Client):
        self.cluster: Any = client.cluster

    def run(self, loop: Any) -> None:
        for worker in [*self.cluster.workers.values()]:
            self.cluster.sync(worker.close)


def test_a_run_that_loses_the_only_dask_worker_of_its_process_ends_at_once() -> None:
    images = np.ones((8, 4), np.float32)
    model = nn.Sequential([nn.Dense(4)])
    model.compile(nn.SGD(0.001), "mse")
    with connect(workers=1, separate_processes=False) as client, pytest.raises(RunError, match="keeps no snapshot"):
        model.fit(images, images, epochs=100, batch_size=8, client=client, progress=False, callbacks=[Closes(client)])
