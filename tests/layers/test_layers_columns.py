"""Cut on dimension 1, a layer computes what it computes as a whole, or says why its sources are gathered first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.errors import UserError
from dsinga.job import LayerConf, Phase
from dsinga.layers import Columns, Connection, Context, Layer, Output, ParamSpec
from dsinga.layers.contract import check_gradients, check_output, make_part
from dsinga.ops import BACKENDS, Ops
from dsinga.registry import lookup
from tests.support.layer_cases import CASES, FEED_FORWARD, Case, context, frozen, parts_of

CUT = [case for case in CASES if case.layer().connection is not None]
GATHERED = [case for case in CASES if case.layer().connection is None]

# The types that are never cut on dimension 1, whatever their configuration.
NEVER_CUT = {
    "kCRF", "kEntityF1", "kClassSoftmaxLoss", "kEmbedding", "kOneHot", "kGRU", "kLSTM", "kRNN", "kCharRNN",
    "kRNNLabel", "kRNNDummy", "kCharRNNOutput",
    "kRecordInput", "kCSVInput", "kLMDBData", "kShardData", "kImagePreprocess", "kRGBImage", "kLabel", "kLRN",
    "kCudnnLRN", "kSoftmax", "kCudnnSoftmax", "kSoftmaxLoss", "kCudnnSoftmaxLoss", "kEuclideanLoss", "kAccuracy",
    "kArgSort", "kCSVOutput", "kRecordOutput", "kLayerNorm", "kSigmoidCrossEntropyLoss", "kHingeLoss",
}  # fmt: skip


def test_every_type_is_cut_or_is_known_to_be_gathered():
    assert {case.kind for case in CUT} == set(FEED_FORWARD) - NEVER_CUT


@pytest.mark.parametrize("case", GATHERED, ids=str)
def test_a_layer_that_is_not_cut_says_why(case: Case):
    reason = case.layer().gathered_because
    assert re.fullmatch(r"[a-z]+s [a-z (),]+[a-z)]", reason), "a verb that follows 'because it', and no full stop"
    assert reason != Layer.gathered_because
    assert 15 <= len(reason) <= 60


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("kind", "field"), [("kSlice", "slice"), ("kConcate", "concate")])
def test_a_connection_layer_is_cut_along_every_axis_but_its_own(kind: str, field: str, axis: int):
    layer = Case(kind, "", {f"{field}_conf": {f"{field}_dim": axis}}, ((5, 4, 3),)).layer()
    assert (layer.connection is None) == (axis == 1)
    assert bool(layer.whole_because) == (axis == 0)


def widened(case: Case, width: int) -> Case:
    """The case with ``width`` columns to cut, in its sources too where those are cut with them."""
    layer = case.layer()
    if layer.connection is Connection.kOneToOne:
        return replace(case, shapes=tuple((shape[0], width, *shape[2:]) for shape in case.shapes))
    conf = layer.cut_conf(Columns(0, width, width))
    field = {"kInnerProduct": "innerproduct_conf", "kDummy": "dummy_conf"}.get(case.kind, "convolution_conf")
    return replace(case, conf={field: getattr(conf, field)})


@st.composite
def cuts(draw: st.DrawFn) -> list[Columns]:
    """2 to 4 neighbouring parts of columns, uneven ones too."""
    width = draw(st.integers(2, 9))
    inner = draw(st.sets(st.integers(1, width - 1), min_size=1, max_size=3))
    return [Columns(start, stop, width) for start, stop in pairwise([0, *sorted(inner), width])]


def take(array: Any, axis: int | None, columns: Columns) -> Any:
    """What belongs to ``columns`` of an array that is cut along ``axis``."""
    if axis is None:
        return array
    assert array.shape[axis] == columns.total
    return frozen(array[(slice(None),) * axis + (slice(columns.start, columns.stop),)])


def directions(layer: Layer, output: Output) -> list[np.ndarray]:
    """A gradient for each array of the feature."""
    rng = np.random.default_rng(1)
    return [frozen(rng.uniform(-1, 1, part.shape).astype(np.float32)) for part in parts_of(layer, output)]


def run(
    layer: Layer, params: Sequence[Any], sources: Sequence[Any], grads: Sequence[Any] | None, ctx: Context
) -> tuple[Output, Sequence[Any], Sequence[Any]]:
    """Forward, and with ``grads`` backward: (output, gradients for the sources, gradients for the params)."""
    output = layer.compute_feature(params, sources, ctx)
    check_output(layer, params, sources, output)
    if grads is None:
        return output, (), ()
    grad = list(grads) if layer.hands_parts else grads[0]
    computed = layer.compute_gradient(params, sources, output, grad, [True] * len(sources), ctx)
    check_gradients(layer, params, sources, computed)
    return output, *computed


@pytest.mark.parametrize(("backend", "tolerance"), [("numpy", 1e-5), ("onednn", 2e-5)])
@pytest.mark.parametrize("phase", [Phase.kTrain, Phase.kTest], ids=lambda phase: phase.name)
@pytest.mark.parametrize("case", CUT, ids=str)
@settings(max_examples=8)
@given(columns=cuts())
def test_parts_of_a_layer_make_the_whole(
    case: Case, phase: Phase, backend: str, tolerance: float, columns: list[Columns]
):
    ops, case = backend_or_skip(backend), widened(case, columns[0].total)
    layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
    assert layer.shape[1] == columns[0].total
    grads = None
    if phase is Phase.kTrain and case.has_gradient:
        grads = directions(layer, layer.compute_feature(params, sources, context(ops, phase)))
    whole = run(layer, params, sources, grads, context(ops, phase))
    one_to_one, outcomes = layer.connection is Connection.kOneToOne, []
    for own in columns:
        mine = [take(source, 1, own) if one_to_one else source for source in sources]
        part = make_part(layer, [source.shape for source in mine], own)
        assert part.name == layer.name
        assert part.connection is layer.connection
        cut = [take(param, spec.cut_axis, own) for param, spec in zip(params, layer.params, strict=True)]
        assert [spec.shape for spec in part.params] == [param.shape for param in cut]
        own_grads = grads and [take(grad, 1, own) for grad in grads]
        outcomes.append((part, *run(part, cut, mine, own_grads, context(ops, phase))))

    def assert_joined(pieces: Sequence[Any], expected: Any, axis: int) -> None:
        np.testing.assert_allclose(np.concatenate(pieces, axis), expected, tolerance, tolerance)

    assert not any(output.metrics for _, output, *_ in outcomes), "each part would count once more"
    features = zip(*(parts_of(part, output) for part, output, *_ in outcomes), strict=True)
    for pieces, expected in zip(features, parts_of(layer, whole[0]), strict=True):
        assert_joined(pieces, expected, 1)
    for role, expected in whole[0].state.items():
        assert_joined([output.state[role] for _, output, *_ in outcomes], expected, 0)
    for index, expected in enumerate(whole[1]):
        pieces = [for_sources[index] for _, _, for_sources, _ in outcomes]
        if expected is None:
            assert pieces == [None] * len(pieces)
        else:
            assert_joined(pieces if one_to_one else [sum(pieces)], expected, 1)
    for index, expected in enumerate(whole[2]):
        if expected is not None:
            pieces = [for_params[index] for *_, for_params in outcomes]
            assert_joined(pieces, expected, layer.params[index].cut_axis)


def backend_or_skip(name: str) -> Ops:
    try:
        return BACKENDS[name]()
    except UserError as error:
        pytest.skip(str(error))


class Scale(Layer):
    """A user's layer: one factor for each column, of params that may be said to be cut wrongly."""

    connection = Connection.kOneToOne
    cut_axis = 0

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("factor", self.shape[1:], cut_axis=self.cut_axis),)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0] * params[0])


def test_a_users_layer_is_cut_where_it_says_how():
    layer = Scale(LayerConf(name="mine", user_type="Scale"), [(4, 10)])
    part = make_part(layer, [(4, 3)], Columns(7, 10, 10))
    assert (part.shape, part.params[0].shape, part.columns) == ((4, 3), (3,), Columns(7, 10, 10))


def test_a_users_layer_that_cuts_wrongly_is_named():
    class Unchanged(Scale):
        connection = Connection.kOneToAll

    class Uncut(Scale):
        cut_axis = None

    class PerColumn(Scale):
        def __init__(self, conf, source_shapes, info=None):
            super().__init__(conf, source_shapes, info)
            self.params *= self.shape[1]

    conf = LayerConf(name="mine", user_type="Mine")
    with pytest.raises(UserError, match=r"layer 'mine': Unchanged.cut_conf must make 4 x 10 into 4 x 3, not 4 x 10"):
        make_part(Unchanged(conf, [(4, 10)]), [(4, 10)], Columns(7, 10, 10))
    with pytest.raises(
        UserError, match=r"layer 'mine': .*param 'factor', 10, .* must be 10, not 3; correct its cut_axis"
    ):
        make_part(Uncut(conf, [(4, 10)]), [(4, 3)], Columns(7, 10, 10))
    with pytest.raises(UserError, match=r"layer 'mine': PerColumn has 10 params, but 3 for 3 of 10 columns; make as"):
        make_part(PerColumn(conf, [(4, 10)]), [(4, 3)], Columns(7, 10, 10))


def test_a_user_layer_that_says_nothing_is_gathered():
    class Plain(Layer):
        def compute_feature(self, params, sources, ctx):
            return Output(sources[0])

    assert Plain.connection is None
    assert Plain.gathered_because


def test_a_part_drops_the_units_that_the_whole_layer_drops():
    ops, x = BACKENDS["numpy"](), np.ones((5, 8, 2), np.float32)
    layer = lookup("layer", "kDropout")(LayerConf(name="drop", type="kDropout"), [x.shape])
    whole = layer.compute_feature([], [x], context(ops)).feature
    part = make_part(layer, [(5, 3, 2)], Columns(4, 7, 8)).compute_feature([], [x[:, 4:7]], context(ops)).feature
    assert np.array_equal(part, whole[:, 4:7])
    assert 0 < (part == 0).mean() < 1
