"""Files that no program writes, but that a disk, a script or a person may leave: each is one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from tests.faults.test_faults_pipes import put
from tests.support.refusals import check_refusal, refusal

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "[UNK]"}


def tokenizer(**model: object) -> Tokenizer:
    pytest.importorskip("tokenizers")
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": WORDS | model}
    return Tokenizer(json.dumps(content), "tokenizer.json")


def nested_estimator(folder: Path) -> None:
    Regressor(hidden=(), epochs=1).fit(np.ones((4, 2)), np.ones(4)).save(folder / "e")
    (folder / "e" / "estimator.json").write_text("[" * 100_000)
    load(folder / "e")


TABLE = SearchResult([], [], Path())
MISTAKES = [
    refusal(lambda: tokenizer(vocab={"a": 0, "b": 4_000_000_000}), "has the id 4,000,000,000", "and ids are at"),
    refusal(lambda: tokenizer().encode("a c"), "tokenizer.json cannot encode the text", "UNK"),
    refusal(lambda tmp_path: read_newest_checkpoint(tmp_path / ("w" * 300)), "File name too long; name"),
    refusal(lambda tmp_path: latest(tmp_path / ("w" * 300)), "cannot be read: File name too long"),
    refusal(lambda tmp_path: [(tmp_path / "search.csv").mkdir(), write_table(tmp_path, TABLE)], "Is a directory"),
    refusal(lambda tmp_path: nested_estimator(tmp_path), "damaged estimator (ValueError: it is nested too deeply"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_hostile_files_are_refused(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)


WINDOWS: dict[str, Any] = {"inputs": "t", "static": "h", "coordinates": "region", "input_dims": {"n": 1}}
FACES: dict[str, Callable[[Path], object]] = {
    "windows": lambda path: windows(path, **WINDOWS).read([0, 5]),
    "statistics": field_statistics,
    "info": lambda path: is_dataset(path) and describe_dataset(path),
}
FILES = ["n/0", "t/1.0", "h/0", "region/0", "t/.zarray"]  # coordinates, a chunk, a static field, metadata


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
    put(path / file, damage)
    for name, face in FACES.items():
        if file == "region/0" and name != "windows":  # which alone read it
            continue
        with pytest.raises(UserError) as refused:
            face(path)
        message = str(refused.value)
        assert file.partition("/")[0] in message
        assert damage == "nonsense" or f"it is a {damage}, not a file" in message


@pytest.mark.parametrize("damage", ["pipe", "device"])
def test_a_netcdf_file_is_regular(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "d.nc"
    put(path, damage)
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
