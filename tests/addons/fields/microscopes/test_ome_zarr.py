"""OME-Zarr images are opened with axes, scales, levels and labels, and written so that others read them."""

import json
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner

import dsinga
from dsinga import UserError
from dsinga.commands.cli import main_group
from dsinga.data import open_ome_zarr, write_ome_zarr
from tests.support.refusals import refused
from tests.support.synthetic_cells import synthetic_cells

AXES = [  # of the example in the specification, https://ngff.openmicroscopy.org/0.4
    {"name": "t", "type": "time", "unit": "millisecond"}, {"name": "c", "type": "channel"},
    {"name": "z", "type": "space", "unit": "micrometer"}, {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]  # fmt: skip
SHAPE = (2, 3, 4, 8, 6)


def level(path, scale, translation=None):
    steps = [{"type": "scale", "scale": scale}]
    steps += [{"type": "translation", "translation": translation}] if translation else []
    return {"path": path, "coordinateTransformations": steps}


def image_metadata():
    levels = [level("0", [1, 1, 0.5, 0.25, 0.25]), level("1", [1, 1, 0.5, 0.5, 0.5], [0, 0, 0, 0.125, 0.125])]
    common = [{"type": "scale", "scale": [0.1, 1, 2, 1, 1]}]
    multiscale = {"name": "example", "axes": AXES, "datasets": levels, "coordinateTransformations": common}
    named = [{"label": name, "color": "FFFFFF"} for name in ("DAPI", "actin", "tubulin")]
    return {"multiscales": [multiscale], "omero": {"channels": named}}


def label_metadata():
    return {
        "multiscales": [{"axes": AXES, "datasets": [level("a", [1] * 5)]}],
        "image-label": {"source": {"image": "../../"}},
    }


def by_hand(folder, version, image=None, label=None, dtype="int32", label_shape=(2, 1, *SHAPE[2:])):
    """Write the files of an image by zarr alone, with metadata as in the specification."""
    path = str(folder / "hand.zarr")
    format_ = {"0.4": 2, "0.5": 3}.get(version, 2)
    numbers = np.arange(np.prod(SHAPE), dtype=np.uint16).reshape(SHAPE)

    def group(place, metadata):
        metadata = json.loads(json.dumps(metadata))
        if format_ == 3:
            metadata = {"ome": {"version": version, **metadata}}
        else:
            for each in metadata.get("multiscales", ()):
                each["version"] = version
        return zarr.create_group(place, zarr_format=format_, attributes=metadata)

    root = group(path, image or image_metadata())
    for name, values in (("0", numbers), ("1", numbers[..., ::2, ::2])):
        root.create_array(name, data=values, chunks=(1, 1, 2, 4, 4))
    group(f"{path}/labels", {"labels": ["cells"]})
    labels = group(f"{path}/labels/cells", label or label_metadata())
    labels.create_array("a", data=(np.arange(np.prod(label_shape)) % 5).reshape(label_shape).astype(dtype))
    return path


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_an_image_is_opened_with_axes_scales_levels_and_labels(tmp_path, version):
    path = by_hand(tmp_path, version)
    opened = open_ome_zarr(path)
    assert dict(opened.sizes) == dict(zip("tczyx", SHAPE, strict=True))
    assert opened.image.dtype == np.uint16
    assert opened.cells.dims == tuple("tzyx")
    np.testing.assert_allclose(opened.z, [0, 1, 2, 3])
    np.testing.assert_allclose(opened.t, [0, 0.1])
    assert list(opened.c.values) == ["DAPI", "actin", "tubulin"]
    assert opened.y.attrs == {"units": "micrometer"}
    assert open_ome_zarr(path, labels=[]).image.identical(opened.image)
    refused(lambda: open_ome_zarr(path, 1), r"label image .*cells has the sizes .*'y': 8.*, but the image .*'y': 4")
    small = open_ome_zarr(path, "1", labels=())
    np.testing.assert_allclose(small.y, 0.125 + 0.5 * np.arange(4))
    np.testing.assert_array_equal(small.image, opened.image[..., ::2, ::2])
    windows = dsinga.windows(path, inputs="image", targets="cells", input_dims={"t": 1, "z": 1, "y": 4, "x": 3})
    assert windows.path == path
    assert windows.layout.channel_names()[0] == "image c=DAPI"
    assert (windows.shape, windows.label_shape, len(windows)) == ((3, 4, 3), (1, 4, 3), 32)
    inputs, targets = pickle.loads(pickle.dumps(windows)).read([5])
    np.testing.assert_array_equal(inputs[0], opened.image[0, :, 1, :4, 3:])
    np.testing.assert_array_equal(targets[0, 0], opened.cells[0, 1, :4, 3:])
    shown = CliRunner().invoke(main_group, ["data", "info", path])
    assert "variable cells" in shown.output, shown.output


def changed(**changes):
    metadata = image_metadata()
    metadata["multiscales"][0] |= changes
    return metadata


def four_axes():
    return changed(axes=AXES[1:], datasets=[level("0", [1] * 4)], coordinateTransformations=[])


@pytest.mark.parametrize(
    ("version", "settings", "fault"),
    [
        ("0.4", {"image": changed(axes=[])}, "hand.zarr has OME metadata without axes, .* name them in"),
        ("0.5", {"image": changed(axes=None)}, "hand.zarr has OME metadata without axes"),
        ("0.3", {}, "hand.zarr is OME-Zarr of version 0.3; write it again as version 0.4 or 0.5"),
        ("0.5", {"dtype": "float32"}, "label image .*labels/cells has float32 numbers, but .* is an integer; write"),
        ("0.4", {"label_shape": (2, 1, 4, 8, 5)}, r"labels/cells has the sizes .*'x': 5}, but the image .*'x': 6}"),
        ("0.4", {"image": changed(datasets=[level("7", [1] * 5)])}, "level '7', which the OME metadata name, is not"),
        ("0.5", {"image": changed(datasets=[level("0", [1, 1])])}, "are damaged .*number for each of the 5 axes"),
        ("0.5", {"image": changed(datasets=[level("0", [1, 1, 1, 0, 1])])}, "are damaged .*scale is not above 0"),
        ("0.4", {"image": changed(datasets="zero")}, "OME metadata of .*hand.zarr are damaged"),
        ("0.4", {"image": four_axes()}, "level '0' has 5 dimensions, but the OME metadata name 4 axes"),
        ("0.5", {"image": {"plate": {}}}, "is a plate or a well of OME-Zarr images; give the path of one in it"),
        ("0.4", {"image": {"bioformats2raw.layout": 3}}, "is a collection of OME-Zarr images; .* such as 0"),
    ],
)
def test_what_is_not_an_image_is_refused_before_training(tmp_path, version, settings, fault):
    path = by_hand(tmp_path, version, **settings)
    for opening in (open_ome_zarr, lambda path: dsinga.windows(path, input_dims={"y": 4})):
        with pytest.raises(UserError, match=fault) as raised:
            opening(path)
        assert "\n" not in str(raised.value)


def test_a_level_or_a_label_image_that_is_not_there_is_refused(tmp_path):
    path = by_hand(tmp_path, "0.4")
    refused(lambda: open_ome_zarr(path, 2), "hand.zarr has no level 2; its levels are '0', '1'")
    refused(lambda: dsinga.windows(f"{path}/7", input_dims={"y": 4}), "'7'; its levels are '0', '1'")
    refused(lambda: open_ome_zarr(path, labels="cell"), "has no label image 'cell'; it has 'cells'")
    zarr.open_group(f"{path}/labels").attrs["labels"] = ["cells/../cells"]
    refused(lambda: open_ome_zarr(path), "the label image .* is no image of OME-Zarr; leave it out")
    zarr.create_group(str(tmp_path / "other.zarr"))
    refused(lambda: open_ome_zarr(tmp_path / "other.zarr"), "other.zarr is no OME-Zarr image")


@cache
def plane(size):
    """Return the image and the labels of a plane, made of small ones."""
    image, labels = synthetic_cells(0, 130)
    times = (-(-size // 130),) * 2
    return np.tile(image, times)[:size, :size], np.tile(labels, times)[:size, :size]


def cells(size=520):
    """Return a Dataset of one image whose planes are large enough for three levels."""
    image, labels = plane(size)
    axis = {"units": "micrometer"}
    coordinates = {"c": ["DAPI", "actin"], "y": ("y", 10 + 0.65 * np.arange(size), axis)}
    coordinates["x"] = ("x", 0.65 * np.arange(size), axis)
    variables = {"image": (("c", "y", "x"), np.stack([image, image // 2])), "cells": (("y", "x"), labels)}
    return xr.Dataset(variables, coordinates)


@pytest.fixture(params=["0.4", "0.5"])
def written(request, tmp_path):
    """Return a Dataset, with chunks of no use, and the path at which it was written."""
    path = tmp_path / "cells.ome.zarr"
    write_ome_zarr(cells().chunk(y=100, x=77), path, labels="cells", version=request.param)
    return cells(), str(path), request.param


def test_what_is_written_is_read_back_with_levels(written):
    data, path, version = written
    xr.testing.assert_identical(open_ome_zarr(path).load(), data)
    small = open_ome_zarr(path, 1)
    mean = data.image.astype(float).coarsen(y=2, x=2).mean()
    np.testing.assert_array_equal(small.image, np.rint(mean))
    np.testing.assert_array_equal(small.cells, data.cells[::2, ::2])
    np.testing.assert_allclose(small.y, mean.y)
    assert open_ome_zarr(path, 2).sizes["y"] == 130
    assert zarr.open_group(path)["0"].chunks == (1, 256, 256)
    more = data.cells.where(data.cells > 9, 0)
    write_ome_zarr(more.to_dataset(name="large"), path, labels="large")
    np.testing.assert_array_equal(open_ome_zarr(path).large, more)
    assert list(open_ome_zarr(path)) == ["image", "cells", "large"]
    assert not list(Path(path).rglob("*.partial*"))


@pytest.mark.parametrize("dim", ["quantile", "parameter", "member", "lead"])
def test_several_numbers_of_a_prediction_are_channels_not_space(tmp_path, dim):
    numbers = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    several = xr.DataArray(numbers, dims=("t", dim, "y", "x"), coords={dim: [0.1, 0.5, 0.9]}, name="image")
    write_ome_zarr(several, tmp_path / "new.ome.zarr")
    (multiscale,) = zarr.open_group(tmp_path / "new.ome.zarr").attrs["ome"]["multiscales"]
    assert [axis["type"] for axis in multiscale["axes"]] == ["time", "channel", "space", "space"]
    found = open_ome_zarr(tmp_path / "new.ome.zarr").image
    np.testing.assert_array_equal(found, numbers)
    assert found[dim].values.tolist() == ["0.1", "0.5", "0.9"]


@pytest.mark.parametrize(
    ("change", "settings", "fault"),
    [
        (lambda ds: ds, {"labels": "cell"}, "the Dataset has no variable 'cell'"),
        (lambda ds: ds.assign(cells=ds.cells / 2), {"labels": "cells"}, "label image 'cells' has float64 numbers"),
        (lambda ds: ds.assign(cells=ds.cells[:9].rename(y="v")), {"labels": "cells"}, "but the image"),
        (lambda ds: ds, {}, "channels of an image lie on one grid"),
        (lambda ds: ds[["image"]].expand_dims(["a", "b"]), {}, "two or three of space"),
        (lambda ds: ds[["image"]].isel(y=[0, 1, 5]), {}, "coordinate 'y' does not increase by equal steps"),
        (lambda ds: ds[["cells"]], {"labels": "cells"}, "is no OME-Zarr image to which label images are added"),
        (lambda ds: ds.cells.values, {}, "write_ome_zarr takes an xarray Dataset or DataArray, not a ndarray"),
        (lambda ds: ds, {"version": "0.3"}, "version of OME-Zarr is '0.4' or '0.5', not '0.3'"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, change, settings, fault):
    refused(lambda: write_ome_zarr(change(cells(64)), tmp_path / "new.ome.zarr", **settings), fault)
    assert not list(tmp_path.iterdir())


def test_an_image_that_is_there_is_not_replaced(tmp_path):
    path = by_hand(tmp_path, "0.5")
    refused(lambda: write_ome_zarr(cells(64), path, labels="cells"), "zarr exists and is not", "choose another")
    same = open_ome_zarr(path)[["cells"]]
    refused(lambda: write_ome_zarr(same, path, labels="cells"), "'cells'; write this one under another name")


def test_the_packages_of_ome_validate_and_read_what_is_written(written):
    models = pytest.importorskip("ome_zarr_models")
    reader, files = pytest.importorskip("ome_zarr.reader"), pytest.importorskip("ome_zarr.io")
    data, path, version = written
    names = [f"v{version.replace('.', '')}.{n}" for n in ("image.Image", "labels.Labels", "image_label.ImageLabel")]
    for place, name in zip(("", "labels", "labels/cells"), names, strict=True):
        kind = type(models.open_ome_zarr(zarr.open_group(f"{path}/{place}", mode="r")))
        assert f"{kind.__module__}.{kind.__name__}" == f"ome_zarr_models.{name}"
    nodes = [node for node in reader.Reader(files.parse_url(path, mode="r"))() if node.data]
    assert [each.shape[-1] for each in nodes[0].data] == [each.shape[-1] for each in nodes[1].data] == [520, 260, 130]
    np.testing.assert_array_equal(nodes[1].data[0], data.cells)
    assert nodes[0].metadata["channel_names"] == ["DAPI", "actin"]


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_what_the_package_of_ome_writes_is_read(tmp_path, version):
    writer, formats = pytest.importorskip("ome_zarr.writer"), pytest.importorskip("ome_zarr.format")
    data, path = cells(), str(tmp_path / "theirs.zarr")
    format_ = {"0.4": formats.FormatV04, "0.5": formats.FormatV05}[version]()
    settings, scale = {"fmt": format_, "scale_factors": (2, 4)}, {"y": 0.65, "x": 0.65}
    writer.write_image(data.image.values, path, axes="cyx", scale={"c": 1, **scale}, **settings)
    writer.write_labels(data.cells.values, path, name="cells", axes="yx", scaler=None, scale=scale, **settings)
    opened = open_ome_zarr(path)
    np.testing.assert_array_equal(opened.image, data.image)
    np.testing.assert_array_equal(opened.cells, data.cells)
    np.testing.assert_allclose(opened.x, data.x)
    assert open_ome_zarr(path, 1).sizes["x"] == 260
    again = str(tmp_path / "ours.zarr")
    write_ome_zarr(opened, again, labels="cells", version=version)
    xr.testing.assert_identical(open_ome_zarr(again).load(), opened.load())


@pytest.mark.parametrize("changes", [{"shape": [1, 10**12, 1]}, {"shape": [1, 1, 10**30]}, {"chunks": [0, 0, 0]}])
def test_senseless_shapes_are_refused(tmp_path, changes):
    zarr.create_group(tmp_path / "s.zarr", zarr_format=2).create_array("x", data=np.ones((4, 4, 4), np.uint16))
    image = {"axes": AXES[2:], "datasets": [level("x", [1] * 3)], "version": "0.4"}
    metadata = json.loads((tmp_path / "s.zarr/x/.zarray").read_text())
    (tmp_path / "s.zarr/x/.zarray").write_text(json.dumps({**metadata, **changes}))
    for attributes, opening in (
        ({}, dsinga.data.open_store),
        ({"multiscales": [image]}, open_ome_zarr),
        ({"multiscales": [image]}, lambda path: dsinga.windows(path, input_dims={"y": 2})),
    ):
        zarr.open_group(tmp_path / "s.zarr", mode="r+").attrs.update(attributes)
        # zarr 3.4, for Python 3.12, warns of such chunks itself, which is an error here.
        text = r"by its metadata, but axes have up to .* points, and chunks one or more|The stored chunk shape \[0"
        with pytest.raises(UserError, match=text):
            opening(tmp_path / "s.zarr")


def test_a_hundred_thousand_label_images_are_named_to_be_opened(tmp_path):
    path = by_hand(tmp_path, "0.4")
    labels = zarr.open_group(f"{path}/labels")
    labels.attrs["labels"] = ["cells"] * 100_000
    assert list(open_ome_zarr(path).data_vars) == ["image", "cells"]
    labels.attrs["labels"] = ["cells", *(f"l{number}" for number in range(100_000))]
    refused(lambda: open_ome_zarr(path), "names 100,001 label images, more than 1000; name those to open: ")
    assert list(open_ome_zarr(path, labels="cells").data_vars) == ["image", "cells"]
