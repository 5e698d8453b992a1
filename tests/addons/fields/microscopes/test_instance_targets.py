"""Targets of label images equal those of scipy, of whole images however they are read, and lead back to instances."""

import pickle
from itertools import product

import numpy as np
import pytest
import xarray as xr
from scipy import ndimage

import dsinga
from dsinga import UserError
from dsinga.addons.fields.microscopes import instance_targets
from dsinga.addons.fields.microscopes.instances import borders, components, distances, flows, grow
from dsinga.data import follow_flows, instance_scores, label_instances
from tests.support.refusals import refused
from tests.support.synthetic_cells import synthetic_cells

KINDS = ("inside", "border", "distance", "flow_y", "flow_x")


@pytest.fixture(scope="module")
def labels():
    """Return the label images (3, 96, 80) of three steps, one of which has a number for two instances."""
    planes = [synthetic_cells(seed, 96, 60)[1][:, :80] for seed in range(3)]
    planes[1][planes[1] == 5] = 1
    return np.stack(planes)


def volume():
    """Return a volume of random blocks, some of which touch."""
    return np.kron(np.random.default_rng(0).integers(0, 4, (4, 5, 6)), np.ones((2, 3, 3), int))


@pytest.mark.parametrize("spacing", [(1.0, 1.0), (2.5, 1.0), (3.0, 1.5, 1.0)])
def test_components_distances_and_borders_are_those_of_scipy(labels, spacing):
    image = labels[1] if len(spacing) == 2 else volume()
    parts, expected = components(image), np.zeros(image.shape)
    for number in np.unique(image)[1:]:
        theirs, count = ndimage.label(image == number)
        pairs = np.unique(np.stack([parts[theirs > 0], theirs[theirs > 0]]), axis=1)
        assert pairs.shape[1] == count == len(np.unique(pairs[0]))
        distance = ndimage.distance_transform_edt(np.pad(image == number, 9, "edge"), sampling=spacing)
        expected += distance[(slice(9, -9),) * image.ndim] * (image == number)
    assert sorted(np.unique(parts)) == list(range(parts.max() + 1))
    np.testing.assert_allclose(distances(image, 6, spacing), np.minimum(expected, 6), rtol=1e-6)
    around = np.ones((3,) * image.ndim, bool)
    is_border = ndimage.minimum_filter(image, footprint=around) != ndimage.maximum_filter(image, footprint=around)
    np.testing.assert_array_equal(borders(image), np.where(image == 0, 0, 1 + is_border))


def test_flows_are_unit_vectors_to_the_centre_and_do_not_leave_the_instance(labels):
    y, x = np.mgrid[:41, :41] - 20
    disc = components((y**2 + x**2 < 300).astype(int))
    towards = -np.stack([y, x]) / np.maximum(np.hypot(y, x), 1)
    vectors = flows(disc)
    cosine = (vectors * towards).sum(axis=0)[(disc > 0) & (np.hypot(y, x) > 2)]
    assert cosine.min() > 0.9
    np.testing.assert_allclose(np.hypot(*vectors)[(disc > 0) & (np.hypot(y, x) > 0)], 1, atol=1e-6)
    corner = np.zeros((7, 7), int)
    corner[1:6, 1:3] = corner[4:6, 1:6] = 1
    of_cellpose = [  # masks_to_flows of Cellpose 3.1.1.3
        [0.96, 0.96, 0.94, 0.95, 0.59, 0.73, -0.06, 0.71, 0.69, 0.31, 0.27, -0.71, -1.00, -0.81, -0.34, -0.27],
        [0.27, -0.27, 0.34, -0.31, 0.81, -0.69, 1.00, -0.71, -0.73, -0.95, -0.96, 0.71, 0.06, -0.59, -0.94, -0.96],
    ]  # fmt: skip
    np.testing.assert_allclose(flows(corner)[:, corner > 0], of_cellpose, atol=6e-3)
    parts = components(volume())
    for axis, vector in enumerate(flows(parts)):  # an instance alone has the same bits
        alone = np.where(parts == 3, parts, 0)
        np.testing.assert_array_equal(flows(alone)[axis][parts == 3], vector[parts == 3])


def dataset(labels, kind, folder):
    data = xr.Dataset({"image": (("t", "y", "x"), labels * 1.0), "cells": (("t", "y", "x"), labels)})
    if kind == "zarr":
        data.chunk(y=17, x=29).to_zarr(folder / "cells.zarr", zarr_format=2)
        return str(folder / "cells.zarr")
    return data.chunk(t=1, y=31) if kind == "dask" else data


@pytest.mark.parametrize(("kind", "size"), [*product(("memory", "dask", "zarr"), (13,)), ("memory", 80), ("zarr", 40)])
def test_targets_are_the_same_whatever_is_read_of_a_label_image(labels, tmp_path, kind, size):
    settings = {"targets": [f"{name}(cells)" for name in KINDS], "input_dims": {"t": 1, "y": size, "x": size}}
    windows = dsinga.windows(dataset(labels, kind, tmp_path), inputs="image", memory=1 << 20, **settings)
    assert windows.layout.target_names() == tuple(settings["targets"])
    images = [(labels > 0).astype(float), np.stack([borders(plane) for plane in labels])]
    images.append(np.stack([distances(plane, 16, (1, 1)) for plane in labels]))
    expected = np.stack([*images, *np.stack([flows(components(plane)) for plane in labels], axis=1)], axis=1)
    for each in (windows, pickle.loads(pickle.dumps(windows))):
        rows = np.arange(len(each))[:: max(1, len(each) // 12)]
        starts = each.positions(rows)
        for target, t, y, x in zip(each.read(rows)[1], *(starts[dim] for dim in "tyx"), strict=True):
            np.testing.assert_array_equal(target, expected[t, :, y : y + size, x : x + size].astype(np.float32))


def test_axes_of_other_spacing_count_by_their_coordinates(tmp_path):
    image = volume()
    coordinates = {dim: np.arange(image.shape["zyx".index(dim)]) * (2 if dim == "z" else 0.5) for dim in "zyx"}
    data = xr.Dataset({"v": (("z", "y", "x"), image)}, coordinates)
    windows = dsinga.windows(data, inputs="v", targets="distance(v)", input_dims={"z": 4, "y": 5, "x": 6})
    expected = distances(image, 16, (4, 1, 1))
    np.testing.assert_array_equal(windows.read([0])[1][0, 0], expected[:4, :5, :6])


def test_instances_are_found_again_from_borders_distances_and_flows(labels):
    plane = components(labels[0])
    found = {
        "border": label_instances(borders(plane) == 1, plane > 0),
        "distance": label_instances(distances(plane, 16, (1, 1)) > 2, plane > 0),
        "flows": follow_flows(flows(plane), plane > 0, smallest=1),
    }
    scores = {name: instance_scores(plane, each)["f1"] for name, each in found.items()}
    assert min(scores.values()) > 0.9, scores
    assert scores["flows"] == 1
    threshold = label_instances(plane > 0, plane > 0)
    assert instance_scores(plane, threshold)["f1"] < 0.9
    assert label_instances(plane > 0, plane > 0, smallest=10**6).max() == 0


def test_seeds_grow_a_ring_at_a_time_and_scores_count_pairs():
    seeds, foreground = np.array([0, 3, 0, 0, 0, 0, 7, 0]), np.array([1, 1, 1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(grow(seeds, foreground.astype(bool)), [3, 3, 3, 3, 7, 7, 7, 0])
    true, predicted = np.array([1, 1, 1, 2, 2, 0, 3, 3]), np.array([5, 5, 0, 6, 6, 6, 0, 0])
    assert instance_scores(true, predicted) == {"f1": 0.8, "precision": 1.0, "recall": 2 / 3}
    assert instance_scores(true, predicted, iou=0.7)["f1"] == 0
    assert instance_scores(true * 0, predicted * 0)["f1"] == 0


def filled(ds):
    """Return a label image of one instance, which is much larger than a block of windows."""
    return xr.Dataset(
        {"image": (("t", "y", "x"), np.ones((1, 400, 400))), "cells": (("t", "y", "x"), np.ones((1, 400, 400), int))}
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda ds: ds.assign(cells=ds.cells / 2), "'flow_y.cells.' is made from a label image, .* has float64"),
        (lambda ds: ds.rename(y="row"), "'flow_y.cells.': instances of 'cells' lie along row and x, not along y"),
        (lambda ds: ds.drop_vars("cells"), "has no variable 'flow_y.cells.'"),
        (filled, "an instance reaches more than 64 points along 'y' beyond .* take border or distance"),
    ],
)
def test_label_images_that_do_not_fit_are_refused(labels, monkeypatch, change, fault):
    monkeypatch.setattr(instance_targets, "MOST_REACH", 64)
    data = change(dataset(labels, "memory", None))
    sizes = dict(zip(data.image.dims, (1, 8, 8), strict=True))
    with pytest.raises(UserError, match=fault):
        dsinga.windows(data, inputs="image", targets="flow_y(cells)", input_dims=sizes, memory=1 << 20).read([0])


def test_an_instance_that_reaches_as_far_as_is_read_has_flows(labels, monkeypatch):
    column = xr.Dataset({"cells": (("y", "x"), (np.arange(300) < 72)[:, None] * np.ones((1, 4), int))})
    windows = dsinga.windows(
        column, inputs="cells", targets="flow_y(cells)", input_dims={"y": 8, "x": 4}, memory=1 << 20
    )
    variable = windows.dataset["flow_y(cells)"]
    np.testing.assert_array_equal(variable[6::-2, [3, 0]].values, variable.values[6::-2][:, [3, 0]])
    monkeypatch.setattr(instance_targets, "MOST_REACH", 64)
    np.testing.assert_array_equal(variable[:8].values, flows(components(column.cells.values))[0, :8])
    monkeypatch.setattr(instance_targets, "MOST_REACH", 63)
    refused(lambda: variable[:8].compute(), "an instance reaches more than 63 points")


def test_arrays_that_are_no_label_images_are_refused(labels):
    refused(lambda: label_instances(labels[0] > 0, labels > 0), "not planes or volumes of one shape")
    refused(lambda: follow_flows(labels, labels[0] > 0), "flows are .axes, .space., here")
    refused(lambda: instance_scores(labels, labels / 2), "label images are integers of one shape")
    refused(lambda: instance_scores(labels, labels, iou=0.3), "iou is from 0.5")
