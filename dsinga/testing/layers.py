"""LayerContract: tests that every layer must pass, on every backend that loads on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsinga.job import Phase
from dsinga.layers import Layer
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.ops import BACKENDS, Ops
from dsinga.testing.layer_cases import LayerCase
from dsinga.testing.layer_parts import LayerRegions, for_cases, gradient_for
from dsinga.testing.layer_passes import (
    Passes,
    assert_slopes,
    feature_parts,
    layer_context,
    objective,
    on_device,
    on_host,
    output_on_host,
    random_gradient,
    run_passes,
)

with_gradient = for_cases(lambda case: case.has_gradient)
without_gradient = for_cases(lambda case: not case.has_gradient)


class LayerContract(LayerRegions):
    """The tests that every layer must pass; a subclass, named ``Test...``, lists the ``cases`` of a layer.

    A layer must:

    - have the declared shapes and dtypes;
    - be a pure function of read-only arrays;
    - return its feature's (or loss's) derivative as its gradient, compared with central differences in float64;
    - agree across backends;
    - compute for some rows of the batch the same as for these rows of the whole;
    - with a ``connection``, compute for some features the same as the whole layer, with its random numbers;
    - if it is cut ``by_space``, compute for some points the same as the whole layer.

    >>> from dsinga.testing import LayerCase, LayerContract
    >>> class TestMine(LayerContract):  # in a file test_mine.py that registers the layer "Mine", run by pytest
    ...     cases = [LayerCase("Mine", [(5, 3)])]

    ``backends`` names the kernel backends to check, None for all that load. ``tolerances`` has each backend's largest
    relative and absolute difference between results in float32, 2e-5 by default.
    """

    def test_the_feature_has_the_declared_shape_and_dtype(self, case: LayerCase, ops: Ops) -> None:
        """The feature has the declared shape and dtype, and only untrained params have a lasting state."""
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        for phase in (Phase.kTrain, Phase.kTest):
            output = layer.compute_feature(params, sources, layer_context(ops, case.batch, phase))
            declared = tuple(layer.part_shapes) or (layer.shape,)
            assert tuple(part.shape for part in feature_parts(layer, output)) == declared
            assert {part.dtype.type for part in feature_parts(layer, output)} == {case.feature_dtype}
            assert set(output.state) <= {spec.role for spec in layer.params if not spec.trainable}

    @with_gradient
    def test_gradients_have_the_shape_and_dtype_of_what_they_are_for(self, case: LayerCase, ops: Ops) -> None:
        """Sources that need it and trainable params get a gradient of their shape and dtype; others None."""
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        ctx, needs = layer_context(ops, case.batch), case.needs()
        output = layer.compute_feature(params, sources, ctx)
        grad = on_device(random_gradient(layer, output), ops)
        for_sources, for_params = layer.compute_gradient(params, sources, output, grad, needs, ctx)
        for source, gradient, need in zip(sources, for_sources, needs, strict=True):
            assert (gradient is not None) == need
            assert gradient is None or (gradient.shape, gradient.dtype) == (source.shape, source.dtype)
        for param, spec, gradient in zip(params, layer.params, for_params, strict=True):
            assert param.shape == spec.shape
            assert (gradient is not None) == spec.trainable
            assert gradient is None or (gradient.shape, gradient.dtype) == (param.shape, param.dtype)

    @without_gradient
    def test_a_layer_without_a_gradient_returns_none_and_has_no_params(self, case: LayerCase, ops: Ops) -> None:
        """An input, label or output layer returns None for gradients and has no params."""
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        ctx = layer_context(ops, case.batch)
        output = layer.compute_feature(params, sources, ctx)
        gradients = layer.compute_gradient(params, sources, output, None, [False] * len(sources), ctx)
        assert [list(arrays) for arrays in gradients] == [[None] * len(sources), []]
        assert not layer.params

    @with_gradient
    def test_gradients_that_no_source_needs_are_not_computed(self, case: LayerCase, ops: Ops) -> None:
        """If no source needs a gradient, the gradients for params stay the same."""
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        ctx = layer_context(ops, case.batch)
        output = layer.compute_feature(params, sources, ctx)
        grad, no_needs = on_device(random_gradient(layer, output), ops), [False] * len(sources)
        _, expected = layer.compute_gradient(params, sources, output, grad, case.needs(), ctx)
        for_sources, for_params = layer.compute_gradient(params, sources, output, grad, no_needs, ctx)
        assert len(for_sources) == len(sources)
        assert all(gradient is None for gradient in for_sources), "where needs[i] is False, return None for source i"
        assert_same(on_host(expected, ops), on_host(for_params, ops))

    def test_a_layer_is_a_pure_function(self, case: LayerCase, ops: Ops) -> None:
        """A second layer gives the same bits from the same arrays, and leaves the first results alone."""
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        ctx, grad = layer_context(ops, case.batch), gradient_for(case, params, sources, ops)
        first = run_passes(layer, params, sources, ctx, grad, case.needs())
        before = [None if array is None else np.array(array) for array in arrays_of(layer, first)]
        second = run_passes(case.layer(), params, sources, ctx, grad, case.needs())
        assert_same(before, arrays_of(layer, first))
        assert_same(before, arrays_of(layer, second))
        assert first.output.metrics == second.output.metrics
        numbers = {name for name, value in metric_values(first.output.metrics).items() if not isinstance(value, list)}
        assert numbers <= {*layer.metric_names}, "declare all metrics in metric_names"

    def test_phases_differ_only_where_the_case_says_so(self, case: LayerCase, ops: Ops) -> None:
        """Validation and test compute the same bits, and change no lasting state except states by rows."""
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        train, val, test = (
            output_on_host(layer.compute_feature(params, sources, layer_context(ops, case.batch, phase)), ops)
            for phase in (Phase.kTrain, Phase.kVal, Phase.kTest)
        )
        assert_same(feature_parts(layer, val), feature_parts(layer, test))
        assert set(test.state) <= {spec.role for spec in layer.params if spec.by_rows}
        pairs = list(zip(feature_parts(layer, train), feature_parts(layer, test), strict=True))
        tolerance = self.tolerance(ops)
        same = all(a.shape == b.shape and np.allclose(a, b, atol=tolerance) for a, b in pairs)
        assert case.phases_differ != same, "set phases_differ where training gives another feature, and only there"

    @with_gradient
    def test_the_gradient_is_the_derivative(self, case: LayerCase) -> None:
        """Gradients equal central differences in float64, for sources and params."""
        ops, layer, needs = BACKENDS["numpy"](), case.layer(), case.needs()
        params, sources = case.inputs(ops, np.float64)
        ctx = layer_context(ops, case.batch)
        grad = random_gradient(layer, layer.compute_feature(params, sources, ctx))
        _, for_sources, for_params = run_passes(layer, params, sources, ctx, grad, needs)

        def vary(arrays: list[Any], index: int) -> Callable[[np.ndarray], float]:
            def value(moved: np.ndarray) -> float:
                changed = [*arrays[:index], moved, *arrays[index + 1 :]]
                arguments = (changed, sources) if arrays is params else (params, changed)
                return objective(layer, layer.compute_feature(*arguments, ctx), grad)

            return value

        for arrays, gradients in ((sources, for_sources), (params, for_params)):
            for index, gradient in enumerate(gradients):
                if gradient is not None:
                    assert gradient.dtype == np.float64
                    assert_slopes(vary(arrays, index), arrays[index], gradient)

    def test_a_backend_agrees_with_numpy_in_float64(self, case: LayerCase, ops: Ops) -> None:
        """Each backend's features and gradients in float32 agree with numpy's in float64."""
        reference, layer, needs, batch = BACKENDS["numpy"](), case.layer(), case.needs(), case.batch
        exact, single = case.inputs(reference, np.float64), case.inputs(ops, np.float32)
        grad = rounded = gradient_for(case, *exact, reference)
        if grad is not None:
            rounded = [g.astype(np.float32) for g in grad] if layer.part_shapes else grad.astype(np.float32)
        expected = run_passes(layer, *exact, layer_context(reference, batch), grad, needs)
        actual = run_passes(layer, *single, layer_context(ops, batch), rounded, needs)
        arrays = zip(arrays_of(layer, actual), arrays_of(layer, expected), strict=True)
        for array, other in arrays:
            assert (array is None) == (other is None)
            if array is not None:
                self.assert_close(array, other, self.tolerance(ops))


def arrays_of(layer: Layer, passes: Passes) -> list[Any]:
    """Return all arrays that a layer's passes computed, None for missing gradients."""
    states = passes.output.state.values()
    return [*feature_parts(layer, passes.output), *states, *passes.for_sources, *passes.for_params]


def assert_same(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    """Assert that arrays have equal bits, and are None at the same places."""
    for array, other in zip(actual, expected, strict=True):
        assert array is other is None or np.array_equal(array, other)
