"""How phases over all records are divided into batches, these among the workers of a group, and epochs into steps."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dsinga.cutting.partitioning import partition
from dsinga.data.stores.chunk_files import RegionReader
from dsinga.job import ClusterConf, Job, NetConf, Phase, loads, to_text, training_phases
from dsinga.job.epochs import Epochs, offset_of
from dsinga.layers import RecordInfo, Rows
from dsinga.net import create_net
from dsinga.reading.batch_reader import BatchReader, WorkerBatches, count_batches, readers_of_all_records
from dsinga.reading.checked_job import CheckedJob, check_job, resolve_epochs
from dsinga.reading.sampler import Sampler
from tests.support.refusals import refused


def reader(records: int, sizes: list[int]) -> BatchReader:
    """A reader of so many records, whose batches are cut into ``sizes`` rows."""
    store: Any = type("Store", (), {"location": "test.zarr", "__len__": lambda self: records})()
    total, bounds = sum(sizes), np.cumsum([0, *sizes]).tolist()
    parts = tuple(Rows(start, stop, total) for start, stop in zip(bounds, bounds[1:], strict=False))
    sampler = Sampler(records, total, seed=1, chunk=4, shuffle=False, skip=3)
    return BatchReader({"data": store}, {"data": RecordInfo((2,), total)}, sampler, parts)


@given(st.integers(1, 200), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_every_record_is_read_once_and_every_worker_has_rows(records: int, sizes: list[int]):
    if records < len(sizes):
        return
    readers = readers_of_all_records(reader(records, sizes))
    counts = count_batches(readers)
    batches = [each.sampler.rows(step) for each, count in zip(readers, counts, strict=True) for step in range(count)]
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(records))
    for each in readers:
        assert each.batchsize == each.infos["data"].batchsize == each.sampler.batchsize
        assert [part.start for part in each.parts] == [0, *(part.stop for part in each.parts[:-1])]
        assert min(part.stop - part.start for part in each.parts) >= 1
    expected = [len(part) for part in np.array_split(np.arange(records), len(batches))]
    assert [len(batch) for batch in batches] == expected
    if max(expected) > sum(sizes):  # only where smaller batches would leave a worker without rows
        assert -(-records // (len(batches) + 1)) <= max(len(sizes), sum(sizes))
        assert records // -(-records // sum(sizes)) < len(sizes)
    else:
        assert len(batches) == -(-records // sum(sizes))


def test_batches_of_the_same_size_are_cut_as_the_job_says():
    (each,) = readers_of_all_records(reader(300, [50, 30, 20]))
    assert [part.stop - part.start for part in each.parts] == [50, 30, 20]
    larger, smaller = readers_of_all_records(reader(301, [50, 30, 20]))
    assert (larger.batchsize, smaller.batchsize, count_batches([larger, smaller])) == (76, 75, [1, 3])
    assert [part.stop - part.start for part in smaller.parts] == [37, 22, 16]


def test_fewer_records_than_workers_are_read_equally_often():
    (each,) = readers_of_all_records(reader(2, [1, 1, 1]))
    assert each.sampler.rows(0).tolist() == [0, 1, 0, 1]
    assert count_batches([each]) == [1]
    assert len(each.parts) == 3


@pytest.mark.parametrize(("epochs", "groups", "steps"), [(1, 1, 10), (3, 1, 30), (1, 3, 4), (2, 3, 7)])
def test_steps_of_epochs(job: Job, stores: Path, epochs: int, groups: int, steps: int):
    counted = job.replace(train_steps=0, epochs=epochs, cluster=ClusterConf(nworker_groups=groups))  # 1000 records
    resolved = resolve_epochs(check_job(counted, [str(stores)])).job
    assert resolved.train_steps == steps
    assert resolve_epochs(check_job(resolved, [str(stores)])).job.train_steps == steps, "both given, but they agree"


def test_mistakes_are_named_with_their_remedies(job: Job, stores: Path) -> None:
    rate = job.updater.learning_rate.replace(warmup_steps=11)
    counted = job.replace(train_steps=0, epochs=1, updater=job.updater.replace(learning_rate=rate))
    refused(lambda: resolve_epochs(check_job(counted, [str(stores)])), "warmup_steps", "of the run")
    refused(lambda: resolve_epochs(check_job(job.replace(epochs=3), [str(stores)])), "train_steps", "of these records")


def test_steps_of_uneven_batches(job: Job, stores: Path):
    net = loads(to_text(job).replace("batchsize: 100", "batchsize: [50, 30, 17]")).neuralnet
    counted = job.replace(train_steps=0, epochs=1, neuralnet=net)
    assert resolve_epochs(check_job(counted, [str(stores)])).job.train_steps == 11


def test_a_job_without_epochs_is_left_alone(job: Job):
    assert resolve_epochs(check_job(job)).job is job


@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 300), st.integers(1, 60))
def test_epoch_at_a_step(records: int, batchsize: int, step: int, earlier_size: int):
    epochs = Epochs(records, batchsize, offset_of(10, earlier_size, 0, batchsize))
    step += 10
    value, read = epochs.at(step), 10 * earlier_size + (step - 10) * batchsize
    assert abs(value - read / records) <= max(0.006, batchsize / records)
    ends = [number for number in range(read // records + 1) if math.ceil((number * records - read) / batchsize) == 0]
    if ends:
        assert value == int(value) == max(ends)
    assert all(epochs.end(number) == step for number in ends)


LAYER = 'layer {{ name: "data" type: kRecordInput {} store_conf {{ path: "x" batchsize: 1 }} }}'


@pytest.mark.parametrize(
    ("layers", "phases"),
    [
        (["include: kTrain", "include: kTest"], [Phase.kTest]),
        (["include: kTrain", "include: kVal", "include: kTest"], [Phase.kVal, Phase.kTest]),
        (["include: kTrain", "include: [kVal, kTest]"], [Phase.kTest]),  # the same records twice
        (["exclude: kTest", "exclude: kTrain"], [Phase.kTest]),  # SINGA's way: kVal has both
        (["include: kTrain"], []),
        ([""], []),
    ],
)
def test_phases_of_a_job_with_epochs(layers: list[str], phases: list[Phase]):
    job = loads("epochs: 2 neuralnet {" + " ".join(LAYER.format(where) for where in layers) + "}")
    assert training_phases(job) == [Phase.kTrain, *phases]
    assert training_phases(job.replace(epochs=0, train_steps=9)) == [Phase.kTrain]


@pytest.mark.parametrize("channels_last", [False, True])
def test_workers_of_a_cut_by_space_read_their_points_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels_last: bool
):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(6, channels, 9, 8)).astype(np.float32) for channels in (2, 1))
    stored = np.moveaxis(x, 1, -1) if channels_last else x
    group = zarr.open_group(tmp_path / "fields.zarr", mode="w")
    for name, array in (("data", stored), ("label", y)):
        group.create_array(name, data=array, chunks=(1, *array.shape[1:3], 4))
    store = {"path": str(tmp_path / "fields.zarr"), "batchsize": [3], "channels_last": channels_last}
    layers = [
        {"name": "data", "type": "kRecordInput", "store_conf": store},
        {"name": "conv", "type": "kConvolution", "srclayers": ["data"], "convolution_conf": {"num_filters": 1}},
        {"name": "label", "type": "kLabel", "srclayers": ["data"]},
        {"name": "loss", "type": "kEuclideanLoss", "srclayers": ["conv", "label"]},
    ]
    layers[1]["convolution_conf"] |= {"kernel": 3, "pad": 1}
    job = Job(neuralnet=NetConf(layer=layers, partition_dim=2, partition_grid=[2, 2]), train_steps=1)
    reader = CheckedJob(job).reader(Phase.kTrain, 4)
    nets = partition(create_net(job.neuralnet, Phase.kTrain, reader.infos), 4).locals
    read: list[tuple[str, tuple[slice, ...]]] = []
    get = RegionReader.read
    monkeypatch.setattr(RegionReader, "read", lambda self, key: read.append((self._array.path, key)) or get(self, key))
    numbers = reader.sampler.rows(0, 0, 3)
    for net, index in zip(nets, itertools.product([(0, 5), (5, 9)], [(0, 4), (4, 8)]), strict=True):
        layer, points = net.layer("data"), tuple(slice(*ends) for ends in index)
        read.clear()
        (records,) = WorkerBatches(reader.in_regions([layer]), {"data": reader.rows(0)._replace(stop=3)})(0).values()
        kept = layer.take_region(records)
        for found, whole in ((kept.data, x), (kept.labels, y)):
            np.testing.assert_array_equal(found, whole[numbers][(..., *points)])
        of_channels = slice(0, 2)
        of_data = (*points, of_channels) if channels_last else (of_channels, *points)
        assert [(name, key[1:]) for name, key in read] == [("data", of_data), ("label", (slice(0, 1), *points))]
