"""References to the chunks of a zarr store, as kerchunk and VirtualiZarr write them: where they may lead."""

import json
import logging
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
import xarray as xr
import zarr
from click.testing import CliRunner

import dsinga
from dsinga.base.errors import UserError
from dsinga.commands.cli import main_group
from dsinga.data import open_records, open_store, verify_store
from dsinga.data.filesystem import LONGEST, VARIABLE
from tests.support.refusals import refused
from tests.support.web_server import serve

DATA = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
CHUNK = "t/0.0.0"


def references(folder: Path, url: Callable[[str], str] = str, **more: Any) -> dict[str, Any]:
    """Write a store, t.zarr, and return references to its files; ``url`` returns that of a path in the folder."""
    dims = ("time", "lat", "lon")
    dataset = xarray.Dataset({"t": (dims, DATA)}, {dim: np.arange(n) for dim, n in zip(dims, DATA.shape, strict=True)})
    dataset.chunk(time=2).to_zarr(folder / "t.zarr", mode="w", zarr_format=2, consolidated=True)
    return {"version": 1, "refs": references_to(folder / "t.zarr", url), **more}


def references_to(store: Path, url: Callable[[str], str] = str) -> dict[str, Any]:
    """Return references to the files of a store; ``url`` returns that of a path in the folder of the store."""
    refs: dict[str, Any] = {}
    for file in (each for each in store.rglob("*") if each.is_file()):
        key = file.relative_to(store).as_posix()
        is_json = file.name[0] == "." or file.name == "zarr.json"
        refs[key] = file.read_text() if is_json else [url(f"{store.name}/{key}"), 0, file.stat().st_size]
    return refs


def check(path: Path | str) -> None:
    """Check that the numbers at a path are those of the store, as records, windows and by the commands."""
    np.testing.assert_array_equal(open_store(path, data="t").read(range(6))[0], DATA)
    windows = dsinga.windows(path, inputs="t", targets="t", input_dims={"time": 2})
    for each in (windows, pickle.loads(pickle.dumps(windows))):
        np.testing.assert_array_equal(each.read([1])[0][0], DATA[2:4])
    for command, text in (("info", "variable t"), ("verify", "4 arrays in 6 chunks can be read")):
        ran = CliRunner().invoke(main_group, ["data", command, str(path)], catch_exceptions=False)
        assert (ran.exit_code, text in ran.output) == (0, True), ran.output


def refusal(path: Path | str) -> str:
    with pytest.raises(UserError) as windows:
        dsinga.windows(path, inputs="t", targets="t", input_dims={"time": 2}).read(range(3))
    for call in (lambda: open_store(path, data="t").read(range(6)), lambda: open_store(path).read(range(6))):
        with pytest.raises(UserError):
            call()
    return str(windows.value)


@pytest.mark.parametrize("form", ["absolute", "beside", "file", "template", "version 0"])
def test_references_to_files(form: str, tmp_path: Path) -> None:
    written = {
        "absolute": lambda: references(tmp_path, lambda path: str(tmp_path / path)),
        "beside": lambda: references(tmp_path),
        "file": lambda: references(tmp_path, lambda path: f"file://{tmp_path}/{path}"),
        "template": lambda: references(tmp_path, lambda path: f"{{{{ u }}}}/{path}", templates={"u": str(tmp_path)}),
        "version 0": lambda: references(tmp_path)["refs"],
    }[form]()
    (tmp_path / "refs.json").write_text(json.dumps(written))
    check(tmp_path / "refs.json")


def test_references_to_nothing_are_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text('{"version": 1, "refs": {}}')
    refused(lambda: dsinga.windows(tmp_path / "refs.json", input_dims={"time": 1}), "cannot be opened as a Dataset")


def test_references_to_a_web_server(tmp_path: Path) -> None:
    with serve(tmp_path) as address:
        written = references(tmp_path, lambda path: f"http://{address}/{path}")
        (tmp_path / "refs.json").write_text(json.dumps(written))
        check(tmp_path / "refs.json")
        check(f"http://{address}/refs.json")
        (tmp_path / "beside.json").write_text(json.dumps(references(tmp_path)))
        check(f"http://{address}/beside.json")
        written["refs"][CHUNK] = [f"http://{address}/t.zarr/{CHUNK}", 4, 8]
        (tmp_path / "refs.json").write_text(json.dumps(written))
        assert f"bytes 4 to 12 of http://{address}/t.zarr/{CHUNK}, of which" in refusal(tmp_path / "refs.json")
        written["refs"][CHUNK] = [f"http://{address}/nothing"]
        (tmp_path / "refs.json").write_text(json.dumps(written))
        assert "nothing, which is not there" in refusal(tmp_path / "refs.json")
        written["refs"][CHUNK] = ["/etc/passwd"]
        (tmp_path / "refs.json").write_text(json.dumps(written))
        assert "a reference leads to /etc/passwd, outside" in refusal(f"http://{address}/refs.json")


# What a file of references says of one chunk, by what is said about it.
REFUSED: dict[str, tuple[Any, str]] = {
    "system file": (["/etc/passwd", 0, 20], f"outside of the folder .* by {VARIABLE}=FOLDER in the environment"),
    "file URL": (["file:///etc/passwd"], "a reference leads to /etc/passwd, outside"),
    "link": (["link"], "outside of the folder"),
    "pipe": (["pipe", 0, 8], "it is a pipe, not a file"),
    "folder": (["t.zarr"], "leads to .*t.zarr, which is not there"),
    "absent": (["nothing", 0, 8], "leads to .*nothing, which is not there"),
    "too long": ([f"t.zarr/{CHUNK}", 0, 10**15], "bytes 0 to 1000000000000000 of .*, of which [0-9]+ were read"),
    "chained": (["simplecache::file:///etc/passwd"], "not to simplecache::file"),
    "protocol": (["sftp://host/x"], "references lead to files, http, .*, not to sftp://host/x"),
    "negative": ([f"t.zarr/{CHUNK}", -1, 8], f"the reference '{CHUNK}' is not a text"),
    "no URL": ([None, 0, 8], f"the reference '{CHUNK}' is not a text"),
    "expression": (["{{u.__class__}}/x"], "has a path .* an expression"),
    "unknown": (["{{v}}/x"], "or a template that the file does not define"),
    "huge": (["{{u}}" * 1000], f"has a path of more than {LONGEST} characters"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_references_elsewhere_are_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    written = references(tmp_path, templates={"u": "x" * 100})
    written["refs"][CHUNK], message = REFUSED[what]
    (tmp_path / "refs.json").write_text(json.dumps(written))
    assert re.search(message, refusal(tmp_path / "refs.json"))


JINJA = "{{ cycler.__init__.__globals__.os.system('touch DIR/hacked') }}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"version": 1, "refs": {}, "templates": {"u": JINJA}}), "its templates are not texts .* braces"),
        (json.dumps({"version": 1, "refs": {}, "templates": {"u": "x" * (LONGEST + 1)}}), "its templates are not"),
        (json.dumps({"version": 1, "refs": {}, "gen": [{"key": "x", "url": JINJA}]}), r"generated references .'gen'."),
        (json.dumps({"version": 2, "refs": {}}), "another version than 1"),
        (json.dumps({"version": 1, "refs": []}), "its 'refs' or 'templates' are no JSON object"),
        ("[" * 100_000, "it is nested too deeply"),
        ("[]", "it is no JSON object"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        (None, "it has 1,073,741,824 bytes, and such a file at most 268,435,456"),
    ],
)
def test_files_that_are_no_references_are_refused(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    with open(path, "w") as file:
        file.truncate(1 << 30) if text is None else file.write(text.replace("DIR", str(tmp_path)))
    refused(lambda: open_store(path), rf"^{path} has no references that can be read: .*{message}[^\n]*$")
    shown = CliRunner().invoke(main_group, ["data", "info", str(path)])
    assert isinstance(shown.exception, UserError)
    assert os.listdir(tmp_path) == ["refs.json"]


@pytest.mark.parametrize("metadata", ["{", "[]", {"dtype": "<q9"}, {"shape": [-6, 2, 3]}, {"compressor": {"id": "no"}}])
def test_damaged_metadata_in_references_are_named(metadata: Any, tmp_path: Path) -> None:
    content, path = references(tmp_path), tmp_path / "refs.json"
    refs = content["refs"]
    del refs[".zmetadata"]
    refs["t/.zarray"] = metadata if isinstance(metadata, str) else json.dumps(json.loads(refs["t/.zarray"]) | metadata)
    path.write_text(json.dumps(content))
    shown = CliRunner().invoke(main_group, ["data", "info", str(path)])
    assert isinstance(shown.exception, UserError)
    assert re.search("the metadata of 't' cannot be read", str(shown.exception))


def test_references_to_folders_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "described").mkdir()
    path = tmp_path / "described/refs.json"
    path.write_text(json.dumps(references(tmp_path / "data", lambda path: str(tmp_path / "data" / path))))
    assert "outside of the folder of the file of references" in refusal(path)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for folder in ("data", "link"):
        monkeypatch.setenv(VARIABLE, f"{tmp_path}/nothing{os.pathsep}{tmp_path}/{folder}")
        check(path)
    path.write_text(json.dumps(references(tmp_path / "data")))
    path.rename(tmp_path / "data/refs.json")
    monkeypatch.delenv(VARIABLE)
    check(tmp_path / "link/refs.json")


def test_a_chunk_that_has_the_fill_value_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    written = references(tmp_path)
    metadata = json.loads(written["refs"]["t/.zarray"])
    written["refs"]["t/.zarray"] = json.dumps({**metadata, "fill_value": 0.0, "compressor": None, "filters": None})
    written["refs"] = {key: value for key, value in written["refs"].items() if key[:2] != "t/" or key[2] == "."}
    written["refs"].pop(".zmetadata")
    (tmp_path / "zeros").write_bytes(bytes(48))
    written["refs"] |= {CHUNK: ["zeros"], "t/1.0.0": ["zeros", 0, 48]}
    (tmp_path / "refs.json").write_text(json.dumps(written))
    assert not open_store(tmp_path / "refs.json", data="t").read(range(6))[0].any()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{tmp_path}/refs.json: chunk t/2.0.0 of 't' is not stored, so its numbers are the fill value 0.0"
    ]


def test_references_to_files_of_two_scales_are_shown(tmp_path: Path) -> None:
    refs: dict[str, Any] = {}
    for number, scale in enumerate((0.5, 0.25)):
        with h5py.File(tmp_path / f"{number}.nc", "w") as file:
            data = file.create_dataset("t", data=np.full((2, 3), number + 1, "<i2"))
            data.attrs["scale_factor"] = scale
            refs[f"t/{number}.0"] = [f"{number}.nc", data.id.get_offset(), 12]
    facts = {"shape": [4, 3], "chunks": [2, 3], "dtype": "<i2", "fill_value": None, "order": "C", "zarr_format": 2}
    refs |= {".zgroup": '{"zarr_format": 2}', "t/.zarray": json.dumps({**facts, "compressor": None, "filters": None})}
    refs["t/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time", "k"], "scale_factor": 0.5})
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    ran = CliRunner().invoke(main_group, ["data", "verify", str(tmp_path / "refs.json")])
    assert "'t' has the scale_factor 0.5 by the references, but 0.25 in 1.nc, to which t/1.0 leads; join" in str(
        ran.exception
    )


def test_packed_and_several_variables_are_verified(tmp_path: Path) -> None:
    packed = {"t": {"dtype": "i2", "scale_factor": 0.1, "add_offset": 3.0, "_FillValue": -1}}
    dataset = xarray.Dataset({name: (("time", "k"), np.ones((4, 3))) for name in "tu"}, {"time": np.arange(4)})
    dataset.chunk(time=2).to_zarr(tmp_path / "d.zarr", encoding=packed, zarr_format=2)
    assert verify_store(tmp_path / "d.zarr") == (4, 5, False, 0, 0, 3)
    assert verify_store(tmp_path / "d.zarr", data="t") == (4, 2, False, 0, 0, 1)
    (tmp_path / "d.zarr/t/1.0").unlink()
    assert verify_store(tmp_path / "d.zarr").missing_chunks == 1
    (tmp_path / "d.zarr/time/0").write_bytes(b"x")
    with pytest.raises(UserError, match=r"1 of 5 chunks are damaged(.|\n)*chunk time/0 cannot be read or decoded"):
        verify_store(tmp_path / "d.zarr")


# Data that are written again, or appended to, while they are read; metadata that contradict the arrays.
Read = Callable[[list[int]], np.ndarray]


def dataset(first: int, stop: int, seed: int = 0) -> xr.Dataset:
    numbers = np.random.default_rng(seed).normal(size=(stop - first, 4)).astype(np.float32)
    return xr.Dataset({"t": (("time", "lat"), numbers)}, {"time": np.arange(first, stop)}).chunk(time=6)


def written(path: Path, how: str, **options: Any) -> None:
    if path.suffix == ".nc":
        dataset(0, 24, 1 if how else 0).to_netcdf(path.with_suffix(".new"), engine="h5netcdf")
        path.with_suffix(".new").replace(path)
    elif how == "appended":
        dataset(24, 30, 1).to_zarr(path, append_dim="time", **options)
    else:
        dataset(0, 24, 1 if how else 0).to_zarr(path, mode="w", **options)


def windows_of(path: Path) -> Read:
    """A reader that keeps nothing between reads."""
    opened = dsinga.windows(path, inputs="t", input_dims={"time": 1}).dataset
    return lambda rows: dsinga.windows(opened, inputs="t", input_dims={"time": 1}).read(rows)[0]


def records_of(path: Path) -> Read:
    column = open_records(path / "t").columns[0]
    return lambda rows: np.concatenate([column.load(row, row + 1) for row in rows])


WAYS = {
    f"{kind}, {face.__name__}": (kind, face)
    for kind in ("zarr 2", "zarr 3", "netCDF")
    for face in (windows_of, records_of)
    if (kind, face) != ("netCDF", records_of)
}


@pytest.mark.parametrize("how", ["rewritten", "appended"])
@pytest.mark.parametrize("way", WAYS)
def test_data_that_change_while_they_are_read_are_noticed(
    tmp_path: Path, way: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    kind, face = WAYS[way]
    options: dict[str, Any] = {} if kind == "netCDF" else {"zarr_format": int(kind[-1]), "consolidated": False}
    path = tmp_path / ("d.nc" if kind == "netCDF" else "d.zarr")
    written(path, "", **options)
    read = face(path)
    first = read([1, 20])
    written(path, how, **options)
    if how == "rewritten" or kind == "netCDF":
        refused(lambda: read([1, 20]), "d.* was written again, or removed, after it was opened: numbers of")
    else:
        np.testing.assert_array_equal(read([1, 20]), first)
        assert "was appended to after it was opened; what is there since is not read" in caplog.text


def test_another_process_finds_other_records(tmp_path: Path) -> None:
    written(tmp_path / "d.zarr", "", consolidated=False)
    sent = pickle.dumps(open_records(tmp_path / "d.zarr" / "t"))
    written(tmp_path / "d.zarr", "appended", consolidated=False)
    refused(lambda: pickle.loads(sent), "t has 30 records, but had 24 when it was opened: it was written again")


def test_an_array_without_its_last_chunks_by_its_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.zarr"
    dataset(0, 24).to_zarr(path, zarr_format=2, consolidated=False)
    for name in ("t", "time"):
        file = path / name / ".zarray"
        metadata = json.loads(file.read_text())
        metadata["shape"][0] = 12
        file.write_text(json.dumps(metadata))
    for face in (lambda: windows_of(path), lambda: open_records(path, data="t", label="")):
        with pytest.raises(UserError, match="a chunk t.* after the last of 't', whose shape is .12, 4."):
            face()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_an_array_that_consolidated_metadata_lack_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset(0, 24).to_zarr(tmp_path / "d.zarr", zarr_format=2)
    zarr.open_group(tmp_path / "d.zarr", use_consolidated=False).create_array("later", data=np.zeros(3))
    with caplog.at_level(logging.WARNING, "dsinga"):
        open_records(tmp_path / "d.zarr", data="t")
    assert "d.zarr: 'later' came after the metadata were consolidated, and cannot be seen; consolidate" in caplog.text
