"""Pipes in place of the files that dsinga reads: each is refused by its name, and none is waited for."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr

from dsinga.addons.planner.rate_store import RateStore
from dsinga.addons.search.result import read_outcome
from dsinga.addons.search.space import read_space
from dsinga.addons.text.vocabulary import read_vocabulary
from dsinga.api.trained import read_names
from dsinga.base.errors import UserError
from dsinga.base.registry import import_file
from dsinga.checkpoint import read_checkpoint, read_newest_checkpoint, read_params, write_checkpoint
from dsinga.cluster.connecting.credentials import read_credentials, tls_context
from dsinga.cluster.connecting.embedded import _read_address
from dsinga.convert.weights import read_weights
from dsinga.data import import_records, open_store, read_mean, write_store
from dsinga.loop.timings_file import read_timings
from dsinga.monitor import read_metrics
from dsinga.monitor.workspace_lock import locked_workspace, parse_holder
from tests.support.data_sources import cifar_rows, idx, records

WEIGHT = np.ones((2, 3), np.float32)
VALUES = itertools.count()  # of records that are in no cache yet


class Case(NamedTuple):
    """What makes the files in a folder, which of them becomes a pipe, and what reads it."""

    make: Callable[[Path], Any]
    file: str
    read: Callable[[Path], Any]


def a_store(folder: Path) -> None:
    write_store(folder / "s.zarr", [(np.full((20, 3), next(VALUES), np.float32), np.arange(20) % 2)])


def zarr_of(zarr_format: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        group = zarr.open_group(folder / "s.zarr", mode="w", zarr_format=zarr_format)
        group.create_array("x", data=WEIGHT, chunks=(1, 3))
        group.create_array("y", data=np.arange(2), chunks=(2,))

    return make


def a_checkpoint(folder: Path) -> None:
    write_checkpoint(folder, 5, {"w": WEIGHT}, {"w": {"momentum": WEIGHT}}, {}, {"extensions": {"a": WEIGHT}})


def nothing(folder: Path) -> None:
    pass


def images(folder: Path) -> None:
    (folder / "f/a").mkdir(parents=True)


def idx_files(folder: Path) -> None:
    data, labels = records(10, (28, 28))
    for prefix in ("train", "t10k"):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(data))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))


def mat_folder(folder: Path) -> None:
    from scipy.io import savemat

    (folder / "f").mkdir()
    savemat(folder / "f/x.mat", {"I_tr": WEIGHT})


def read_all(folder: Path) -> None:
    open_store(folder / "s.zarr").read(range(2))


def read_certificate(folder: Path) -> None:
    file = str(folder / "ca.pem")
    security = read_credentials(file, file, None)
    tls_context(security, "client", "a client")


def read_named(folder: Path) -> None:
    open_store(folder / "s.zarr", data="x", label="y").read(range(2))


def imported(kind: str, source: str) -> Callable[[Path], None]:
    return lambda folder: import_records(kind, folder / source, folder / "out.zarr") and None


CASES = {
    "store": Case(a_store, "s.zarr/zarr.json", read_all),
    "array of a store": Case(a_store, "s.zarr/data/zarr.json", read_all),
    "chunk of a store": Case(a_store, "s.zarr/data/c/0/0", read_all),
    "labels of a store": Case(a_store, "s.zarr/labels/c/0", read_all),
    "foreign zarr": Case(zarr_of(3), "s.zarr/zarr.json", read_all),
    "foreign array": Case(zarr_of(3), "s.zarr/x/zarr.json", read_named),
    "foreign chunk": Case(zarr_of(3), "s.zarr/x/c/1/0", read_all),
    "zarr 2": Case(zarr_of(2), "s.zarr/.zgroup", read_all),
    "array of zarr 2": Case(zarr_of(2), "s.zarr/x/.zarray", read_named),
    "chunk of zarr 2": Case(zarr_of(2), "s.zarr/x/1.0", read_all),
    "params": Case(a_checkpoint, "step5/params.safetensors", lambda folder: read_params(folder)),
    "state": Case(a_checkpoint, "step5/state.safetensors", lambda folder: read_checkpoint(folder / "step5")),
    "loop": Case(a_checkpoint, "step5/loop.safetensors", lambda folder: read_newest_checkpoint(folder)),
    "checkpoint.json": Case(a_checkpoint, "step5/checkpoint.json", lambda folder: read_checkpoint(folder / "step5")),
    "metrics": Case(nothing, "metrics.jsonl", lambda folder: read_metrics(folder / "metrics.jsonl")),
    "image": Case(images, "f/a/x.png", imported("imagefolder", "f")),
    "list of images": Case(nothing, "list", imported("imagefolder", "list")),
    "npz": Case(nothing, "x.npz", imported("npz", "x.npz")),
    "csv": Case(nothing, "x.csv", imported("csv", "x.csv")),
    "text": Case(nothing, "x.txt", imported("text", "x.txt")),
    "compressed text": Case(nothing, "x.txt.gz", imported("text", "x.txt.gz")),
    "kvfile": Case(nothing, "x.bin", imported("kvfile", "x.bin")),
    "lmdb": Case(lambda folder: (folder / "db").mkdir(), "db/data.mdb", imported("lmdb", "db")),
    "mat": Case(nothing, "x.mat", imported("mat", "x.mat")),
    "classes of mat": Case(mat_folder, "f/trainset.list", imported("mat", "f")),
    "tar": Case(nothing, "cifar.tar", imported("cifar10", "cifar.tar")),
    "conll": Case(nothing, "x.conll", imported("conll", "x.conll")),
    "mean image": Case(nothing, "mean.npy", lambda folder: read_mean(folder / "mean.npy")),
    "vocabulary": Case(nothing, "vocab.txt", lambda folder: read_vocabulary(folder / "vocab.txt")),
    "settings in YAML": Case(nothing, "space.yaml", lambda folder: read_space(folder / "space.yaml")),
    "settings in CSV": Case(nothing, "space.csv", lambda folder: read_space(folder / "space.csv")),
    "outcome of a setting": Case(nothing, "setting.json", lambda folder: read_outcome(folder, {}, "val/loss")),
    "file to import": Case(nothing, "mine.py", lambda folder: import_file(folder / "mine.py")),
    "certificate": Case(nothing, "ca.pem", read_certificate),
}


def put(path: Path, damage: str) -> None:
    """Put a pipe, a device or nonsense in place of a file."""
    path.unlink(missing_ok=True)
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"nonsense")


DEVICES = ("chunk of a store", "foreign zarr", "checkpoint.json", "csv", "metrics", "mean image")


@pytest.mark.parametrize(
    ("name", "damage"), [*((name, "pipe") for name in CASES), *((name, "device") for name in DEVICES)]
)
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    make, file, read = CASES[name]
    make(tmp_path)
    put(tmp_path / file, damage)
    with pytest.raises(UserError, match=f"it is a {damage}, not a file") as refused:
        read(tmp_path)
    assert file.rpartition("/")[2] in str(refused.value)


@pytest.mark.parametrize("name", ["chunk of a store", "foreign chunk", "foreign zarr", "checkpoint.json", "image"])
def test_a_file_of_a_tebibyte_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    make, file, read = CASES[name]
    make(tmp_path)
    with (tmp_path / file).open("wb") as opened:
        os.truncate(opened.fileno(), 1 << 40)  # a hole: takes no room on the disk
    with pytest.raises(UserError, match="it has 1,099,511,627,776 bytes, and such a file at most"):
        read(tmp_path)


def an_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").touch()


# Files of JSON, and what reads them; the last ones count as absent where they are damaged.
NESTED = {
    **{name: CASES[name] for name in ("store", "array of a store", "foreign zarr", "checkpoint.json", "metrics")},
    **{name: CASES[name] for name in ("outcome of a setting", "settings in YAML")},
    "names of a model": Case(nothing, "names.json", lambda folder: read_names(folder / "names.json")),
    "times of a run": Case(nothing, "timings.json", read_timings),
    "index of weights": Case(an_index, "model.safetensors.index.json", read_weights),
    "address": Case(nothing, "scheduler.json", lambda folder: _read_address(folder / "scheduler.json")),
    "holder": Case(nothing, "running.json", lambda folder: parse_holder((folder / "running.json").read_bytes())),
    "rates": Case(nothing, "rates.json", lambda folder: RateStore(folder / "rates.json")._figures),
}


@pytest.mark.parametrize("name", NESTED)
def test_json_that_is_nested_too_deeply_is_refused(tmp_path: Path, name: str) -> None:
    make, file, read = NESTED[name]
    make(tmp_path)
    (tmp_path / file).write_text("[" * 100_000 + "\n")
    if name in ("holder", "rates"):
        assert read(tmp_path) == {}
        return
    with pytest.raises(UserError) as refused:
        read(tmp_path)
    assert file.rpartition("/")[2] in str(refused.value)
    assert "\n" not in str(refused.value)[:400]


def test_other_pipes_are_passed_over(tmp_path: Path) -> None:
    """A pipe that stands for the holder of a workspace says nothing; one by the name of a data set is none."""
    os.mkfifo(tmp_path / "running.json")
    with locked_workspace(tmp_path):
        assert (tmp_path / "running.json").is_file()
    idx_files(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    os.mkfifo(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(UserError, match="has no file train-images-idx3-ubyte"):
        import_records("mnist", tmp_path, tmp_path / "out")
    (tmp_path / "data_batch_1.bin").write_bytes(cifar_rows(*records(5, (3, 32, 32))))
    os.mkfifo(tmp_path / "test_batch.bin")
    with pytest.raises(UserError, match="test_batch"):
        import_records("cifar10", tmp_path, tmp_path / "out")
