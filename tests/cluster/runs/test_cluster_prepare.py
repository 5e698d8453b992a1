"""How a run is prepared: the number of workers, the batches of each worker, the steps of rounds, and memory."""

import asyncio
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from distributed import Client
from zarr.codecs import Crc32cCodec

from dsinga import UserError
from dsinga.api import evaluate, roots, train
from dsinga.cluster import prepare_run
from dsinga.cluster.dask.run_tasks import RoundLength
from dsinga.cutting.cluster_topology import topology
from dsinga.data import open_store, write_store
from dsinga.job import Job, JobError, Phase, loads
from dsinga.reading.batch_reader import WorkerBatches
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import initial_values
from tests.support.small_job import linear, with_topology


def test_an_asynchronous_client_is_refused(job: Job, threads: Client) -> None:
    async def with_asynchronous_client() -> None:
        async with Client(threads.scheduler.address, asynchronous=True, set_as_default=False) as client:
            prepare_run(job, client).__enter__()

    with pytest.raises(UserError, match="not an asynchronous Client"):
        asyncio.run(asyncio.wait_for(with_asynchronous_client(), 30))
    with pytest.raises(UserError, match="client must be a distributed.Client with asynchronous=False, not a str"):
        prepare_run(job, "tcp://127.0.0.1:8786").__enter__()  # type: ignore[arg-type]


def test_a_job_without_cluster_uses_all_workers(job: Job) -> None:
    assert topology(job, 3, 3)[:2] == (3, 3)
    assert topology(job, 3, 1)[:2] == (3, 1)
    assert topology(job, 1000, 1)[:2] == (64, 1), "never more workers than the smallest batch has rows"


@pytest.mark.parametrize("conf", ["lmdbdata_conf", "sharddata_conf"])
def test_a_job_of_old_input_layers_uses_all_workers(conf: str) -> None:
    job = loads(f'neuralnet {{ layer {{ name: "data" {conf} {{ path: "x" batchsize: 64 }} }} }}')
    assert topology(job, 3, 1).workers == 3


def test_more_workers_than_rows_are_refused(job: Job, stores: Path) -> None:
    with pytest.raises(JobError, match=r"small.conf:9: layer 'data': a batch of 100 cannot be cut over 101 workers"):
        CheckedJob(job, [str(stores)]).reader(Phase.kTrain, 101)


def test_a_number_of_batch_sizes_other_than_the_workers_is_refused(job: Job, stores: Path) -> None:
    job.neuralnet.layer[0].store_conf.batchsize = [50, 50]  # type: ignore[union-attr]
    with pytest.raises(JobError, match="gives 2 batch sizes for 3 workers"):
        CheckedJob(job, [str(stores)]).reader(Phase.kTrain, 3)


def test_parts_read_disjoint_rows_of_one_batch(job: Job, stores: Path) -> None:
    whole = CheckedJob(job, [str(stores)]).reader(Phase.kTrain)
    parts = CheckedJob(job, [str(stores)]).reader(Phase.kTrain, 3)
    assert [rows.stop - rows.start for rows in parts.parts] == [34, 33, 33]
    for step in (0, 7, 9, 10):
        read = [WorkerBatches(parts, {"data": rows})(step)["data"] for rows in parts.parts]
        batch = WorkerBatches(whole, {"data": whole.parts[0]})(step)["data"]
        np.testing.assert_array_equal(np.concatenate([part.data for part in read]), batch.data)
        np.testing.assert_array_equal(np.concatenate([part.labels for part in read]), batch.labels)


def test_groups_share_out_the_batches_that_one_group_reads(job: Job, stores: Path) -> None:
    single = CheckedJob(job, [str(stores)]).reader(Phase.kTrain)
    groups = CheckedJob(job, [str(stores)]).reader(Phase.kTrain, 1, groups=3)
    (rows,) = groups.parts
    for step in range(4):
        for group in range(3):
            read = WorkerBatches(groups, {"data": rows}, group)(step)["data"]
            np.testing.assert_array_equal(
                read.data, WorkerBatches(single, {"data": rows})(3 * step + group)["data"].data
            )


def test_a_store_that_workers_cannot_read_is_refused(job: Job, processes: Client, stores: Path) -> None:
    """A store in the memory of this process stands for one on a disk that the workers do not have."""
    path = "memory://layout/train.zarr"
    write_store(path, [open_store(str(stores / "train.zarr")).read(range(100))])
    for layer in job.neuralnet.layer[:2]:
        layer.store_conf.path = path  # type: ignore[union-attr]
    unreadable = f"the Dask workers tcp://.* cannot read {path}: there is no store at {path}; put the records where"
    with pytest.raises(UserError, match=unreadable):
        prepare_run(with_topology(job, 2), processes, roots(job, None)).__enter__()
    params = initial_values(CheckedJob(job).net(Phase.kTest).params, seed=0)
    with pytest.raises(UserError, match=unreadable):
        evaluate(job, params, client=processes)


@pytest.mark.parametrize("kind", ["store", "zarr 2", "zarr 3 with checksums"])
def test_damaged_records_are_not_said_to_be_elsewhere(
    job: Job, threads: Client, processes: Client, stores: Path, tmp_path: Path, kind: str
) -> None:
    data, labels = open_store(str(stores / "train.zarr")).read(range(100))
    path = tmp_path / "train.zarr"
    if kind == "store":
        write_store(path, [(data, labels)])
    else:
        group = zarr.open_group(path, mode="w", zarr_format=2 if kind == "zarr 2" else 3)
        codec: Any = numcodecs.Zlib() if kind == "zarr 2" else [Crc32cCodec()]
        group.create_array("data", data=data, chunks=(20, *data.shape[1:]), compressors=codec)
        group.create_array("labels", data=labels, chunks=(100,))
    for chunk in [chunk for chunk in (path / "data").rglob("*") if chunk.is_file() and chunk.name[-1].isdecimal()]:
        chunk.write_bytes(chunk.read_bytes()[:-9] + bytes(9))
    for layer in job.neuralnet.layer[:2]:
        layer.store_conf.path = str(path)  # type: ignore[union-attr]
    for client in (threads, processes):
        with pytest.raises(UserError, match=r"write the array again|import it again") as refused:
            prepare_run(with_topology(job, 2), client, roots(job, None)).__enter__()
        assert str(refused.value).count(str(path)) == 1
        assert "every worker finds" not in str(refused.value)


def test_phases_that_do_not_share_params_are_refused(job: Job, threads: Client) -> None:
    job.test_freq, job.test_steps = 10, 1
    test_only = job.neuralnet.layer[-2].replace(name="ip", include=[Phase.kTest], param=[])
    job.neuralnet.layer[-2].include = [Phase.kTrain]
    job.neuralnet.layer.insert(-1, test_only)
    with pytest.raises(UserError, match="param 'ip_weight' of the kTest net has no counterpart"):
        prepare_run(with_topology(job, 1), threads, roots(job, None)).__enter__()


def test_rounds_grow_to_a_second() -> None:
    length = RoundLength()
    sizes = []
    for _ in range(5):
        sizes.append(length.steps)
        length.learn([0.004] * length.steps)
    assert sizes == [1, 8, 64, 250, 250]
    length.learn([3.0])
    assert length.steps == 1


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (10**12, r"needs at least 96,857\.5 GiB of memory.*most is for the param 'w', 37,252\.9 GiB"),
        (2**63, "most is for the param 'w'"),
    ],
)
def test_a_net_that_is_larger_than_memory_is_refused_with_its_size(count, expected):
    data = np.ones((8, 10), np.float32), np.zeros(8, np.int64)
    job = linear("batchsize=4", f"=neuralnet.layer[ip].innerproduct_conf.num_output={count}")
    with pytest.raises(UserError, match=expected):
        train(job, workers=1, data=data, progress=False)


def test_a_cluster_that_is_started_here_has_a_bounded_number_of_workers():
    job = linear("path=nowhere.zarr").replace(cluster={"nworker_groups": 1000})
    with pytest.raises(UserError, match="the job wants 1,000 workers, but a cluster that is started here has at most"):
        train(job, progress=False)
