"""Zarr arrays that cannot be records or labels are refused in one message: the source, the array, what to do."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dsinga.base.errors import UserError
from dsinga.data import open_records, open_store, verify_store
from tests.core.data.test_data_zarr import LABELS, ZEROS, write_group

STRINGS = np.array(["a", "bb", "c", "d"], np.dtypes.StringDType())
LABELLED = {"t/x": ZEROS, "t/y": LABELS, "t/label": LABELS}
NOT_FOUND = 'in store_conf, as in data: "NAME" label: "NAME"; its arrays are\n  a (4, 2, 3) float32\n  b (2, 3) float32'
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "not found": ({"a": ZEROS, "b": ZEROS[0]}, {}, NOT_FOUND),
    "ambiguous records": ({"data": ZEROS, "images": ZEROS}, {}, "may be 'data' or 'images'; name them in store_conf,"),
    "ambiguous labels": (LABELLED, {"data": "t/x"}, "'label' or 'y'; name them in store_conf, as in label: \"t/labe"),
    "nested only": ({"train/x": ZEROS}, {}, "; its arrays are\n  train/x (4, 2, 3) float32"),
    "no arrays": ({}, {}, "it has no arrays that can be listed"),
    "missing records": ({"t/images": ZEROS}, {"data": "t/image"}, "which data: names; did you mean 't/images'?; its "),
    "missing labels": ({"x": ZEROS, "y": LABELS}, {"label": "why"}, "has no array 'why', which label: names"),
    "a group": ({"train/images": ZEROS}, {"data": "train"}, "data: 'train' is a group; name an array in it; its"),
    "strings": ({"x": STRINGS}, {}, "'x': records must be numbers, not strings; give codes of the strings"),
    "no axis": ({"x": np.float32(3)}, {}, "'x' has the shape (), but records need an axis along which they lie; name"),
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_arrays_is_named(tmp_path: Path, fault: str, zarr_format: int) -> None:
    arrays, names, message = FAULTS[fault]
    path = write_group(tmp_path / "own", arrays, zarr_format)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        open_store(path, backend="zarr", **names)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_without_rows_are_refused(tmp_path: Path, zarr_format: int, name: str) -> None:
    path = write_group(tmp_path / "own", {"x": ZEROS, "y": LABELS}, zarr_format)
    metadata = path / name / (".zarray" if zarr_format == 2 else "zarr.json")
    document = json.loads(metadata.read_text())
    chunks = document["chunks"] if zarr_format == 2 else document["chunk_grid"]["configuration"]["chunk_shape"]
    # zarr 3.4, for Python 3.12, warns of them itself, which is an error here.
    no_rows = rf"own: '{name}' has the shape .* in chunks \(0,|The stored chunk shape \[0"
    for rows, message in {0: no_rows, -1: r"no arrays that can be listed \((ValueError|ZarrUserWarning)"}.items():
        chunks[0] = rows
        metadata.write_text(json.dumps(document))
        with pytest.raises(UserError, match=message):
            open_store(path, backend="zarr")


@pytest.mark.parametrize("name", ["file.zarr", "folder.zarr", "garbled.zarr"])
def test_what_is_no_zarr_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.zarr").write_text("x")
    (tmp_path / "folder.zarr").mkdir()
    (tmp_path / "garbled.zarr").mkdir()
    (tmp_path / "garbled.zarr" / "zarr.json").write_text("{nonsense")
    path = tmp_path / name
    with pytest.raises(
        UserError, match=f"{path} is no zarr array or group that can be opened.*; (import it into a store|see whether)"
    ):
        open_store(path)


def test_names_of_arrays_where_there_is_one_array(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=ZEROS)
    with pytest.raises(UserError, match="a is an array, not a group with arrays of the names in data: and label:"):
        open_store(tmp_path / "a", data="x")
    (tmp_path / "rows.csv").write_text("1,2\n")
    with pytest.raises(UserError, match="rows.csv is no zarr: its parts have no names; leave data and label out"):
        open_store(tmp_path / "rows.csv", backend="textfile", data="x")


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("attribute", [{"scale_factor": 0.1}, {"add_offset": 2.0}, {"missing_value": -9}])
def test_packed_numbers_are_refused(tmp_path: Path, name: str, attribute: dict[str, float]) -> None:
    path = write_group(tmp_path / "g", {"x": np.zeros((4, 2), "i2"), "y": np.zeros(4, "i2")})
    zarr.open_group(path)[name].attrs.update({"scale_factor": 1.0, "add_offset": 0.0, **attribute})
    with pytest.raises(UserError, match=rf"{name}' has the attribute {next(iter(attribute))}, .*xarray.open_zarr\("):
        open_store(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_what_xarray_packs_is_refused_and_read_through_xarray(tmp_path: Path, zarr_format: Any) -> None:
    xr = pytest.importorskip("xarray")
    dataset = xr.Dataset({"x": (("n", "k"), np.linspace(0, 1, 8, dtype="f4").reshape(4, 2))})
    encoding = {"dtype": "i2", "scale_factor": 0.001, "_FillValue": -1}
    dataset.to_zarr(tmp_path / "packed", zarr_format=zarr_format, encoding={"x": encoding})
    with pytest.raises(UserError, match="'x' has the attribute scale_factor"):
        open_store(tmp_path / "packed")
    unpacked = open_records(xr.open_zarr(tmp_path / "packed"), data="x").read(range(4))[0]
    np.testing.assert_allclose(unpacked, dataset.x, atol=0.001)
    whole = (100 * dataset).round()
    whole.to_zarr(tmp_path / "whole", zarr_format=zarr_format, encoding={"x": {"dtype": "i2", "_FillValue": -1}})
    with pytest.raises(UserError, match="'x' has the attribute _FillValue, so that its int16 numbers do not stand"):
        open_store(tmp_path / "whole")
    dataset.to_zarr(tmp_path / "plain", zarr_format=zarr_format)  # with a _FillValue of NaN
    assert open_store(tmp_path / "plain").shape == (2,)


@pytest.mark.parametrize("attributes", [[1, 2], 1.5, "text"])
@pytest.mark.parametrize("node", ["", "x"])
def test_attributes_that_are_no_object(tmp_path: Path, attributes: Any, node: str) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=3)
    group.create_array("x", data=np.zeros((4, 2), np.float32))
    file = tmp_path / "g.zarr" / node / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attributes": attributes}))
    with pytest.raises(
        UserError, match=r"be opened .*(its attributes are|Expected dict)|can be listed \((Type|Value)Error"
    ):
        open_records(tmp_path / "g.zarr")


@pytest.mark.parametrize("name", ["rectilinear", "hexagonal"])
def test_metadata_that_this_zarr_cannot_read_are_not_to_be_deleted(name: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "g/x", data=np.ones((6, 3), np.float32))
    file = tmp_path / "g/x/zarr.json"
    metadata = json.loads(file.read_text())
    metadata["chunk_grid"] = {"name": name, "configuration": {"kind": "inline", "chunk_shapes": [[1, 2, 3], [3]]}}
    file.write_text(json.dumps(metadata))
    text = (
        "write it in equal chunks" if name == "rectilinear" else "its zarr.json names what zarr .* cannot read; insta"
    )
    for call in (open_records, verify_store):
        with pytest.raises(UserError, match=text) as refused:
            call(tmp_path / "g/x")
        assert "delete" not in str(refused.value)
