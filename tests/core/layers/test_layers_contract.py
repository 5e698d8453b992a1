"""Every layer passes the layer contract; checks that only built-in layers must pass are here."""

import inspect
from typing import Any

import numpy as np
import pytest

from dsinga.base.registry import lookup
from dsinga.job import Phase
from dsinga.layers import Layer
from dsinga.ops import BACKENDS, Ops, SparseRows
from dsinga.ops.interface import NumpyOps
from dsinga.ops.onednn.onednn_ops import OnednnOps
from dsinga.testing import LayerCase, LayerContract
from dsinga.testing.layer_cases import why_missing
from dsinga.testing.layer_parts import gradient_for, load_backend
from dsinga.testing.layer_passes import on_device, on_host, random_gradient, run_passes
from tests.support.device_array import DeviceArray, StubOps
from tests.support.layer_cases import ALIASES, CASES, FEED_FORWARD, LATER, TYPES, context

# How many arrays a layer fetches from the device in two phases: scores to rank, rows of a table to send.
FETCHES = {
    "kTDLoss": 2,
    "kSequenceLength": 2,  # which steps are masked, in both passes
    "kPolicyGradientLoss": 2,
    "kPPOLoss": 2,
    "kSampledLoss": 3,
    "kConfusionMatrix": 2,
    "kRegressionError": 2,
    "kFieldError": 4,
    "kForecastScores": 2,
    "kReliability": 2,
    "kSegmentationScore": 2,
    "kGatheredMetrics": 2,
    "kCategories": 4,  # rows of the table and their gradients, as kEmbedding; the codes of both passes, which it checks
    "kCTCLoss": 2,
    "kArgSort": 2,
    "kAccuracy": 2,
    "kEntityF1": 2,
    "kEmbedding": 2,
    "kRNNDummy": 2,
}


def test_every_feed_forward_type_has_a_class_and_a_case():
    assert {case.kind for case in CASES} == set(FEED_FORWARD)
    assert TYPES == set(FEED_FORWARD) | (LATER & TYPES) | ALIASES.keys()
    assert all(issubclass(lookup("layer", kind), Layer) for kind in FEED_FORWARD)
    assert all(lookup("layer", alias) is lookup("layer", kind) for alias, kind in ALIASES.items())


def calling_onednn() -> list[LayerCase]:
    """Return the cases whose passes call kernels that oneDNN overrides. On it, all others compute what numpy does."""
    if why_missing("onednn"):
        return []
    called: set[str] = set()

    class RecordingOps(NumpyOps):
        def __getattribute__(self, name: str) -> Any:
            called.add(name)
            return super().__getattribute__(name)

    own = {name for name in dir(load_backend("onednn")) if not name.startswith("_")}
    own = {name for name in own if getattr(OnednnOps, name) is not getattr(NumpyOps, name, None)}
    ops, chosen = RecordingOps(), []
    for case in CASES:
        params, sources = case.inputs(ops, np.float32)
        called.clear()
        case.layer().compute_feature(params, sources, context(ops, Phase.kTest))
        grad = gradient_for(case, params, sources, ops)
        run_passes(case.layer(), params, sources, context(ops), grad, case.needs())
        chosen += [case] if called & own else []
    return chosen


class Contract(LayerContract):
    """The contract, and what only built-in layers must do. Its checks are called by two tests for each case."""

    def test_nothing_is_saved_for_a_backward_pass_outside_training(self, case: LayerCase, ops: Ops):
        params, sources = case.inputs(ops, np.float32)
        saved = case.layer().compute_feature(params, sources, context(ops, Phase.kTest)).saved
        assert saved is None or saved == ()


def check(case: LayerCase, ops: Ops) -> None:
    """Call all checks of the contract that are meant for a case: one test for all takes half of their time."""
    for name, function in inspect.getmembers(Contract, inspect.isfunction):
        names = inspect.signature(function).parameters.keys()
        if not name.startswith("test_") or not getattr(function, "choose_case", lambda case: True)(case):
            continue
        if "ops" not in names and ops.name != "numpy":
            continue
        given = {"case": case, "ops": ops}
        for phase in (Phase.kTrain, Phase.kTest) if "phase" in names else (Phase.kTrain,):
            arguments = {**given, "phase": phase}
            try:
                function(Contract(), **{key: arguments[key] for key in names if key != "self"})
            except Exception as error:
                error.add_note(f"in {name} of LayerContract, {phase.name}")
                raise


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_keeps_the_contract(case: LayerCase):
    check(case, load_backend("numpy"))


@pytest.mark.parametrize("case", calling_onednn(), ids=str)
def test_a_layer_keeps_the_contract_on_onednn(case: LayerCase):
    check(case, load_backend("onednn"))


def assert_same_on_device(host_value: Any, device_value: Any, ops: StubOps) -> None:
    """Check that the device computes the bits of numpy, and has every float array."""
    if isinstance(host_value, (tuple, list)):
        for host_array, device_array in zip(host_value, device_value, strict=True):
            assert_same_on_device(host_array, device_array, ops)
    elif host_value is not None:
        if host_value.dtype.kind == "f":
            assert isinstance(device_value, (DeviceArray, SparseRows)), type(device_value)
        np.testing.assert_array_equal(np.asarray(host_value), np.asarray(on_host(device_value, ops)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_features_and_gradients_stay_on_the_device(case: LayerCase):
    """A layer uses device arrays through the backend only (``device_array.py``), and copies no feature to the host."""
    layer, host, ops = case.layer(), BACKENDS["numpy"](), StubOps()
    host_inputs, device_inputs = case.inputs(host, np.float32), case.inputs(ops, np.float32)
    pairs: list[tuple[Any, Any]] = []
    for phase in (Phase.kTest, Phase.kTrain):
        expected = layer.compute_feature(*host_inputs, context(host, phase))
        output = layer.compute_feature(*device_inputs, context(ops, phase))
        pairs.append((expected.feature, output.feature))
        pairs.append(([*expected.state.values()], [*output.state.values()]))
    if case.has_gradient:
        grad, needs = random_gradient(layer, expected), case.needs()
        device_grad = on_device(grad, ops)
        expected = layer.compute_gradient(*host_inputs, expected, grad, needs, context(host))
        pairs.append((expected, layer.compute_gradient(*device_inputs, output, device_grad, needs, context(ops))))
    assert not ops.record.syncs
    assert len(ops.record.fetched) <= FETCHES.get(case.kind, 0)
    for host_value, device_value in pairs:
        assert_same_on_device(host_value, device_value, ops)
