"""The layer contract passes a user's right layer and names the fault of a wrong one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsinga.base import registry
from dsinga.base.errors import UserError
from dsinga.job import Phase
from dsinga.layers import Connection, Cut, Layer, Output, ParamSpec
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase, LayerContract
from tests.support.refusals import refused
from tests.support.registries import restored_registry

NUMPY = BACKENDS["numpy"]()
SHAPES = [(5, 4)]


class NoisyScale(Layer):
    """Columns times a factor each, plus noise in training; right in every respect."""

    source_count = 1
    cut = Cut(Connection.kOneToOne)

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("factor", self.shape[1:]),)

    def noise(self, ctx):
        return ctx.uniform(self.name, self.shape[1], self.columns)

    def compute_feature(self, params, sources, ctx):
        x = sources[0] * params[0]
        return Output(x + self.noise(ctx).astype(x.dtype) if ctx.training else x)

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        return (grad * params[0] if needs[0] else None,), ((grad * sources[0]).sum(axis=0),)


registry.register("layer", "NoisyScale")(NoisyScale)


class TestNoisyScale(LayerContract):
    cases = [LayerCase("NoisyScale", SHAPES, phases_differ=True)]


class SameNoise(NoisyScale):
    def noise(self, ctx):
        return ctx.uniform(self.name, self.shape[1])


class SameNoiseOnTheDevice(NoisyScale):
    def noise(self, ctx):
        return ctx.ops.to_numpy(ctx.random(self.name, self.shape[1]))


class NoiseOfThePart(NoisyScale):
    def noise(self, ctx):
        return ctx.uniform(f"{self.name}{self.columns}", self.shape[1])


class WrongSlope(NoisyScale):
    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        (dx,), params = super().compute_gradient(params, sources, output, grad, needs, ctx)
        return (None if dx is None else 2 * dx,), params


class AlwaysComputes(NoisyScale):
    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        return super().compute_gradient(params, sources, output, grad, [True], ctx)


class Counts(NoisyScale):
    calls = 0

    def noise(self, ctx):
        type(self).calls += 1
        return super().noise(ctx) + type(self).calls


class Centred(NoisyScale):
    def compute_feature(self, params, sources, ctx):
        return Output(super().compute_feature(params, sources, ctx).feature - sources[0].mean(axis=0))


class Writes(NoisyScale):
    def compute_feature(self, params, sources, ctx):
        sources[0][0] = 0
        return super().compute_feature(params, sources, ctx)


class Wide(NoisyScale):
    def compute_feature(self, params, sources, ctx):
        return Output(super().compute_feature(params, sources, ctx).feature.astype(np.float64))


class Uncut(NoisyScale):
    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.params = (ParamSpec("factor", self.shape[1:], cut_axis=None),)


class Plain(NoisyScale):
    def noise(self, ctx):
        return np.zeros(self.shape[1:], np.float32)


@pytest.fixture
def case_of() -> Iterator[object]:
    """Register a class for the time of a test, and return a case of it."""

    def case_of(cls: type[Layer]) -> LayerCase:
        registry.register("layer", cls.__name__)(cls)
        return LayerCase(cls.__name__, SHAPES, phases_differ=True)

    with restored_registry():
        yield case_of


@pytest.mark.parametrize("cls", [SameNoise, SameNoiseOnTheDevice, NoiseOfThePart])
def test_parts_with_the_same_random_numbers_are_found(case_of, cls: type[Layer]):
    contract, case = LayerContract(), case_of(cls)
    with pytest.raises(AssertionError, match=f"{cls.__name__}, cut by features, .* self.columns"):
        contract.test_parts_cut_by_features_make_the_whole(case, NUMPY, Phase.kTrain)
    contract.test_parts_cut_by_features_make_the_whole(case, NUMPY, Phase.kTest)
    contract.test_parts_of_a_batch_add_up_to_the_whole(case, NUMPY)


ON_NUMPY = {"ops": NUMPY}
FAULTS: list[tuple[type[Layer], str, dict[str, Any], type[Exception], str]] = [
    (WrongSlope, "the_gradient_is_the_derivative", {}, AssertionError, "Not equal to tolerance"),
    (
        *(AlwaysComputes, "gradients_that_no_source_needs_are_not_computed", ON_NUMPY),
        *(AssertionError, r"where needs\[i\] is False"),
    ),
    (Counts, "a_layer_is_a_pure_function", ON_NUMPY, AssertionError, "array_equal"),
    (Centred, "parts_of_a_batch_add_up_to_the_whole", ON_NUMPY, AssertionError, "Not equal to tolerance"),
    (Writes, "the_feature_has_the_declared_shape_and_dtype", ON_NUMPY, ValueError, "read-only"),
    (Wide, "the_feature_has_the_declared_shape_and_dtype", ON_NUMPY, AssertionError, "float64"),
    (
        *(Uncut, "parts_cut_by_features_make_the_whole", {**ON_NUMPY, "phase": Phase.kTest}),
        *(UserError, "correct its cut_axis"),
    ),
    (Plain, "phases_differ_only_where_the_case_says_so", ON_NUMPY, AssertionError, "set phases_differ"),
]


@pytest.mark.parametrize(
    ("cls", "check", "arguments", "error", "message"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
def test_a_fault_is_found(case_of, cls, check, arguments, error, message):
    refused(lambda: getattr(LayerContract(), f"test_{check}")(case_of(cls), **arguments), message, error=error)


def test_a_layer_that_cannot_be_made_is_named():
    """At the test, not where pytest collects it."""
    with pytest.raises(UserError, match="no layer is registered as 'NoSuchLayer'"):
        LayerContract().test_a_layer_is_a_pure_function(LayerCase("NoSuchLayer", SHAPES), NUMPY)
