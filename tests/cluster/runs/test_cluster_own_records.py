"""Records of users' code, and zarr arrays at relative paths, are read by the workers of a cluster."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.base.registry import register
from dsinga.data import DataSource
from dsinga.job import loads
from tests.support.registries import restored_registry
from tests.support.small_job import LINEAR, assert_same

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype(np.float32)
Y = RNG.integers(3, size=40)


class InBatches:
    """What keras.utils.PyDataset has."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        return X[number * 16 : (number + 1) * 16], Y[number * 16 : (number + 1) * 16]

    def on_epoch_end(self) -> None:
        """Do nothing."""


def trained(*data: Any, client: Client) -> nn.Sequential:
    model = nn.Sequential([nn.Input(4), nn.Dense(3)])
    model.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    model.fit(*data, batch_size=40, epochs=3, client=client, workers=2, progress=False)
    return model


def test_two_workers_train_on_a_sequence(threads: Client) -> None:
    arrays = trained(X, Y, client=threads).params
    for name, array in trained(InBatches(), client=threads).params.items():  # in another order, which sums up
        np.testing.assert_allclose(array, arrays[name], rtol=1e-4, atol=1e-6)


def test_the_column_of_a_source_reaches_other_processes(
    tmp_path: Path, processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.concatenate([Y[:, None], X / 200], axis=1).astype(np.float32).tofile("rows.raw")
    with restored_registry():

        @register("source", "RawRows")
        class RawRows(DataSource):
            def open(self) -> Any:
                rows = np.fromfile(self.path, np.float32).reshape(-1, 5)
                return rows[:, 1:], rows[:, 0].astype(int)

        store = 'batchsize: 20 backend: "RawRows" path: "rows.raw"'
        job = loads(LINEAR.replace("batchsize: 20", store))
        params = dsinga.train(job, processes, workers=2, progress=False).params
    arrays = dsinga.train(loads(LINEAR), processes, data=(X / 200, Y), workers=2, progress=False)
    assert_same(params, arrays.params)


@pytest.mark.ci
def test_a_cluster_reads_chunks_of_a_relative_path(
    tmp_path: Path, processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zarr.create_array("x.zarr", data=X, chunks=(8, 4))
    assert_same(
        trained(zarr.open_array("x.zarr", mode="r"), Y, client=processes).params, trained(X, Y, client=processes).params
    )
