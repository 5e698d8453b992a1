"""Tests that a layer cut by rows, by features or by regions computes what the whole layer does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from dsinga.cutting.layer_parts import make_part, make_region_part
from dsinga.cutting.partitioned import cut_regions
from dsinga.cutting.strategy import space_fault
from dsinga.job import Phase
from dsinga.layers import Columns, Connection, Layer, Rows
from dsinga.layers.interface.region import FILL, Region, along
from dsinga.layers.metrics.metric_state import MetricState
from dsinga.ops import BACKENDS, Ops
from dsinga.testing.layer_cases import LayerCase, available_backends
from dsinga.testing.layer_passes import (
    WAIT_SECONDS,
    Passes,
    RecordingContext,
    ThreadCollectives,
    feature_parts,
    layer_context,
    random_gradient,
    run_passes,
    take_columns,
    take_rows,
    threads,
)
from dsinga.training import add_metrics

load_backend = functools.cache(lambda name: BACKENDS[name]())


def for_cases(choose: Callable[[LayerCase], bool]) -> Callable[[Any], Any]:
    """Decorate a test method to run only for the cases that ``choose`` accepts."""

    def decorate(test: Any) -> Any:
        test.choose_case = choose
        return test

    return decorate


def arrays_of(total: Any) -> list[Any]:
    """Convert a summed metric, a number or a state, to arrays that can be compared."""
    return [*total.arrays().values()] if isinstance(total, MetricState) else [total]


class LayerParts:
    """The tests of :class:`dsinga.testing.LayerContract` for cut layers; attributes are listed there."""

    cases: ClassVar[Sequence[LayerCase]] = ()
    backends: ClassVar[Sequence[str] | None] = None
    tolerances: ClassVar[Mapping[str, float]] = {"numpy": 2e-6}

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test for its cases, on each backend (called by pytest)."""
        if "case" in metafunc.fixturenames:
            choose = getattr(metafunc.function, "choose_case", lambda case: True)
            metafunc.parametrize("case", [case for case in cls.cases if is_chosen(case, choose)], ids=str)
        if "ops" in metafunc.fixturenames:
            names = available_backends() if cls.backends is None else cls.backends
            metafunc.parametrize("ops", [load_backend(name) for name in names], ids=names)

    def tolerance(self, ops: Ops) -> float:
        """Return the largest relative and absolute difference allowed for a backend in float32."""
        return self.tolerances.get(ops.name, 2e-5)

    def assert_close(self, actual: Any, expected: Any, tolerance: float) -> None:
        """Assert that arrays differ by at most ``tolerance``, relative or absolute."""
        if not np.array_equal(actual, expected):  # a tenth of the time
            np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), tolerance, tolerance)

    def test_parts_of_a_batch_add_up_to_the_whole(self, case: LayerCase, ops: Ops) -> None:
        """The parts of a batch give the rows of the whole's feature; metrics and param gradients add up.

        The batch is cut into two parts, three uneven ones, and two, one of them empty.
        """
        layer, (params, sources), batch = case.layer(), case.inputs(ops, np.float32), case.batch
        grad = gradient_for(case, params, sources, ops)
        whole = run_passes(layer, params, sources, layer_context(ops, batch), grad, case.needs())
        for bounds in (0, batch // 2, batch), (0, 1, batch - 1, batch), (0, batch, batch):
            rows = [Rows(start, stop, batch) for start, stop in pairwise(bounds)]
            self.check_batch_cut(case, ops, rows, params, sources, grad, whole)

    def check_batch_cut(
        self,
        case: LayerCase,
        ops: Ops,
        rows: Sequence[Rows],
        params: Sequence[Any],
        sources: Sequence[Any],
        grad: Any,
        whole: Passes,
    ) -> None:
        """Assert that parts of a batch, the rows in ``rows``, add up to the passes ``whole`` of all rows."""
        layer, batch = case.layer(), case.batch
        collectives, tolerance = ThreadCollectives(len(rows)), self.tolerance(ops)

        def run(part: int) -> Passes:
            ctx = layer_context(ops, batch, rows=rows[part], all_reduce=collectives.of(part, sum))
            part_params = [
                take_rows(p, rows[part]) if spec.by_rows else p for p, spec in zip(params, layer.params, strict=True)
            ]
            part_sources = [take_rows(source, rows[part]) for source in sources]
            part_grad = gradient_of_rows(case, layer, grad, rows[part])
            return run_passes(layer, part_params, part_sources, ctx, part_grad, case.needs())

        parts = list(threads(len(rows)).map(run, range(len(rows)), timeout=WAIT_SECONDS))
        if not case.joins_rows:
            arrays = zip(*(feature_parts(layer, part.output) for part in parts), strict=True)
            for expected, pieces in zip(feature_parts(layer, whole.output), arrays, strict=True):
                self.assert_close(np.concatenate(pieces), expected, tolerance)
        sums = add_metrics([dict(part.output.metrics) for part in parts])  # a part may lack a metric of other rows
        assert sums.keys() == whole.output.metrics.keys()
        for name, expected in whole.output.metrics.items():
            self.assert_close(sums[name][1], expected[1], tolerance)
            for actual_array, array in zip(arrays_of(sums[name][0]), arrays_of(expected[0]), strict=True):
                self.assert_close(actual_array, array, tolerance)
        by_rows = {spec.role for spec in layer.params if spec.by_rows}
        for role, state in whole.output.state.items():
            states = [part.output.state[role] for part in parts]
            if role in by_rows:
                self.assert_close(np.concatenate(states), state, tolerance)
            else:
                self.assert_close(states, [state] * len(parts), tolerance)
        for index, expected in enumerate(whole.for_sources):
            if expected is not None:
                self.assert_close(np.concatenate([part.for_sources[index] for part in parts]), expected, tolerance)
        for index, expected in enumerate(whole.for_params):
            if expected is not None:
                self.assert_close(sum(np.asarray(part.for_params[index]) for part in parts), expected, tolerance)

    @for_cases(lambda case: case.layer().cut.connection is not None)
    @pytest.mark.parametrize("phase", [Phase.kTrain, Phase.kTest], ids=lambda phase: phase.name)
    def test_parts_cut_by_features_make_the_whole(self, case: LayerCase, ops: Ops, phase: Phase) -> None:
        """Two even parts of a layer's features, and three uneven ones, make the whole."""
        for columns in feature_cuts(case.layer()):
            self.check_feature_cut(case, ops, phase, columns)

    def check_feature_cut(self, case: LayerCase, ops: Ops, phase: Phase, cut: Sequence[Columns]) -> None:
        """Assert that parts of a layer, cut to the columns in ``cut``, compute what the whole layer does."""
        layer, (params, sources), needs = case.layer(), case.inputs(ops, np.float32), case.needs()
        one_to_one, axis = layer.cut.connection is Connection.kOneToOne, layer.cut.axis
        grad = gradient_for(case, params, sources, ops) if phase is Phase.kTrain else None
        ctx = RecordingContext(ops, phase, Rows(0, case.batch, case.batch), seed=7, step=3)
        whole = run_passes(layer, params, sources, ctx, grad, needs)
        results: list[tuple[Layer, Passes]] = []
        for columns in cut:
            part_sources = [
                take_columns(source, axis if one_to_one and index != layer.labels.source else None, columns)
                for index, source in enumerate(sources)
            ]
            part = make_part(layer, [source.shape for source in part_sources], columns)
            assert part.name == layer.name
            assert part.cut.connection is layer.cut.connection
            pairs = list(zip(params, layer.params, strict=True))
            part_params = [take_columns(param, spec.cut_axis, columns) for param, spec in pairs]
            assert [spec.shape for spec in part.params] == [param.shape for param in part_params]
            part_grad: Any = grad
            if grad is not None:
                part_grad = [take_columns(g, axis, columns) for g in (grad if layer.part_shapes else [grad])]
                part_grad = part_grad if layer.part_shapes else part_grad[0]
            part_ctx = RecordingContext(ops, phase, Rows(0, case.batch, case.batch), seed=7, step=3)
            results.append((part, run_passes(part, part_params, part_sources, part_ctx, part_grad, needs)))
            assert part_ctx.draws == ctx.draws, (
                f"{type(layer).__name__}, cut by features, would draw the same random numbers in every part: "
                "pass self.columns, as in ctx.uniform(self.name, n, self.columns), or call self.random(ctx)"
            )
        self._check_joined(layer, whole, results, max(self.tolerance(ops), 1e-5))

    def _check_joined(
        self, layer: Layer, whole: Passes, results: Sequence[tuple[Layer, Passes]], tolerance: float
    ) -> None:
        def assert_joined(pieces: Sequence[Any], expected: Any, axis: int) -> None:
            self.assert_close(np.concatenate(pieces, axis), expected, tolerance)

        parts = [passes for _, passes in results]
        assert not any(part.output.metrics for part in parts), "each part would count the metric once more"
        features = zip(*(feature_parts(part, passes.output) for part, passes in results), strict=True)
        for arrays, expected in zip(features, feature_parts(layer, whole.output), strict=True):
            assert_joined(arrays, expected, layer.cut.axis)
        for role, expected in whole.output.state.items():
            assert_joined([part.output.state[role] for part in parts], expected, 0)
        for index, expected in enumerate(whole.for_sources):
            gradients = [part.for_sources[index] for part in parts]
            if expected is None:
                assert all(gradient is None for gradient in gradients)
            else:
                one_to_one = layer.cut.connection is Connection.kOneToOne
                assert_joined(gradients if one_to_one else [sum(gradients)], expected, layer.cut.axis)
        for index, expected in enumerate(whole.for_params):
            axis = layer.params[index].cut_axis
            if expected is not None:
                gradients = [part.for_params[index] for part in parts]
                assert_joined(gradients if axis is not None else [sum(gradients)], expected, axis or 0)


def is_chosen(case: LayerCase, choose: Callable[[LayerCase], bool]) -> bool:
    """Whether a test runs for ``case``; also if the layer cannot be made, so that the test reports it."""
    try:
        return choose(case)
    except Exception:
        return True


def feature_cuts(layer: Layer) -> list[list[Columns]]:
    """Return the ways to cut a layer's features: two even, two uneven and three parts, if it is wide enough."""
    columns = layer.shape[layer.cut.axis]
    width = layer.cut.groups or columns
    each = columns // width
    cuts = {(0, width // 2, width), (0, 1, width), (0, 1, width // 2 + 1, width)}
    return [
        [Columns(start * each, stop * each, columns) for start, stop in pairwise(cut)]
        for cut in sorted(cuts)
        if all(start < stop for start, stop in pairwise(cut))
    ]


def gradient_for(case: LayerCase, params: Sequence[Any], sources: Sequence[Any], ops: Ops) -> Any:
    """Return a random gradient for a case's feature, None for layers without one."""
    if not case.has_gradient:
        return None
    layer = case.layer()
    return random_gradient(layer, layer.compute_feature(params, sources, layer_context(ops, case.batch)))


def gradient_of_rows(case: LayerCase, layer: Layer, grad: Any, rows: Rows) -> Any:
    """Return the part of a feature's gradient that belongs to ``rows`` of the batch."""
    if grad is None:
        return None
    take = slice(rows.start, rows.stop)
    if case.joins_rows:
        return np.concatenate([piece[take] for piece in np.split(grad, len(layer.source_shapes))])
    if not layer.part_shapes:
        return grad[take]
    if len({part.shape[0] for part in grad} | {case.batch}) == 1:
        return [part[take] for part in grad]
    starts = np.cumsum([0] + [part.shape[0] for part in grad])
    return [part[max(rows.start - s, 0) : max(rows.stop - s, 0)] for part, s in zip(grad, starts, strict=False)]


class _Computed(NamedTuple):
    """The passes of a part, and the source points that it used, along the axis of the cut."""

    region: Region
    passes: Passes
    points: np.ndarray


class LayerRegions(LayerParts):
    """The tests of :class:`dsinga.testing.LayerContract` for layers cut by space; attributes are listed there."""

    @for_cases(lambda case: space_cuts(case.layer()) != [])
    def test_regions_of_points_make_the_whole(self, case: LayerCase, ops: Ops) -> None:
        """Two and three stripes of points, along each axis, make the whole."""
        layer = case.layer()
        params, sources = case.inputs(ops, np.float32)
        grad = gradient_for(case, params, sources, ops)
        whole = run_passes(layer, params, sources, layer_context(ops, case.batch), grad, case.needs())
        for axis, parts in space_cuts(layer):
            self._check_stripes(case, ops, cut_regions(layer.field_shape, axis, (parts,)), params, sources, grad, whole)

    def _check_stripes(
        self,
        case: LayerCase,
        ops: Ops,
        regions: Sequence[Region],
        params: Sequence[Any],
        sources: Sequence[Any],
        grad: Any,
        whole: Passes,
    ) -> None:
        layer, collectives, tolerance = case.layer(), ThreadCollectives(len(regions)), max(self.tolerance(ops), 1e-5)
        axis = regions[0].axis

        def run(region: Region) -> _Computed:
            points = layer.source_points(axis, *region.ranges[0][:2])
            taken = [
                source if layer.is_input or not layer.takes_points(k) else take_points(source, axis, points, layer, ops)
                for k, source in enumerate(sources)
            ]
            shapes = [] if layer.is_input else [source.shape for source in taken]
            part = make_region_part(layer, shapes, region)
            of_part = [region.of(array) for array in grad] if layer.part_shapes and grad is not None else grad
            if grad is not None and not layer.part_shapes:
                of_part = region.of(grad)
            rows, number = Rows(0, case.batch, case.batch), region.number
            ctx = layer_context(ops, case.batch, rows=rows, all_reduce=collectives.of(number, sum))
            return _Computed(region, run_passes(part, params, taken, ctx, of_part, case.needs()), points)

        computed = list(threads(len(regions)).map(run, regions, timeout=WAIT_SECONDS))
        for number, expected in enumerate(feature_parts(layer, whole.output)):
            features = [np.asarray(feature_parts(layer, part.passes.output)[number]) for part in computed]
            shaped = [
                feature.reshape(part.region.part((len(feature), *layer.space_shape[1:])))
                if layer.field_shape != layer.shape
                else feature
                for feature, part in zip(features, computed, strict=True)
            ]
            self.assert_close(np.concatenate(shaped, axis).reshape(np.shape(expected)), expected, tolerance)
        sums = add_metrics([dict(part.passes.output.metrics) for part in computed])
        for name, (total, count) in whole.output.metrics.items():
            self.assert_close(sums[name][1], count, tolerance)
            for actual, array in zip(arrays_of(sums[name][0]), arrays_of(total), strict=True):
                self.assert_close(actual, array, tolerance)
        for role, state in whole.output.state.items():
            self.assert_close([part.passes.output.state[role] for part in computed], [state] * len(computed), tolerance)
        for index, expected in enumerate(whole.for_sources):
            if expected is not None:
                actual = np.zeros(np.shape(expected), np.float32)
                for part in computed:
                    gradient = np.asarray(part.passes.for_sources[index])
                    if layer.takes_points(index):
                        add_points(actual, gradient, axis, part.points)
                    else:
                        actual += gradient
                self.assert_close(actual, expected, tolerance)
        for index, expected in enumerate(whole.for_params):
            if expected is not None:
                gradients = [np.asarray(part.passes.for_params[index]) for part in computed]
                self.assert_close(sum(gradients), expected, tolerance)


def space_cuts(layer: Layer) -> list[tuple[int, int]]:
    """Return the ways to cut a layer by space, as (axis, number of stripes)."""
    return [
        (axis, parts)
        for axis in range(2, len(layer.field_shape))
        for parts in (2, 3)
        if not space_fault(layer, axis, (parts,))
    ]


def take_points(source: Any, axis: int, points: np.ndarray, layer: Layer, ops: Ops) -> Any:
    """Select points of a source along an axis; padding is filled."""
    taken = ops.empty((*source.shape[:axis], len(points), *source.shape[axis + 1 :]), source.dtype)
    for place, point in enumerate(points.tolist()):
        index = along(axis, slice(place, place + 1))
        taken[index] = layer.source_fill if point == FILL else source[along(axis, slice(point, point + 1))]
    return taken


def add_points(target: np.ndarray, gradient: np.ndarray, axis: int, points: np.ndarray) -> None:
    """Add the gradients of some points to a whole source's gradient."""
    for place, point in enumerate(points.tolist()):
        if point != FILL:
            target[along(axis, slice(point, point + 1))] += gradient[along(axis, slice(place, place + 1))]
