"""Boxes of dask arrays, as tasks get them from chunks, against numpy's take."""

import dask
import dask.array as da
import numpy as np
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.addons.fields.prediction.prediction_blocks import BlockPlan, map_selections


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
