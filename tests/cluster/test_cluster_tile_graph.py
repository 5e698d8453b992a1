"""Boxes of dask arrays, as tasks get them from chunks, against numpy's take."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.cluster.inference.tile_graph import BlockPlan, map_boxes


def _sum_boxes(shared: float, boxes: dict[str, np.ndarray], factor: float) -> np.ndarray:
    return shared + factor * sum(boxes.values())


def _take(x: np.ndarray, box: tuple[np.ndarray, ...]) -> np.ndarray:
    result = x
    for axis, points in enumerate(box):
        result = np.where(
            (points < 0).reshape([-1 if k == axis else 1 for k in range(x.ndim)]), np.nan, result.take(points, axis)
        )
    return result


@st.composite
def axes(draw: st.DrawFn) -> tuple[tuple[int, ...], np.ndarray]:
    """Return the chunks of an axis, and points of a box: neighbours, mirrored, repeated, or missing ones."""
    chunks = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    length = sum(chunks)
    start, size = draw(st.integers(-4, length)), draw(st.integers(1, 9))
    points = np.arange(start, start + size)
    kind = draw(st.sampled_from(["missing", "clip", "wrap", "mirror", "any"]))
    if kind == "missing":
        points = np.where((points < 0) | (points >= length), -1, points)
    elif kind == "clip":
        points = points.clip(0, length - 1)
    elif kind == "wrap":
        points = points % length
    elif kind == "mirror":
        points = np.abs(points) % length
    else:
        points = np.array(draw(st.lists(st.integers(-1, length - 1), min_size=size, max_size=size)))
    return chunks, points


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
    result = map_boxes(_sum_boxes, shared, {"x": array}, [plan], chunks, np.float64, "sum")
    np.testing.assert_array_equal(result.compute(scheduler="sync"), _take(x, box))


def test_blocks_of_several_arrays_depend_on_the_chunks_that_they_overlap() -> None:
    x, y = np.arange(24.0).reshape(4, 6), 100 * np.arange(4.0)[:, None]
    arrays = {"x": da.from_array(x, chunks=(1, 2)), "y": da.from_array(y, chunks=3)}
    plans = [
        BlockPlan((i, j), {"x": (np.arange(2 * i, 2 * i + 2), np.arange(3 * j, 3 * j + 3)),
                           "y": (np.arange(2 * i, 2 * i + 2), np.zeros(1, int))}, (2.0,))
        for i in range(2) for j in range(2)
    ]  # fmt: skip
    result = map_boxes(_sum_boxes, dask.delayed(7.0), arrays, plans, ((2, 2), (3, 3)), np.float64, "sums")
    np.testing.assert_array_equal(result.compute(), 7 + 2 * (x + y))
    np.testing.assert_array_equal(result[1:3, 2:5].compute(), (7 + 2 * (x + y))[1:3, 2:5])
    graph = dict(result.__dask_graph__())
    overlapped = {key[1:] for key in graph["sums", 1, 0].dependencies if key[0] == arrays["x"].name}
    assert overlapped == {(2, 0), (3, 0), (2, 1), (3, 1)}


def test_integers_that_are_missing_are_zero() -> None:
    array = da.from_array(np.ones(3, np.int16), chunks=2)
    plan = BlockPlan((0,), {"x": (np.array([-1, 0, 2]),)}, (1,))
    result = map_boxes(_sum_boxes, dask.delayed(0), {"x": array}, [plan], ((3,),), np.int16, "integers")
    np.testing.assert_array_equal(result.compute(), [0, 1, 1])


@pytest.mark.parametrize("missing", [True, False])
def test_a_box_without_any_point_needs_no_chunk(missing: bool) -> None:
    array = da.from_array(np.ones(3), chunks=1)
    plan = BlockPlan((0,), {"x": (np.array([-1, -1] if missing else [], int),)}, (1.0,))
    result = map_boxes(_sum_boxes, dask.delayed(0.0), {"x": array}, [plan], ((2 * missing,),), float, f"none{missing}")
    assert np.isnan(result.compute()).tolist() == [True] * (2 * missing)
