"""Binding sources of records to a job: its input layers read them in place of stores."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.base.errors import UserError
from dsinga.data import open_records, open_store
from dsinga.job import Job, Phase, StoreConf, check, loads
from dsinga.job.writer import to_text
from dsinga.reading.bind_records import bind_records
from dsinga.reading.checked_job import CheckedJob
from tests.support.refusals import refused
from tests.support.small_job import JOB


@pytest.fixture
def pathless(job: Job) -> Job:
    """The small job with input layers that name no store."""
    layers = [
        layer.replace(store_conf=layer.store_conf.replace(path=None)) if layer.store_conf else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(train_steps=3, neuralnet=job.neuralnet.replace(layer=layers))


def inputs(job: Job) -> list[tuple[list[Phase], list[Phase], object]]:
    return [(each.include, each.exclude, each.store_conf.records) for each in job.neuralnet.layer if each.store_conf]


def test_each_phase_reads_its_own_data(pathless: Job, stores: Path) -> None:
    train, test = (open_store(stores / f"{name}.zarr") for name in ("train", "test"))
    bound = bind_records(pathless, {"train": train, "test": {"data": str(stores / "test.zarr")}})
    assert CheckedJob(bound).reader(Phase.kTrain).stores == {"data": train}
    assert CheckedJob(bound).reader(Phase.kTest).stores["data"].location == test.location
    assert inputs(pathless) == [([Phase.kTrain], [], None), ([Phase.kTest], [], None)]  # the given job is unchanged


def test_a_layer_of_several_phases_reads_data_in_one_of_them_only(stores: Path) -> None:
    source = open_store(stores / "train.zarr")
    layer = 'layer { name: "data" type: kRecordInput %s store_conf { path: "a" batchsize: 4 } }'
    every = bind_records(loads("neuralnet {" + layer % "" + "}"), source)
    assert inputs(every) == [([Phase.kTrain], [], source), ([], [Phase.kTrain], None)]
    two = bind_records(loads("neuralnet {" + layer % "include: [kTrain, kTest]" + "}"), source, Phase.kTest)
    assert inputs(two) == [([Phase.kTest], [], source), ([Phase.kTrain], [], None)]
    both = bind_records(every, {"test": source})
    assert [records for *_, records in inputs(both)] == [source, source, None]
    assert inputs(both)[2][1] == [Phase.kTrain, Phase.kTest]


def test_an_older_input_layer_keeps_its_batch_size(stores: Path) -> None:
    job = loads('neuralnet { layer { name: "data" type: kShardData sharddata_conf { path: "a" batchsize: 7 } } }')
    bound = bind_records(job, open_store(stores / "test.zarr"))
    assert CheckedJob(bound).reader(Phase.kTrain).batchsize == 7


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"tets": 1}, "data are given for 'tets', which is no phase and no input layer in phase kTrain; did you mean"),
        ({"val": 1}, "there are data for phase kVal, but the net has no input layer in it; add kVal to the include"),
        ({"train": {"dta": 1}}, "there are data for 'dta', which is no input layer in phase kTrain; did you mean 'dat"),
        ({"train": 3}, "records cannot be read from a int; give an array"),
    ],
)
def test_data_that_no_layer_reads_are_refused(job: Job, data: object, expected: str) -> None:
    refused(lambda: bind_records(job, data), expected)


def test_several_input_layers_need_a_source_each(stores: Path) -> None:
    conf = 'type: kRecordInput store_conf { path: "a" batchsize: 4 }'
    job = loads(f'neuralnet {{ layer {{ name: "a" {conf} }} layer {{ name: "b" {conf} }} }}')
    source = open_store(stores / "train.zarr")
    refused(lambda: bind_records(job, source), r"'a': ..., 'b': ...}")
    assert [records for *_, records in inputs(bind_records(job, {"a": source}))] == [source, None, None]


def test_mistakes_are_named_with_their_remedies(pathless: Job, stores: Path, tmp_path: Path) -> None:
    bound = bind_records(pathless, open_store(stores / "train.zarr"))
    check(bound, [Phase.kTrain])
    refused(lambda: check(bound, [Phase.kTest]), r"'data': store_conf needs a path: \"...\", or in Python data=")
    x, y = np.zeros((100, 64), np.float32), np.zeros(100, np.int64)
    expected = r'phase kTest .* give arrays for it, too: data={"train": ..., "test": ...}(.|\n)*test.zarr was not found'
    with pytest.raises(UserError, match=expected):
        dsinga.train(loads(JOB).replace(test_freq=10), data=(x, y), data_root=str(tmp_path), progress=False)
    job = pathless.replace(test_freq=1, test_steps=1)
    (x, y), names = open_store(stores / "test.zarr").read(range(150)), [f"class {number}" for number in range(10)]
    same = open_records((x, y), classes=names)
    dsinga.train(job, data={"train": same, "test": open_records((x, y), classes=names)}, progress=False)
    with pytest.raises(UserError, match="of phase kTest stand for the classes class 9, class 8, .*give the same"):
        bind_records(job, {"train": same, "test": open_records((x, y), classes=names[::-1])})


def test_records_are_kept_by_copies_and_left_out_of_files_and_pickles(pathless: Job, stores: Path) -> None:
    conf = StoreConf(batchsize=3)
    conf.records = source = open_store(stores / "train.zarr")
    assert conf.replace(batchsize=4).records is copy.copy(conf).records is source
    assert pickle.loads(pickle.dumps(conf)).records is None
    assert pickle.loads(pickle.dumps(conf)) == conf == StoreConf(batchsize=3)
    assert to_text(bind_records(pathless, source)) == to_text(pathless)


def test_columns_of_all_phases_must_agree(pathless: Job, stores: Path) -> None:
    pd = pytest.importorskip("pandas")
    job = pathless.replace(test_freq=1, test_steps=1)
    x, y = open_store(stores / "test.zarr").read(range(150))
    frame = pd.DataFrame(x.reshape(150, -1)).add_prefix("c")
    for test in (frame, frame.to_numpy()):  # an array has no names
        dsinga.train(job, data={"train": (frame, y), "test": (test, y)}, progress=False)
    reversed_frame = frame[frame.columns[::-1]]  # whose columns are taken by name
    dsinga.train(job, data={"test": (reversed_frame, y), "train": (frame, y)}, progress=False)
    opened = open_records((reversed_frame, y))
    refused(
        lambda: bind_records(job, {"train": (frame, y), "test": opened}), "of phase kTest have along", "0 is another"
    )
