"""Faulty sources: one error that names the file and the place in it, and no store."""

import gzip
import io
import logging
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from numpy.lib import format as npy
from PIL import Image
from scipy.io import savemat
from scipy.sparse import csc_array

from dsinga.addons.importers.kvfile import RecordProto
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, import_records, write_store
from dsinga.data.stores.staged_stores import DestinationExists, StagedStores
from dsinga.data.stores.writer import stage_store
from tests.support.data_sources import cifar_rows, idx, pair, pixels, records
from tests.support.refusals import refused

Fault = Callable[[Path], Path]


def _later(write: Callable[..., Path]) -> Callable[..., Fault]:
    """Return a function that takes the arguments of ``write`` without the folder, and calls it with that later."""
    return lambda *arguments, **options: lambda folder: write(folder, *arguments, **options)


def _mnist(folder: Path, images: bytes, labels: bytes | None = None, suffix: str = "") -> Path:
    data, good_labels = records(10, (28, 28))
    for prefix in ("train", "t10k"):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(data))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(good_labels))
    (folder / "train-images-idx3-ubyte").unlink()
    (folder / f"train-images-idx3-ubyte{suffix}").write_bytes(images)
    if labels is not None:
        (folder / "train-labels-idx1-ubyte").write_bytes(labels)
    return folder


def _file(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def _cifar(folder: Path, train: bytes) -> Path:
    (folder / "data_batch_1.bin").write_bytes(train)
    (folder / "test_batch.bin").write_bytes(cifar_rows(*records(3, (3, 32, 32))))
    return folder


def _npz(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def _zip(folder: Path, place: int, byte: int) -> Path:
    """An npz file with another byte at a place in its directory, as a bit that has flipped leaves it."""
    path = _npz(folder, x=np.ones((3, 2)))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + 2 + place] = byte
    path.write_bytes(content)
    return path


def _npz_with_another_number(folder: Path) -> Path:
    path = _npz(folder, x=np.ones((3, 2)))
    path.write_bytes(path.read_bytes().replace(np.ones(1).tobytes(), np.zeros(1).tobytes()))
    return path


def _npz_with_header(folder: Path, **header: Any) -> Path:
    """An npz file with an array of six numbers and another header."""
    content = io.BytesIO()
    npy.write_array_header_1_0(content, {"descr": "<f4", **header})
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("x.npy", content.getvalue() + bytes(24))
    return folder / "a.npz"


def _png(folder: Path) -> Path:
    """A list of a PNG image of which the length of the pixels is damaged: Pillow raises a SyntaxError."""
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    content = bytearray((folder / "a.png").read_bytes())
    content[content.index(b"IDAT") - 1] = 0
    (folder / "a.png").write_bytes(content)
    return _file(folder, "list", b"a.png 3")


def _mat(folder: Path, lists: str = "", **arrays: np.ndarray) -> Path:
    savemat(folder / "a.mat", arrays)
    if lists:
        (folder / "trainset.list").write_text(lists)
    return folder


def _damaged_lmdb(folder: Path) -> Path:
    """A database of several pages, of which the second half is zeros."""
    with lmdb.open(str(folder / "db"), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        for number in range(300):
            transaction.put(b"k%04d" % number, pixels(np.zeros((4, 4), np.uint8), 1))
    path = folder / "db" / "data.mdb"
    content = path.read_bytes()
    path.write_bytes(content[: 2 << 12] + bytes(4 << 12) + content[6 << 12 :])
    return folder / "db"


def _lmdb(folder: Path, value: bytes) -> Path:
    with lmdb.open(str(folder / "db"), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"k7", value)
    return folder / "db"


def _looped_cifar(folder: Path) -> Path:
    (folder / "data_batch_2.bin").symlink_to("data_batch_2.bin")
    return _cifar(folder, ROWS)


IMAGES = idx(records(10, (28, 28))[0])
ROWS = cifar_rows(*records(5, (3, 32, 32)))
PAIRS = [pair(b"%d" % row, pixels(np.full((4, 4), row, np.uint8), row)) for row in range(3)]

cifar_of = _later(_cifar)
file_of = _later(_file)
lmdb_of = _later(_lmdb)
mat_of = _later(_mat)
mnist_of = _later(_mnist)
npz_of = _later(_npz)
npz_with_header = _later(_npz_with_header)
zip_of = _later(_zip)

FAULTS: list[tuple[str, Fault, str] | tuple[str, Fault, str, dict[str, Any]]] = [  # kind, source, message, options
    ("mnist", lambda folder: folder, "has no file train-images-idx3-ubyte"),
    ("mnist", lambda folder: folder / "nowhere", "nowhere does not exist; give a file or folder on this machine"),
    ("mnist", mnist_of(IMAGES[:-800]), "train-images.* is truncated: it ends in row 8 of 10"),
    ("mnist", mnist_of(IMAGES + b"x"), "has more bytes than the 10 rows"),
    ("mnist", mnist_of(IMAGES[:9]), "is truncated: it ends in its header"),
    ("mnist", mnist_of(b"\x7fELF" + IMAGES), "starts with 2051, this one with b'.x7fELF'"),
    (
        "mnist",
        mnist_of(struct.pack(">4I", 2051, 10, 1 << 31, 1 << 31)),
        "images have 2147483648 x 2147483648 pixels; sides have 1 to 16384, so the header is damaged",
    ),
    ("mnist", mnist_of(IMAGES, idx(np.arange(9))), "10 images but .* has 9 labels"),
    ("mnist", mnist_of(gzip.compress(IMAGES)[:-30], suffix=".gz"), "gz is truncated: its comp"),
    ("mnist", mnist_of(IMAGES, suffix=".gz"), "gz cannot be decompressed: Not a gzipped file"),
    ("mnist", mnist_of(IMAGES, suffix=".xz"), "xz cannot be decompressed"),
    ("cifar10", cifar_of(ROWS[:-1]), "data_batch_1.bin is truncated: it ends within row 4"),
    ("cifar10", cifar_of(ROWS + b"M" + ROWS[1:]), "is not CIFAR-10: row 5 has label 77, not 0 to 9"),
    (
        "cifar10",
        lambda folder: _file(_cifar(folder, ROWS), "batches.meta.txt", b"caf\xe9\n").parent,
        "batches.meta.txt: not UTF-8 text .*; save the names of the classes so, or remove it",
    ),
    ("cifar10", lambda folder: folder, "has no data_batch_1.bin"),
    ("cifar10", file_of("x.tar.gz", b"nonsense"), "cannot be read as a tar archive"),
    ("csv", file_of("x.csv", b"1,2,3\n\n4,5,six\n"), "x.csv:3: value 3, 'six', is not a number"),
    (
        "csv",
        file_of("x.csv", b"1,2,x\n"),
        r"'x', is not .*dsinga.table\(pandas.read_csv\('x.csv', header=None\), label=2",
    ),
    ("csv", file_of("x.csv", b"label,a\n1,2\n"), "x.csv:1: value 1, 'label', is not a number.*a header"),
    ("csv", file_of("x.csv", b"1,2,3\n4,5\n"), "x.csv:2: 2 values, but the lines before have 3"),
    ("csv", file_of("x.csv", b"1,2,3\n" * 300_000 + b"4,5\n"), "x.csv:300001: 2 values, but"),
    ("csv", file_of("x.csv", b"1,2\n\n1.5,2\n"), "x.csv:3: label 1.5 is not .*first column: .*move it to the front"),
    ("csv", file_of("x.csv", b"1,2\n"), "x.csv:1: 2 values, but 2 columns of labels and data", {"label_columns": 2}),
    ("csv", file_of("x.csv", b"1,2\n"), "label_columns is 0; give at least 1 column, or leave", {"label_columns": 0}),
    ("csv", file_of("x.csv", b"1\n2\n"), "x.csv:1: only one value; a line needs a label and data"),
    ("csv", file_of("x.csv", b"\n"), "there are no records to write"),
    ("kvfile", file_of("x.bin", b"".join(PAIRS)[:-5]), "record 2 at byte 82: its value would end after"),
    ("kvfile", file_of("x.bin", struct.pack("=Q", 1 << 62)), r"key would end after the end of the file \(8 bytes\)"),
    ("kvfile", file_of("x.bin", b"some text, not pairs"), "is not a kvfile, or truncated"),
    ("kvfile", file_of("x.bin", pair(b"", b"\xff\xff")), "is not a RecordProto message"),
    ("kvfile", file_of("x.bin", pair(b"", b"")), "record 0 at byte 0 has 0 values, but"),
    (
        "kvfile",
        file_of("x.bin", PAIRS[0] + pair(b"", pixels(np.zeros((2, 4), np.uint8), 1))),
        r"record 1 at byte 41 is uint8 of shape \(2, 4\), but the first record \(.*\) is uint8 of shape \(4, 4\)",
    ),
    (
        "kvfile",
        file_of("x.bin", PAIRS[0] + pair(b"", RecordProto(shape=[4, 4], pixel=bytes(16)).SerializeToString())),
        "record 1 at byte 41 has no label, but the first record .* has one",
    ),
    (
        "kvfile",
        file_of("x.bin", pair(b"", RecordProto(shape=[4, 5], pixel=bytes(16)).SerializeToString())),
        r"record 0 at byte 0 has 16 values, but its shape \(4, 5\) has 20",
    ),
    ("cifar10", _looped_cifar, "cannot be read: Too many levels of symbolic links"),
    ("lmdb", _damaged_lmdb, "db is damaged: page 4 is not the branch page of a tree; copy the database again"),
    ("lmdb", lmdb_of(b"\xff\xff"), "record 'k7' is not a CaffeDatum message"),
    ("lmdb", file_of("x.mdb", b"x"), "cannot be opened as an LMDB database"),
    ("npz", file_of("x.npz", b"x"), "cannot be read as an npz file"),
    ("npz", zip_of(8, 77), "npz file .That compression method is not suppo"),
    ("npz", zip_of(6, 1), "npz file .File 'x.npy' is encrypted, .*write it again"),
    ("npz", zip_of(45, ord("y")), "no array named data .*; it has none"),
    ("npz", _npz_with_another_number, "npz file .Bad CRC-32 for file 'x.npy'.; write it again"),
    ("npz", npz_with_header(fortran_order=False, shape=(99, 3)), "array 'x' is truncated in row 2; write it again"),
    ("npz", npz_with_header(fortran_order=True, shape=(99, 3)), "array 'x' has 24 of 1188 bytes; write it again"),
    ("npz", npz_with_header(fortran_order=False, shape=(2, -3)), r"array 'x' is float32 \(2, -3\); it must have rows"),
    ("npz", npz_of(x=np.array(["a"])), "'x': records must be numbers, not strings"),
    ("npz", npz_of(train=np.zeros(3)), r"named data or x or images; it has train; .*numpy.savez\(path, x=\.\.\.\)"),
    ("npz", npz_of(X_a=np.ones(3), Y_a=np.ones(3)), r"it has X_a, Y_a; .*numpy.savez\(path, x=X_a, y=Y_a\)"),
    ("npz", npz_of(x=np.zeros((3, 2)), y=np.zeros(2)), r"'y' has shape \(2,\), but 'x' has"),
    ("npz", npz_of(x=np.array([None])), "array 'x' is object"),
    ("mat", file_of("x.mat", b"x" * 300), "x.mat cannot be read as a MATLAB file"),
    ("mat", file_of("x.mat", b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + b"x" * 400), "7.3 .HDF5.; save it with"),
    ("mat", lambda folder: folder, r"must have one .mat file, but has none; give the path of the file itself"),
    ("mat", lambda folder: _file(_mat(folder, a=np.ones((3, 2))), "b.mat", b"").parent, "but has 2: a.mat, b.mat"),
    ("mat", mat_of(a=np.ones(3)), r"no dense matrix of numbers.*; it has a \(1, 3\)"),
    ("mat", mat_of(a=csc_array(np.eye(3))), r"no dense matrix .*; it has a \(3, 3\) sparse"),
    (
        "mat",
        lambda folder: _file(folder, "x.mat", (_mat(folder, a=np.ones((9, 9))) / "a.mat").read_bytes()[:400]),
        r"^[^ ]*x.mat cannot be read: could not read bytes$",
    ),
    ("mat", mat_of(a=np.full((3, 2), 1e300)), "values beyond the range of float32; scale them"),
    ("mat", mat_of(a_tr=np.ones((3, 2)), y_tr=np.ones(4)), "'a_tr' has 3 rows, but there are 4"),
    ("mat", mat_of(a=np.ones((3, 2)), y=np.ones(3), z=np.ones(3)), "'y' and 'z' could both be labels"),
    ("mat", mat_of("a 1\nb\n", a_tr=np.ones((3, 2))), "trainset.list:2: a line must end in an integer label, not 'b'"),
    ("imagefolder", file_of("list", b"list 3"), "list .* image: Pillow knows no format"),
    ("imagefolder", _png, "a.png cannot be read as an image: broken PNG file .*; remove it, or"),
    ("imagefolder", file_of("list", b"a.png 3"), "a.png cannot be read: No such file"),
    ("imagefolder", file_of("list", b"a.png 3\nb.png"), "list:2: a line must be 'path label'"),
    ("imagefolder", lambda folder: folder, "has no images"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}: {fault[2]}")
def test_a_faulty_source_is_named_and_leaves_no_store(fault: tuple[Any, ...], tmp_path: Path) -> None:
    kind, make, message, *options = fault
    (tmp_path / "source").mkdir()
    source = make(tmp_path / "source")
    with pytest.raises(UserError, match=message):
        import_records(kind, source, tmp_path / "out" / "x.zarr", **(options[0] if options else {}))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_unknown_kind_is_refused_with_the_nearest(tmp_path: Path) -> None:
    refused(lambda: import_records("minst", tmp_path, tmp_path / "x"), "'minst'; did you mean 'mnist'")


def test_a_second_store_that_fails_leaves_no_first_and_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    source = _cifar(tmp_path / "source", ROWS)
    import_records("cifar10", source, tmp_path / "out")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    digest = RecordStore(tmp_path / "out" / "train_data.zarr").digest
    (source / "data_batch_1.bin").write_bytes(ROWS + ROWS)
    (source / "test_batch.bin").write_bytes(ROWS[:-1])
    for destination in (tmp_path / "out", tmp_path / "new" / "folder"):
        with pytest.raises(UserError, match="test_batch.bin is truncated"):
            import_records("cifar10", source, destination, overwrite=True)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert RecordStore(tmp_path / "out" / "train_data.zarr").digest == digest


def test_a_second_destination_that_is_taken_meanwhile_leaves_no_first_store(tmp_path: Path) -> None:
    rows = [(np.zeros((5, 3), np.float32), np.zeros(5, np.int32))]
    write_store(tmp_path / "train.zarr", rows)
    digest = RecordStore(tmp_path / "train.zarr").digest

    def write_both() -> None:
        with StagedStores(overwrite=True) as stores:
            stage_store(stores, tmp_path / "train.zarr", rows + rows)
            stage_store(stores, tmp_path / "test.zarr", rows)
            (tmp_path / "test.zarr" / "other").mkdir(parents=True)

    refused(write_both, "test.zarr exists and is not a record store", error=DestinationExists)
    assert RecordStore(tmp_path / "train.zarr").digest == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.zarr", "train.zarr"]


def test_a_failed_import_leaves_the_folders_that_have_other_files(tmp_path: Path) -> None:
    source = _file(tmp_path, "x.csv", b"1,2,3\n4,5,six\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    refused(lambda: import_records("csv", source, tmp_path / "out" / "in" / "x.zarr"), "is not a number")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes"]


def test_a_csv_file_says_which_column_was_read_as_the_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dsinga")
    import_records("csv", _file(tmp_path, "x.csv", b"7,2,0\n3,5,1\n7,5,1\n"), tmp_path / "x.zarr")
    assert "first column was read as the label: 2 classes from 3 to 7; if another column is the label" in caplog.text
