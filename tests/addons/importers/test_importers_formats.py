"""Files in SINGA's formats that a job or a path names: they are imported once, into a store beside them."""

import os
import random
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from dsinga.addons.importers.kvfile import RecordProto
from dsinga.addons.importers.lmdb import LmdbError, LmdbPages
from dsinga.base.errors import UserError
from dsinga.data import import_records, open_store, read_mean
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


# LMDB databases are read page by page: the same pairs as by LMDB itself, and one message where a page is damaged.
LENGTHS = (0, 1, 50, 800, 2030, 2040, 4080, 4096, 20_000)  # of values, some of which need pages of their own


def write(folder: Path, rng: random.Random, transactions: int, most: int) -> Path:
    """Write a database with random pairs, some of which are deleted again; return its file."""
    keys: list[bytes] = []
    with lmdb.open(str(folder / "db"), map_size=1 << 28) as environment:
        for _ in range(transactions):
            with environment.begin(write=True) as transaction:
                for _ in range(rng.randrange(1, most)):
                    if keys and rng.random() < 0.3:
                        transaction.delete(keys.pop(rng.randrange(len(keys))))
                    else:
                        keys.append(rng.randbytes(rng.choice((1, 8, 200, 511))))
                        transaction.put(keys[-1], rng.randbytes(rng.choice(LENGTHS)))
    return folder / "db" / "data.mdb"


def read(path: Path) -> list[tuple[bytes, bytes]]:
    with path.open("rb") as file:
        return list(LmdbPages(file).pairs())


@pytest.mark.parametrize(("transactions", "most"), [(0, 0), (1, 2), (1, 300), (3, 2000), (8, 300)])
def test_the_pairs_are_those_that_lmdb_reads(tmp_path: Path, transactions: int, most: int) -> None:
    path = write(tmp_path, random.Random(transactions), transactions, most)
    with lmdb.open(str(path.parent), readonly=True, lock=False) as environment, environment.begin() as transaction:
        assert read(path) == list(transaction.cursor())


def test_a_cut_database_is_refused_whatever_is_left(tmp_path: Path) -> None:
    """LMDB itself ends the process by SIGBUS where a page lies beyond the end of the file."""
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        for number in range(300):
            transaction.put(b"k%04d" % number, pixels(np.zeros((4, 4), np.uint8), 1))
    path = tmp_path / "db" / "data.mdb"
    content = path.read_bytes()
    for length in [*range(0, len(content), 4096), 100, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"db (cannot be opened as an LMDB database|is damaged): .* ends at byte"):
            import_records("lmdb", tmp_path / "db", tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_damaged_bytes_raise_one_kind_of_error(tmp_path: Path) -> None:
    rng = random.Random(5)
    path = write(tmp_path, rng, 2, 200)
    content = path.read_bytes()
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 5))):
            damaged[rng.randrange(min(len(damaged), rng.choice((200, 8192, 1 << 30))))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read(path)
        except LmdbError:
            refused += 1
    assert refused > 20


def test_a_branch_that_leads_back_to_itself_ends(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 28) as environment, environment.begin(write=True) as transaction:
        for number in range(5000):
            transaction.put(b"%08d" % number, bytes(1000))
    path = tmp_path / "db" / "data.mdb"
    content = bytearray(path.read_bytes())
    [root] = {int.from_bytes(content[start + 128 :][:8], "little") for start in (0, 4096)} - {(1 << 64) - 1}
    start = root * 4096
    for at in range(16, int.from_bytes(content[start + 12 :][:2], "little"), 2):  # each child becomes the root itself
        node = start + int.from_bytes(content[start + at :][:2], "little")
        content[node : node + 6] = root.to_bytes(6, "little")
    path.write_bytes(content)
    with pytest.raises(LmdbError, match=r"page \d+ is (not the leaf page of a tree|in the tree twice)"):
        read(path)


def test_a_database_within_the_database_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20, max_dbs=1) as environment:
        environment.open_db(b"inner")
    with pytest.raises(UserError, match="db is damaged: the key b'inner' has a database or several values, not one"):
        import_records("lmdb", tmp_path / "db", tmp_path / "out.zarr")


def test_images_are_resized_to_the_shape_of_the_job(tmp_path: Path) -> None:
    source = SOURCES["imagefolder"](tmp_path)
    assert open_store(source.path, "imagefolder", shape=(3, 10, 12)).shape == (3, 10, 12)
