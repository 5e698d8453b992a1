"""Every layer passes the layer contract; what no user's layer has to do is checked of the built-in ones here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsinga.job import LayerType, Phase
from dsinga.layers import Layer
from dsinga.ops import BACKENDS, Ops, SparseRows
from dsinga.registry import lookup
from dsinga.testing import LayerCase, LayerContract
from dsinga.testing.backends import why_missing
from dsinga.testing.layer_passes import on_device, on_host, random_gradient
from tests.support.device_array import DeviceArray, StubOps
from tests.support.layer_cases import CASES, FEED_FORWARD, LATER, context

# How often layers fetch something from the device, in two phases: what is ranked, rows of a table that are to travel.
FETCHES = {"kArgSort": 2, "kAccuracy": 2, "kEntityF1": 2, "kEmbedding": 2, "kRNNDummy": 2}


def test_every_feed_forward_type_has_a_class_and_a_case():
    assert {case.kind for case in CASES} == set(FEED_FORWARD)
    assert {kind.name for kind in LayerType} == set(FEED_FORWARD) | LATER
    assert all(issubclass(lookup("layer", kind), Layer) for kind in FEED_FORWARD)


class TestBuiltInLayers(LayerContract):
    cases = CASES

    def test_nothing_is_saved_for_a_backward_pass_outside_training(self, case: LayerCase, ops: Ops):
        params, sources = case.inputs(ops, np.float32)
        saved = case.layer().compute_feature(params, sources, context(ops, Phase.kTest)).saved
        assert saved is None or saved == ()


def test_the_contract_over_cupy():
    if why := why_missing("cupy"):
        pytest.skip(why)  # else TestBuiltInLayers has run on it


def same(here: Any, there: Any, ops: StubOps) -> None:
    """Check that a device has what numpy has, to the bit, and every float of it on the device."""
    if isinstance(here, (tuple, list)):
        for one, other in zip(here, there, strict=True):
            same(one, other, ops)
    elif here is not None:
        if here.dtype.kind == "f":
            assert isinstance(there, (DeviceArray, SparseRows)), type(there)
        np.testing.assert_array_equal(np.asarray(here), np.asarray(on_host(there, ops)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_features_and_gradients_stay_on_the_device(case: LayerCase):
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
        grad, needs = random_gradient(layer, expected), case.needs()
        device_grad = on_device(grad, ops)
        expected = layer.compute_gradient(*here, expected, grad, needs, context(host))
        pairs.append((expected, layer.compute_gradient(*there, output, device_grad, needs, context(ops))))
    assert not ops.record.syncs
    assert len(ops.record.fetched) <= FETCHES.get(case.kind, 0)
    for one, other in pairs:
        same(one, other, ops)
