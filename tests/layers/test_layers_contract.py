"""The contract that every layer passes: shapes, gradients, dtypes, purity, phases, and that cut batches add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dsinga.errors import UserError
from dsinga.job import LayerType, Phase
from dsinga.layers import Context, Layer, Output, Records, Rows
from dsinga.ops import BACKENDS, Ops, SparseRows
from dsinga.registry import lookup
from tests.support.device_array import DeviceArray, StubOps
from tests.support.layer_cases import (
    BATCH,
    CASES,
    FEED_FORWARD,
    LATER,
    Case,
    Together,
    context,
    frozen,
    on_device,
    on_host,
    parts_of,
    read,
    source_needs,
)


def why_missing(backend: str) -> str:
    """Why there is no such backend here, the empty string if there is."""
    if backend not in BACKENDS:
        return f"there is no backend {backend}"
    try:
        BACKENDS[backend]()
    except UserError as error:
        return str(error)
    return ""


WAIT = 20.0  # seconds
# How often layers fetch something from the device, in two phases: what is ranked, rows of a table that are to travel.
FETCHES = {"kArgSort": 2, "kAccuracy": 2, "kEntityF1": 2, "kEmbedding": 2, "kRNNDummy": 2}
INTEGERS = ("kArgSort", "kAccuracy", "kCRF", "kEntityF1", "kCharRNN", "kRNNLabel")  # features that are
NO_CUPY = why_missing("cupy")
every_case = pytest.mark.parametrize("case", CASES, ids=str)
with_gradient = pytest.mark.parametrize("case", [case for case in CASES if case.has_gradient], ids=str)
without_gradient = pytest.mark.parametrize("case", [case for case in CASES if not case.has_gradient], ids=str)


def test_every_feed_forward_type_has_a_class_and_a_case():
    assert {case.kind for case in CASES} == set(FEED_FORWARD)
    assert {kind.name for kind in LayerType} == set(FEED_FORWARD) | LATER
    assert all(issubclass(lookup("layer", kind), Layer) for kind in FEED_FORWARD)


def directions(layer: Layer, output: Output) -> Any:
    """A gradient to send back: one array for each destination; None for a loss."""
    if layer.is_loss:
        return None
    rng = np.random.default_rng(1)
    grads = [rng.uniform(-1, 1, part.shape).astype(part.dtype) for part in parts_of(layer, output)]
    grads = [frozen(np.copy(grad)) for grad in grads]
    return grads if layer.hands_parts else grads[0]


def objective(layer: Layer, output: Output, grad: Any) -> float:
    """The number whose gradient ``compute_gradient`` gives when it is sent ``grad``."""
    if layer.is_loss:
        total, rows = output.metrics["loss"]
        return total / rows
    grads = grad if layer.hands_parts else [grad]
    return sum(float((part * g).sum()) for part, g in zip(parts_of(layer, output), grads, strict=True))


def numerical_gradient(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of ``function`` in each element of ``at``."""
    gradient = np.empty(at.shape)
    for index in np.ndindex(*at.shape):
        values = []
        for change in (step, -step):
            moved = np.array(at)
            moved[index] += change
            values.append(function(moved))
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


def rows_of(array: Any, rows: Rows) -> Any:
    """The rows of a source: of an array, of labels, or of records."""
    if isinstance(array, Records):
        return Records(*(None if field is None else field[rows.start : rows.stop] for field in array))
    return array[rows.start : rows.stop]


def both_ways(
    layer: Layer, params: Sequence[Any], sources: Sequence[Any], ctx: Context, grad: Any
) -> tuple[Output, Sequence[Any], Sequence[Any]]:
    """Forward and backward: (output, gradients for the sources, gradients for the params), in host memory."""
    output, ops = layer.compute_feature(params, sources, ctx), ctx.ops
    if grad is None and not layer.is_loss:
        return read(output, ops), (), ()
    grad = on_device(grad, ops)
    gradients = layer.compute_gradient(params, sources, output, grad, source_needs(layer), ctx)
    return read(output, ops), *(on_host(for_some, ops) for for_some in gradients)


class LayerContract:
    """Subclasses name a backend, and how near to float64 numpy it comes."""

    backend: str
    tolerance: float

    @pytest.fixture(scope="class")
    @classmethod
    def ops(cls) -> Ops:
        if why := why_missing(cls.backend):
            pytest.skip(why)
        return BACKENDS[cls.backend]()

    def close(self, actual: Any, expected: Any) -> None:
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), self.tolerance, self.tolerance)

    @every_case
    def test_the_feature_has_the_declared_shape_and_dtype(self, case: Case, ops: Ops):
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        for phase in (Phase.kTrain, Phase.kTest):
            output = layer.compute_feature(params, sources, context(ops, phase))
            declared = layer.part_shapes if layer.hands_parts else (layer.shape,)
            assert tuple(part.shape for part in parts_of(layer, output)) == declared
            expected = np.int64 if case.kind in INTEGERS else np.float32
            assert {part.dtype.type for part in parts_of(layer, output)} == {expected}
            assert set(output.state) <= {spec.role for spec in layer.params if not spec.trainable}

    @with_gradient
    def test_gradients_have_the_shape_and_dtype_of_what_they_are_for(self, case: Case, ops: Ops):
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        output, needs = layer.compute_feature(params, sources, context(ops)), source_needs(layer)
        grad = on_device(directions(layer, output), ops)
        for_sources, for_params = layer.compute_gradient(params, sources, output, grad, needs, context(ops))
        for source, given, need in zip(sources, for_sources, needs, strict=True):
            assert (given is not None) == need
            assert not need or (given.shape, given.dtype) == (source.shape, source.dtype)
        for param, spec, given in zip(params, layer.params, for_params, strict=True):
            assert param.shape == spec.shape
            assert (given is not None) == spec.trainable
            assert not spec.trainable or (given.shape, given.dtype) == (param.shape, param.dtype)

    @without_gradient
    def test_a_layer_without_a_gradient_gives_none_and_has_no_params(self, case: Case, ops: Ops):
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        output = layer.compute_feature(params, sources, context(ops))
        nothing = layer.compute_gradient(params, sources, output, None, [False] * len(sources), context(ops))
        assert [list(part) for part in nothing] == [[None] * len(sources), []]
        assert not layer.params

    @with_gradient
    def test_what_nobody_needs_is_not_computed(self, case: Case, ops: Ops):
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        output = layer.compute_feature(params, sources, context(ops))
        grad, wanted = on_device(directions(layer, output), ops), source_needs(layer)
        _, all_params = layer.compute_gradient(params, sources, output, grad, wanted, context(ops))
        none = [False] * len(sources)
        for_sources, for_params = layer.compute_gradient(params, sources, output, grad, none, context(ops))
        assert list(for_sources) == [None] * len(sources)
        for one, other in zip(on_host(all_params, ops), on_host(for_params, ops), strict=True):
            assert one is other is None or np.array_equal(one, other)

    @every_case
    def test_a_layer_is_a_pure_function(self, case: Case, ops: Ops):
        """Its arguments are read-only here; a second call gives the same bits and leaves the first result alone."""
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        grad = self.grad(case, layer, params, sources, ops)
        first = both_ways(layer, params, sources, context(ops), grad)
        arrays = [*parts_of(layer, first[0]), *first[0].state.values(), *first[1], *first[2]]
        before = [None if array is None else np.array(array) for array in arrays]
        second = both_ways(case.layer(), params, sources, context(ops), grad)
        again = [*parts_of(layer, second[0]), *second[0].state.values(), *second[1], *second[2]]
        for was, now, other in zip(before, arrays, again, strict=True):
            assert was is now is other is None or (np.array_equal(was, now) and np.array_equal(was, other))
        assert first[0].metrics == second[0].metrics

    @every_case
    def test_phases_differ_only_where_that_is_meant(self, case: Case, ops: Ops):
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        outputs = {
            phase: read(layer.compute_feature(params, sources, context(ops, phase)), ops)
            for phase in (Phase.kTrain, Phase.kVal, Phase.kTest)
        }
        train, val, test = (parts_of(layer, output) for output in outputs.values())
        assert all(np.array_equal(a, b) for a, b in zip(val, test, strict=True))
        assert outputs[Phase.kTest].saved is None or outputs[Phase.kTest].saved == ()
        by_rows = {spec.role for spec in layer.params if spec.by_rows}  # other phases than training have none
        assert set(outputs[Phase.kTest].state) <= by_rows
        assert case.phases_differ != all(
            a.shape == b.shape and np.allclose(a, b, atol=self.tolerance) for a, b in zip(train, test, strict=True)
        )

    @every_case
    @pytest.mark.parametrize("bounds", [(0, 2, BATCH), (0, 1, 4, BATCH), (0, BATCH, BATCH)], ids=str)
    def test_parts_of_a_batch_add_up_to_the_whole(self, case: Case, ops: Ops, bounds: tuple[int, ...]):
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
        grad = self.grad(case, layer, params, sources, ops)
        output, for_sources, for_params = both_ways(layer, params, sources, context(ops), grad)
        cuts = [Rows(start, stop, BATCH) for start, stop in zip(bounds, bounds[1:], strict=False)]
        together = Together(len(cuts))

        def run(part: int) -> Any:
            rows = cuts[part]
            ctx = context(ops, rows=rows, all_reduce=together.of(part, sum))
            mine = [rows_of(source, rows) for source in sources]
            held = [rows_of(p, rows) if spec.by_rows else p for p, spec in zip(params, layer.params, strict=True)]
            return both_ways(layer, held, mine, ctx, self.grad_of_rows(case, layer, grad, rows))

        with ThreadPoolExecutor(len(cuts)) as threads:
            parts = list(threads.map(run, range(len(cuts)), timeout=WAIT))
        if not case.joins_rows:
            together = zip(*(parts_of(layer, part[0]) for part in parts), strict=True)
            for whole, pieces in zip(parts_of(layer, output), together, strict=True):
                self.close(np.concatenate(pieces), whole)
        for name, (value, rows) in output.metrics.items():
            self.close(sum(part[0].metrics[name][0] for part in parts), value)
            assert sum(part[0].metrics[name][1] for part in parts) == rows
        by_rows = {spec.role for spec in layer.params if spec.by_rows}
        for role, value in output.state.items():
            states = [part[0].state[role] for part in parts]
            if role in by_rows:
                self.close(np.concatenate(states), value)
            else:
                self.close(states, [value] * len(parts))
        for index, whole in enumerate(for_sources):
            if whole is not None:
                self.close(np.concatenate([part[1][index] for part in parts]), whole)
        for index, whole in enumerate(for_params):
            if whole is not None:
                self.close(sum(np.asarray(part[2][index]) for part in parts), whole)

    def grad(self, case: Case, layer: Layer, params: Sequence[Any], sources: Sequence[Any], ops: Ops) -> Any:
        """A gradient to send back, None for layers that get none."""
        if not case.has_gradient:
            return None
        return directions(layer, layer.compute_feature(params, sources, context(ops)))

    def grad_of_rows(self, case: Case, layer: Layer, grad: Any, rows: Rows) -> Any:
        """The rows of the gradient that belong to these rows of the batch, however the layer shuffles them."""
        if grad is None:
            return None
        take = slice(rows.start, rows.stop)
        if case.joins_rows:
            return np.concatenate([piece[take] for piece in np.split(grad, len(layer.source_shapes))])
        if not layer.hands_parts:
            return grad[take]
        if len({part.shape[0] for part in grad} | {BATCH}) == 1:
            return [part[take] for part in grad]
        starts = np.cumsum([0] + [part.shape[0] for part in grad])
        return [part[max(rows.start - s, 0) : max(rows.stop - s, 0)] for part, s in zip(grad, starts, strict=False)]


class TestNumpy(LayerContract):
    backend = "numpy"
    tolerance = 2e-6

    @with_gradient
    def test_the_gradient_is_the_derivative(self, case: Case, ops: Ops):
        layer, (params, sources) = case.layer(), case.inputs(ops, np.float64)
        ctx = context(ops)
        grad = directions(layer, layer.compute_feature(params, sources, ctx))
        _, for_sources, for_params = both_ways(layer, params, sources, ctx, grad)

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
                    expected = numerical_gradient(vary(arrays, index), arrays[index])
                    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


class Fast(LayerContract):
    """A backend that computes in float32."""

    @every_case
    def test_it_agrees_with_numpy_in_float64(self, case: Case, ops: Ops):
        reference, layer = BACKENDS["numpy"](), case.layer()
        exact, single = case.inputs(reference, np.float64), case.inputs(ops, np.float32)
        grad = self.grad(case, layer, *exact, reference)
        rounded = grad
        if grad is not None:
            rounded = [g.astype(np.float32) for g in grad] if layer.hands_parts else grad.astype(np.float32)
        expected = both_ways(layer, *exact, context(reference), grad)
        actual = both_ways(layer, *single, context(ops), rounded)
        for part, other in zip(parts_of(layer, actual[0]), parts_of(layer, expected[0]), strict=True):
            self.close(part, other)
        for gradients, others in zip(actual[1:], expected[1:], strict=True):
            for gradient, other in zip(gradients, others, strict=True):
                assert (gradient is None) == (other is None)
                if gradient is not None:
                    self.close(gradient, other)


class TestOneDNN(Fast):
    backend = "onednn"
    tolerance = 2e-5


if NO_CUPY:

    def test_the_contract_over_cupy():
        pytest.skip(NO_CUPY)

else:

    class TestCuPy(Fast):
        backend = "cupy"
        tolerance = 2e-5


def same(here: Any, there: Any, ops: StubOps) -> None:
    """Check that a device has what numpy has, to the bit, and every float of it on the device."""
    if isinstance(here, (tuple, list)):
        for one, other in zip(here, there, strict=True):
            same(one, other, ops)
    elif here is not None:
        if here.dtype.kind == "f":
            assert isinstance(there, (DeviceArray, SparseRows)), type(there)
        np.testing.assert_array_equal(np.asarray(here), np.asarray(on_host(there, ops)))


@every_case
def test_features_and_gradients_stay_on_the_device(case: Case):
    """No layer touches arrays there but by the backend (see ``device_array.py``), nor brings a feature to the host."""
    layer, host, ops = case.layer(), BACKENDS["numpy"](), StubOps()
    here, there = case.inputs(host, np.float32), case.inputs(ops, np.float32)
    pairs: list[tuple[Any, Any]] = []
    for phase in (Phase.kTest, Phase.kTrain):
        expected = layer.compute_feature(*here, context(host, phase))
        output = layer.compute_feature(*there, context(ops, phase))
        pairs.append((expected.feature, output.feature))
        pairs.append(([*expected.state.values()], [*output.state.values()]))
    if case.has_gradient:
        grad, needs = directions(layer, expected), source_needs(layer)
        own = on_device(grad, ops)
        expected = layer.compute_gradient(*here, expected, grad, needs, context(host))
        pairs.append((expected, layer.compute_gradient(*there, output, own, needs, context(ops))))
    assert not ops.record.syncs
    assert len(ops.record.fetched) <= FETCHES.get(case.kind, 0)
    for one, other in pairs:
        same(one, other, ops)
