"""Checks that the parts of a layer that is cut by space compute what the whole layer does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.layers import Layer, Rows
from dsinga.layers.interface.contract import make_region_part
from dsinga.layers.interface.points import along
from dsinga.layers.interface.region import FILL, Region
from dsinga.net.cut import cut_regions
from dsinga.net.strategy import space_fault
from dsinga.ops import Ops
from dsinga.testing.layer_cases import LayerCase
from dsinga.testing.layer_parts import LayerParts, arrays_of, for_cases, gradient_for
from dsinga.testing.layer_passes import (
    WAIT_SECONDS,
    Passes,
    ThreadCollectives,
    feature_parts,
    layer_context,
    run_passes,
    threads,
)
from dsinga.training import add_metrics


class _Computed(NamedTuple):
    """The passes of a part, and the points of the sources that it took, along the axis of the cut."""

    region: Region
    passes: Passes
    points: np.ndarray


class LayerRegions(LayerParts):
    """The part of :class:`dsinga.testing.LayerContract` that cuts layers by space; see there for its attributes."""

    @for_cases(lambda case: space_cuts(case.layer()) != [])
    def test_regions_of_points_make_the_whole(self, case: LayerCase, ops: Ops) -> None:
        """Two stripes and three along each axis of points."""
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
    """Return the cuts by space that a layer allows, as (axis, number of stripes)."""
    return [
        (axis, parts)
        for axis in range(2, len(layer.field_shape))
        for parts in (2, 3)
        if not space_fault(layer, axis, (parts,))
    ]


def take_points(source: Any, axis: int, points: np.ndarray, layer: Layer, ops: Ops) -> Any:
    """Return an array of these points of a source along an axis."""
    taken = ops.empty((*source.shape[:axis], len(points), *source.shape[axis + 1 :]), source.dtype)
    for place, point in enumerate(points.tolist()):
        index = along(axis, slice(place, place + 1))
        taken[index] = layer.source_fill if point == FILL else source[along(axis, slice(point, point + 1))]
    return taken


def add_points(target: np.ndarray, gradient: np.ndarray, axis: int, points: np.ndarray) -> None:
    """Add the gradients of points to those of a whole source."""
    for place, point in enumerate(points.tolist()):
        if point != FILL:
            target[along(axis, slice(point, point + 1))] += gradient[along(axis, slice(place, place + 1))]
