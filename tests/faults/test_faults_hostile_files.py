"""Files that no program writes, but that a disk, a script or a person may leave: each is one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from dsinga import nn, windows
from dsinga.addons.search.result import SearchResult, write_table
from dsinga.addons.text.vocabulary import Tokenizer
from dsinga.base.errors import UserError
from dsinga.checkpoint import latest, read_newest_checkpoint
from dsinga.data import describe_dataset, field_statistics, is_dataset
from dsinga.estimators import Regressor, load

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "[UNK]"}


def tokenizer(**model: object) -> Tokenizer:
    pytest.importorskip("tokenizers")
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": WORDS | model}
    return Tokenizer(json.dumps(content), "tokenizer.json")


def nested_estimator(folder: Path) -> None:
    Regressor(hidden=(), epochs=1).fit(np.ones((4, 2)), np.ones(4)).save(folder / "e")
    (folder / "e" / "estimator.json").write_text("[" * 100_000)
    load(folder / "e")


def table_that_is_a_folder(folder: Path) -> None:
    (folder / "search.csv").mkdir()
    write_table(folder, SearchResult([], [], folder))


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "huge id": (
        lambda folder: tokenizer(vocab={"a": 0, "b": 4_000_000_000}),
        "has the id 4,000,000,000, and ids are at",
    ),
    "no unknown token": (lambda folder: tokenizer().encode("a c"), r"tokenizer.json cannot encode the text \(.*UNK"),
    "long name": (
        lambda folder: read_newest_checkpoint(folder / ("w" * 300)),
        "cannot be read: File name too long; name",
    ),
    "long name of a checkpoint": (lambda folder: latest(folder / ("w" * 300)), "cannot be read: File name too long"),
    "nested estimator": (nested_estimator, "is a damaged estimator .ValueError: it is nested too deeply"),
    "table": (table_that_is_a_folder, "cannot be written: Is a directory"),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    act, expected = CASES[name]
    with pytest.raises(UserError, match=expected):
        act(tmp_path)


FACES: dict[str, Callable[[Path], object]] = {
    "windows": lambda path: windows(path, inputs="t", static="h", coordinates="region", input_dims={"n": 1}).read(
        [0, 5]
    ),
    "statistics": field_statistics,
    "info": lambda path: is_dataset(path) and describe_dataset(path),
}
FILES = {
    "n/0": "coordinate",
    "t/1.0": "chunk",
    "h/0": "static field",
    "region/0": "other coordinate",
    "t/.zarray": "metadata",
}


def dataset(path: Path) -> None:
    coords = {"n": np.arange(6), "region": ("f", np.arange(3.0))}
    t, h = np.ones((6, 3), np.float32), np.ones(3, np.float32)
    data = xr.Dataset({"t": (("n", "f"), t), "h": ("f", h)}, coords)
    data.to_zarr(path, zarr_format=2, consolidated=False, encoding={"t": {"chunks": (3, 3)}})


@pytest.mark.parametrize("damage", ["pipe", "device", "nonsense"])
@pytest.mark.parametrize("file", FILES)
def test_files_of_datasets_are_regular_and_named(tmp_path: Path, file: str, damage: str) -> None:
    path = tmp_path / "d.zarr"
    dataset(path)
    (path / file).unlink()
    if damage == "pipe":
        os.mkfifo(path / file)
    elif damage == "device":
        (path / file).symlink_to("/dev/zero")
    else:
        (path / file).write_bytes(b"nonsense")
    reads = {"windows": True, "statistics": file != "region/0", "info": file != "region/0"}
    for name, face in FACES.items():
        if not reads[name]:
            continue
        with pytest.raises(UserError) as refused:
            face(path)
        message = str(refused.value)
        assert file.partition("/")[0] in message
        assert damage == "nonsense" or f"it is a {damage}, not a file" in message


@pytest.mark.parametrize("damage", ["pipe", "device"])
def test_a_netcdf_file_is_regular(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "d.nc"
    if damage == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for face in FACES.values():
        with pytest.raises(UserError, match=f"d.nc cannot be opened as a Dataset .*it is a {damage}, not a file"):
            face(path)


def test_mistakes_are_named_with_their_remedies(tmp_path: Path) -> None:
    path = tmp_path / "d.zarr"
    numbers = np.ones((6, 4, 4), np.float32)
    xr.Dataset({"t": (("time", "y", "x"), numbers)}).chunk(time=3).to_zarr(path, zarr_format=3, consolidated=False)
    model = nn.Sequential([nn.Conv2D(1, 3, padding="same")])
    model.compile(optimizer=nn.SGD(1e-9), loss="mse")
    fields = windows(path, inputs="t", targets="t", input_dims={"time": 1, "y": -1, "x": -1}, lead={"time": 1})
    model.fit(fields, epochs=1, progress=False)
    chunk = path / "t" / "c" / "1" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    for chunks in (None, {}):
        opened = path if chunks is None else xr.open_zarr(path, chunks=chunks, consolidated=False)
        with pytest.raises(UserError, match="variable 't': .*d.zarr: chunk t/c/1/0/0 cannot be read or decoded"):
            model.predict(opened).compute()
    zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=3).create_array("t", data=np.ones((4, 2)))
    (tmp_path / "g.zarr" / "t" / "zarr.json").write_text('{"node_type": ')
    with pytest.raises(UserError, match="g.zarr: the metadata of 't' cannot be read"):
        is_dataset(tmp_path / "g.zarr")
