"""Predictions of Datasets against the net's feature of whole fields, which are read as records of windows."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

import dsinga
from dsinga.addons.fields.prediction import tiles as field_tiles
from dsinga.addons.fields.prediction.field_prediction import predict_dataset
from dsinga.addons.fields.prediction.prediction_blocks import BlockPlan, map_selections
from dsinga.addons.fields.records.definition import EDGES, WindowDefinition
from dsinga.addons.fields.records.window_arguments import define_windows
from dsinga.base.errors import UserError
from dsinga.models.blocks import layer
from tests.support.field_nets import convolutions, define, make_dataset, make_job, make_params, whole_fields
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_tiles, "TILE_BYTES", 4 * 20 * 17 * 17)
    monkeypatch.setattr(field_tiles, "LEAST_CORE", 8)


def predict(dataset: Any, definition: WindowDefinition, layers: Any = None) -> Any:
    job = make_job(layers or convolutions())
    params = make_params(job, definition, make_dataset())
    return predict_dataset(job, params, "end", dataset, definition=definition)


def expected(dataset: Any, definition: WindowDefinition, layers: Any = None) -> np.ndarray:
    job = make_job(layers or convolutions())
    return whole_fields(job, make_params(job, definition, make_dataset()), definition, dataset)


def test_the_prediction_is_a_lazy_dataset_of_the_targets() -> None:
    dataset, definition = make_dataset(), define()
    predicted = predict(dataset, definition)
    assert list(predicted.data_vars) == ["t"]
    assert predicted.t.chunks is not None
    assert predicted.t.dims == ("time", "latitude", "longitude")
    assert predicted.t.attrs == {"units": "K", "long_name": "temperature"}
    assert predicted.attrs == {"title": "fields"}
    assert predicted.latitude.attrs == {"units": "degrees_north"}
    for name in ("latitude", "longitude", "area"):
        np.testing.assert_array_equal(predicted[name], dataset[name])
    step = np.timedelta64(6, "h")
    np.testing.assert_array_equal(predicted.time, dataset.time.values[1:] + step)  # the last lies beyond the data
    np.testing.assert_array_equal(predicted.t, expected(dataset, definition)[:, 0])


CONTEXT = {"time": (1, 0), "latitude": 2, "longitude": 2}


@pytest.mark.parametrize("edges", EDGES[1:])
def test_chunks_and_arrays_in_memory_give_the_same_bits(small_tiles: None, edges: str) -> None:
    dataset, layers = make_dataset(time=4), convolutions(pad=0)
    definition = define(context=CONTEXT, edges=dict.fromkeys(CONTEXT, edges))  # along time, too
    whole = expected(dataset, definition, layers)[:, 0]
    np.testing.assert_array_equal(predict(dataset, definition, layers).t, whole)
    chunked = dataset.chunk(time=2, latitude=10)
    np.testing.assert_array_equal(predict(chunked, definition, layers).t, whole)
    depending = chunked + chunked.mean("time") * 0  # chunks that depend on all others
    np.testing.assert_array_equal(predict(depending, definition, layers).t, whole)


def test_points_without_context_are_nan(small_tiles: None) -> None:
    dataset = make_dataset()
    definition = define(context={"time": (1, 0), "latitude": 2, "longitude": (2, 2)})
    predicted = predict(dataset, definition, convolutions(pad=0))
    assert predicted.t.shape == (11, 37, 52)
    whole = np.full(predicted.t.shape, np.nan, np.float32)
    whole[:, 2:-2, 2:-2] = expected(dataset, definition, convolutions(pad=0))[:, 0]
    np.testing.assert_array_equal(predicted.t, whole)
    assert predicted.t.chunks[1:] == ((37,), (52,))


def test_several_targets_levels_and_steps() -> None:
    dataset = make_dataset()
    definition = define(targets=["z", "t"], input_dims={"time": 2, "latitude": 16, "longitude": 16}, lead={"time": 2})
    predicted = predict(dataset, definition, convolutions(6))
    feature = expected(dataset, definition, convolutions(6))  # windows begin at the steps 1, 3, 5, 7, 9
    assert feature.shape == (5, 6, 37, 52)
    assert predicted.z.dims == ("time", "level", "latitude", "longitude")
    z = feature[:, :4].reshape(5, 2, 2, 37, 52).transpose(0, 2, 1, 3, 4).reshape(10, 2, 37, 52)
    np.testing.assert_array_equal(predicted.z, z)
    np.testing.assert_array_equal(predicted.t, feature[:, 4:].reshape(10, 37, 52))
    np.testing.assert_array_equal(predicted.level, dataset.level)
    np.testing.assert_array_equal(predicted.time[:9], dataset.time[3:])


def test_a_target_that_the_dataset_lacks() -> None:
    predicted = predict(make_dataset(), define(targets=["rain"], lead={}))
    assert predicted.rain.dims == ("time", "latitude", "longitude")
    assert predicted.rain.shape == (11, 37, 52)


def test_a_data_array_with_levels_as_samples() -> None:
    dataset = make_dataset()
    settings = {"inputs": ["z"], "targets": ["z"], "static": [], "coordinates": [], "lead": {}, "context": {}}
    definition = define(**settings, input_dims={"time": 1, "level": 1, "latitude": 16, "longitude": 16})
    predicted = predict(dataset.z, definition)
    whole = expected(dataset, definition)
    np.testing.assert_array_equal(predicted.z, whole.reshape(dataset.z.shape))


def test_masked_points_are_nan_in_the_prediction(small_tiles: None) -> None:
    dataset = make_dataset()
    land = dataset.h > 0.5
    masked = dataset.assign(t=dataset.t.where(~land))
    definition = define(mask=["t"], fill={"t": 0.25})
    predicted = predict(masked, definition)
    whole = np.where(land, np.nan, expected(masked, definition)[:, 0])
    np.testing.assert_array_equal(predicted.t, whole)
    refused(lambda: predict(masked, define()).compute(), r"'t' has NaN at time=2020-01-01, latitude=")


def test_a_net_of_windows_of_one_size_predicts_fields_of_that_size() -> None:
    fixed = [
        layer("ip", "kInnerProduct", "data", innerproduct_conf={"num_output": 16 * 16}),
        layer("end", "kReshape", "ip", reshape_conf={"shape": [1, 16, 16]}),
    ]
    dataset, definition = make_dataset(), define()
    part = dataset.isel(latitude=slice(16), longitude=slice(16))
    np.testing.assert_array_equal(predict(part, definition, fixed).t, expected(part, definition, fixed)[:, 0])
    refused(lambda: predict(dataset, definition, fixed), "takes windows of 16 x 16 points, but not fields of 37 x 52")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.drop_vars("z"), "no variable 'z'"),
        (lambda ds: ds.isel(time=slice(1)), "no window fits along 'time'"),
        (lambda ds: ds.rename(time="times"), "names the dimension 'time', which .* do not have; did you mean 'times'"),
        (lambda ds: ds.isel(time=[0, 2, 1]), "coordinates of 'time' do not increase"),
        (lambda ds: ds.isel(level=[0]), r"param 'c0_weight' of shape \(4, 54\), but the given one has \(4, 72\)"),
        (lambda ds: ds.values, "cut out of an xarray Dataset or DataArray"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(change: Callable[[Any], Any], message: str) -> None:
    refused(lambda: predict(change(make_dataset()), define()), message)


def test_windows_whose_targets_have_no_coordinate_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)  # which a LocalCluster of an earlier test may have raised
    dataset, definition = make_dataset(), define()
    gaps = dataset.isel(time=[0, 1, 2, 4, 7, 8])
    predicted = predict(gaps, definition.replace(over_gaps=True))
    np.testing.assert_array_equal(predicted.time, gaps.time[2:])
    assert "1 of 5 windows along 'time' are not predicted: their targets lie beyond the data" in caplog.text
    months = dataset.assign_coords(time=np.arange("2019-03", "2020-03", dtype="datetime64[M]").astype("datetime64[ns]"))
    assert str(predict(months, definition).time.values[-1]).startswith("2020-03-01")
    with pytest.raises(UserError, match="1 of 1 windows along 'time' are not predicted: .* give more data"):
        predict(dataset.isel(time=[0, 1, 4]).isel(time=[1, 2]).assign_coords(time=["a", "b"]), definition)


def test_a_layer_that_does_not_fit_the_targets_is_refused() -> None:
    dataset, definition = make_dataset(), define()
    job = make_job(convolutions(3))
    params = make_params(job, definition, dataset)
    refused(lambda: predict_dataset(job, params, "end", dataset, definition=definition), "'end' gives 3 x", "targets")
    refused(lambda: predict_dataset(job, params, "ends", dataset, definition=definition), "'ends'", "mean 'end'")
    with pytest.raises(UserError, match="windows have no targets"):
        predict_dataset(job, params, "end", dataset, definition=definition.replace(targets=()))


def test_volumes_of_three_axes_of_space(small_tiles: None) -> None:
    dataset = make_dataset(time=3, latitude=19, longitude=20)
    volumes = dataset.z.rename(level="depth").drop_vars("depth").pad(depth=(0, 11), mode="wrap").to_dataset()
    sizes = {"time": 1, "depth": 8, "latitude": 8, "longitude": 8}
    context = {"depth": 1, "latitude": 2, "longitude": (2, 1)}
    definition = define_windows(
        inputs="z", targets="z", input_dims=sizes, context=context, edges=dict.fromkeys(context, "reflect")
    )
    kernel = {"kernel_x": 4, "kernel_y": 5, "kernel_z": 3}
    end = layer("end", "kConvolution", "data", convolution_conf={"num_filters": 1, **kernel})
    job = make_job([end])
    params = make_params(job, definition, volumes)
    predicted = predict_dataset(job, params, "end", volumes.chunk(latitude=7), definition=definition)
    assert [len(sizes) for sizes in predicted.z.chunks] == [1, 1, 3, 1]
    np.testing.assert_array_equal(predicted.z, whole_fields(job, params, definition, volumes)[:, 0])


@pytest.mark.parametrize(("leads", "decoded"), [(None, True), (2, "all")])
def test_grid_mappings_and_bounds_are_copied(tmp_path: Path, leads: int | None, decoded: Any) -> None:
    """They have the points of their coordinates; those of time go on beyond the data, as the next month does."""
    ends = np.arange("2019-03", "2020-06", dtype="datetime64[M]").astype("datetime64[ns]")
    dataset = make_dataset(latitude=8, longitude=10).drop_vars("area")
    latitudes = dataset.latitude.values
    bounds = {"time": np.stack([ends[:12], ends[1:13]], 1), "latitude": np.stack([latitudes - 0.5, latitudes + 0.5], 1)}
    dataset = dataset.assign_coords(time=ends[:12] + (ends[1:13] - ends[:12]) / 2)
    dataset = dataset.assign({f"{dim}_bnds": ((dim, "bnds"), values) for dim, values in bounds.items()}).assign(crs=7)
    for dim in bounds:
        dataset[dim].attrs["bounds"] = f"{dim}_bnds"
    dataset.t.attrs["grid_mapping"] = "crs"
    dataset.time.encoding["units"] = dataset.time_bnds.encoding["units"] = "hours since 2000-01-01"
    dataset.to_netcdf(tmp_path / "data.nc")
    dataset = xr.open_dataset(tmp_path / "data.nc", decode_coords=decoded)
    definition = define(inputs=["t"], static=[], input_dims={"time": 1, "latitude": 8, "longitude": 10})
    job = make_job(convolutions())
    params = make_params(job, definition, dataset)
    for data in (dataset, dataset.sortby("latitude")):
        data.attrs = {}
        predicted = predict_dataset(job, params, "end", data, definition=definition, leads=leads)
        predicted.to_netcdf(tmp_path / f"{data.latitude.values[0]}.nc")
        with xr.open_dataset(tmp_path / f"{data.latitude.values[0]}.nc", decode_coords="all") as read:
            assert {"crs", "time_bnds", "latitude_bnds"} <= set(read.coords)
            np.testing.assert_array_equal(read.latitude_bnds, data.latitude_bnds)
            first = 1 if leads else 2  # the time of the last input, or of the target
            np.testing.assert_array_equal(read.time_bnds, np.stack([ends, np.roll(ends, -1)], 1)[first : first + 11])
            assert read.crs == 7
    default = [part.name for part in dsinga.windows(dataset, input_dims={"time": 1}).layout.inputs]
    assert default == ["t", "z", "h"]
    dataset.close()


# Boxes of dask arrays, as tasks get them from chunks, against numpy's take.
def _sum_boxes(shared: float, boxes: dict[str, np.ndarray], factor: float) -> np.ndarray:
    return shared + factor * sum(boxes.values())


@st.composite
def axes(draw: st.DrawFn) -> tuple[tuple[int, ...], np.ndarray]:
    """Return the chunks of an axis, and increasing points of a box: neighbours, the ends, or any."""
    chunks = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    length = sum(chunks)
    points = np.arange(draw(st.integers(-4, length)), draw(st.integers(0, length + 9)))
    kind = draw(st.sampled_from(["inside", "periodic", "any"]))
    if kind == "inside":
        points = points.clip(0, length - 1)
    elif kind == "periodic":
        points = points % length
    else:
        points = np.array(draw(st.lists(st.integers(0, length - 1), max_size=9)), int)
    return chunks, np.unique(points)


@settings(max_examples=80, deadline=None)
@given(axes(), axes())
def test_a_box_is_what_numpy_takes(rows: tuple, columns: tuple) -> None:
    shape = sum(rows[0]), sum(columns[0])
    x = np.random.default_rng(0).normal(size=shape)
    array = da.from_array(x, chunks=(rows[0], columns[0]))
    box = rows[1], columns[1]
    plan = BlockPlan((0, 0), {"x": box}, (1.0,))
    shared = dask.delayed(0.0)
    chunks = tuple((len(points),) for points in box)
    result = map_selections(_sum_boxes, shared, {"x": array}, [plan], chunks, np.float64, "sum")
    np.testing.assert_array_equal(result.compute(scheduler="sync"), x[np.ix_(*box)])


def test_tasks_compute_chunks_that_depend_on_no_others_and_share_the_rest() -> None:
    x, y = np.arange(24.0).reshape(4, 6), 100 * np.arange(4.0)[:, None]
    alone = da.from_array(x, chunks=(1, 2)) + 1
    summed = da.from_array(y, chunks=3) + da.from_array(y, chunks=3).sum()
    arrays = dict(zip("xy", dask.optimize(alone, summed), strict=True))
    plans = [
        BlockPlan((i, j), {"x": (np.arange(2 * i, 2 * i + 2), np.arange(3 * j, 3 * j + 3)),
                           "y": (np.arange(2 * i, 2 * i + 2), np.zeros(1, int))}, (2.0,))
        for i in range(2) for j in range(2)
    ]  # fmt: skip
    result = map_selections(_sum_boxes, dask.delayed(7.0), arrays, plans, ((2, 2), (3, 3)), np.float64, "sums")
    expected = 7 + 2 * (x + 1 + y + y.sum())
    np.testing.assert_array_equal(result.compute(), expected)
    np.testing.assert_array_equal(result[1:3, 2:5].compute(), expected[1:3, 2:5])
    graph = dict(result.__dask_graph__())
    needed = graph["sums", 1, 0].dependencies
    assert not [key for key in needed if isinstance(key, tuple) and key[0] == arrays["x"].name]
    assert len([key for key in needed if isinstance(key, tuple)]) == 2  # the chunks of y with rows 2 and 3


def test_persisted_chunks_are_those_that_the_cluster_keeps(threads: Client) -> None:
    x = np.arange(10.0)
    array = da.from_array(x, chunks=3).persist()
    plans = [BlockPlan((i,), {"x": (np.arange(4 * i, min(4 * i + 4, 10)),)}, (1.0,)) for i in range(3)]
    result = map_selections(_sum_boxes, dask.delayed(0.0), {"x": array}, plans, ((4, 4, 2),), np.float64, "kept")
    np.testing.assert_array_equal(result.compute(), x)
