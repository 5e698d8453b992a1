"""Files in SINGA's formats that a job or a path names: they are imported once, into a store beside them."""

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from dsinga.addons.importers.kvfile import RecordProto
from dsinga.base.errors import UserError
from dsinga.data import open_store, read_mean
from dsinga.reading.sampler import Sampler
from tests.support.data_sources import SOURCES, pair, pixels
from tests.support.refusals import refused

MEAN = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(("kvfile", "kvfile"), ("kvfile", None), ("csv", "textfile"), ("csv", "")),
        *(("lmdb_record", "lmdb"), ("lmdb_record", None), ("imagefolder", "imagefolder")),
    ],
)
def test_they_are_imported_once_into_a_store_beside_them(name: str, backend: str | None, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    source = SOURCES[name](tmp_path / name)
    store = open_store(source.path, backend)
    data, labels = source.expected[""]
    records, labels_read = store.read(range(len(data)))
    np.testing.assert_array_equal(records, data)
    np.testing.assert_array_equal(labels_read, labels)
    assert store.location == str(source.path.with_suffix(".zarr"))
    written = os.stat(Path(store.location) / "zarr.json").st_mtime_ns
    assert open_store(source.path, backend).digest == store.digest
    assert os.stat(Path(store.location) / "zarr.json").st_mtime_ns == written
    if source.path.is_file():
        source.path.unlink()
        assert open_store(source.path, backend).location == store.location


def test_a_newer_source_is_imported_again(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    for value in (1, 2):
        path.write_bytes(pair(b"", pixels(np.full((2, 2), value, np.uint8), 0)))
        metadata = (tmp_path / "x.zarr" / "zarr.json") if value == 2 else None
        if metadata:  # newer by a nanosecond, whatever the resolution of the clock
            os.utime(path, ns=(metadata.stat().st_mtime_ns + 1,) * 2)
        assert (open_store(path).read([0])[0] == value).all()


def test_an_interrupted_store_beside_it_is_replaced(tmp_path: Path) -> None:
    source = SOURCES["kvfile"](tmp_path)
    store = Path(open_store(source.path).location)
    metadata = (store / "zarr.json").read_text()
    (store / "zarr.json").write_text(metadata.replace('"complete": true', '"complete": false'))
    assert len(open_store(source.path)) == 900


def test_a_folder_beside_it_that_is_not_a_store_is_kept(tmp_path: Path) -> None:
    source = SOURCES["kvfile"](tmp_path)
    (tmp_path / "train_data.zarr").mkdir()
    (tmp_path / "train_data.zarr" / "precious").write_text("x")
    refused(lambda: open_store(source.path), "train_data.zarr exists and is not a record store")
    assert (tmp_path / "train_data.zarr" / "precious").exists()


def test_lines_without_labels_are_another_store(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1;2;3\n4;5;6\n")
    labelled = open_store(tmp_path / "x.csv", "textfile", separator=";")
    plain = open_store(tmp_path / "x.csv", "textfile", separator=";", has_label=False)
    assert (labelled.shape, plain.shape) == ((2,), (3,))
    assert (labelled.has_labels, plain.has_labels) == (True, False)
    assert plain.read([1])[0].tolist() == [[4, 5, 6]]


def test_images_are_resized_to_the_shape_of_the_job(tmp_path: Path) -> None:
    source = SOURCES["imagefolder"](tmp_path)
    assert open_store(source.path, "imagefolder", shape=(3, 10, 12)).shape == (3, 10, 12)


def test_encoded_pixels_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    images = SOURCES["imagefolder"](tmp_path / "images")
    encoded = (tmp_path / "images" / "image 3.png").read_bytes()
    (tmp_path / "x.bin").write_bytes(pair(b"", RecordProto(label=4, pixel=encoded).SerializeToString()))
    data, labels = open_store(tmp_path / "x.bin", encoded=True).read([0])
    np.testing.assert_array_equal(data, images.expected[""][0][[3]])
    assert labels.tolist() == [4]


@pytest.mark.ci
def test_processes_that_import_concurrently_use_one_store(tmp_path: Path) -> None:
    source = SOURCES["kvfile"](tmp_path)
    script = (
        "import sys; from dsinga.data import open_store; print('ready', flush=True); sys.stdin.readline(); "
        "store = open_store(sys.argv[1]); print(store.digest, int(store.read(range(len(store)))[0].sum()))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(source.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert len(outputs) == 1
    assert outputs.pop().split()[1] == str(source.expected[""][0].sum(dtype=np.int64))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train_data.bin", "train_data.zarr"]


def test_rows_wrap_as_in_singa(tmp_path: Path) -> None:
    # The example of SINGA's own test of its CSV layer: labels 12, 2 in the first batch of two, then 1 and again 12.
    (tmp_path / "x.csv").write_text("12,3.2,1,14.1\n2,0.2,0,1.1\n1,2.2,1,4.1\n")
    store = open_store(tmp_path / "x.csv")
    sampler = Sampler(len(store), 2, 0, store.chunk, shuffle=False)
    data, labels = store.read(sampler.rows(0))
    np.testing.assert_array_equal(data, np.array([[3.2, 1, 14.1], [0.2, 0, 1.1]], np.float32))
    assert labels.tolist() == [12, 2]
    assert store.read(sampler.rows(1))[1].tolist() == [1, 12]


def test_mistakes_are_named_with_their_remedies(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20):
        pass
    refused(lambda: open_store(tmp_path / "db", "lmdb"), "there are no records to write")
    value = RecordProto(data=[1.0]).SerializeToString()
    (tmp_path / "m2.bin").write_bytes(pair(b"", value) * 3)
    (tmp_path / "m5.bin").write_bytes(b"")
    for name, message in {"m2.bin": "has more than one record", "m5.bin": "has no record"}.items():
        with pytest.raises(UserError, match=f"{name}.* {message}"):
            read_mean(tmp_path / name)


def test_singas_kvfile(tmp_path: Path) -> None:
    record = RecordProto(shape=[3, 4, 5], data=MEAN.ravel()).SerializeToString()
    (tmp_path / "image_mean.bin").write_bytes(pair(b"mean", record))
    np.testing.assert_array_equal(read_mean("image_mean.bin", [str(tmp_path)]), MEAN)
    assert not (tmp_path / "image_mean.zarr").exists()
