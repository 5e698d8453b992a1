"""The passes of every layer, recorded once and launched again on other batches and steps, give the bits of calls.

The device is emulated. Between two launches nothing changes but the block of numbers and the buffers of the batch, so
that a number of the host which is baked into a launch shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dsinga.base.registry import lookup
from dsinga.job import LayerConf
from dsinga.layers import Layer, Output, Records
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.layers.sequences.timedistributed import TimeDistributed
from dsinga.ops import Ops, SparseRows
from dsinga.ops.layout import LAST
from dsinga.ops.types import BFLOAT16, NotCapturable, RecordedStep
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import feature_parts, layer_context, random_gradient
from tests.support import emulated_cupy
from tests.support.layer_cases import CASES

LAUNCHES = 4
# Layers whose host checks labels, reads features or chooses rows; the log says so, and their nets run eagerly.
NOT_CAPTURED = (
    "kHingeLoss", "kContrastiveLoss", "kCTCLoss", "kCRF", "kClassSoftmaxLoss", "kSampledLoss", "kFieldError",
    "kSegmentationScore", "kPolicyGradientLoss", "kPPOLoss", "kTDLoss", "kEntityF1", "kGatheredMetrics", "kPerplexity",
    "kForecastScores", "kReliability",
    "kConfusionMatrix", "kRegressionError", "kAccuracy", "kArgSort", "kEmbedding", "kSequenceLength", "kRNNDummy",
)  # fmt: skip
QUICK = ("kDropout", "kConvolution-stride", "kBM-rows", "kGRU-", "kSoftmaxLoss-top", "kRGBImage-crop", "kOneHot-seq")


@pytest.fixture(scope="module")
def ops() -> Iterator[Ops]:
    """A worker of the emulated device, in the calling thread."""
    shared = emulated_cupy.load()
    ops = shared.for_worker(0)
    ops.enter()
    yield ops
    shared.enter()


def batch_of(case: LayerCase, layer: Layer, ops: Ops, number: int) -> dict[str, np.ndarray]:
    """Return the arrays of a batch by name, other ones for each number: params, sources and the feature's gradient."""
    params, sources = case.inputs(ops, np.float32)
    arrays = {f"param {k}": 0.97**number * ops.to_numpy(param) for k, param in enumerate(params)}
    for k, source in enumerate(sources):
        parts = source if isinstance(source, Records) else (source,)
        arrays |= {f"source {k} {j}": ops.to_numpy(part) for j, part in enumerate(parts) if part is not None}
    output = layer.compute_feature(params, sources, layer_context(ops, case.batch))
    grad = random_gradient(layer, output) if case.has_gradient and not layer.is_loss else None
    grads = [] if grad is None else grad if layer.part_shapes else [grad]
    arrays |= {f"grad {k}": array for k, array in enumerate(grads)}
    turned = {name: array if name[:5] == "param" else np.roll(array, number, axis=0) for name, array in arrays.items()}
    rounded = ops.has_bf16_features and layer.bf16 is Bfloat16.kFeatures
    dtypes = {
        name: BFLOAT16
        if rounded and name[:6] == "source" and array.dtype == np.float32 and array.ndim in LAST
        else None
        for name, array in arrays.items()
    }
    return {name: array.astype(dtypes[name] or arrays[name].dtype, order="K") for name, array in turned.items()}


def compute(case: LayerCase, layer: Layer, batch: dict[str, Any], ctx: Any) -> list[Any]:
    """Return all that both passes of the layer give, in a fixed order: arrays of the device, and numbers."""
    params = [batch[f"param {k}"] for k in range(len(layer.params))]
    if layer.is_input:
        sources: Sequence[Any] = [Records(batch["source 0 0"], batch.get("source 0 1"))]
    else:
        sources = [batch[f"source {k} 0"] for k in range(len(case.shapes))]
    output = layer.compute_feature(params, sources, ctx)
    results = [*feature_parts(layer, output), output.labels, *output.state.values()]
    results += [number for metric in output.metrics.values() for number in metric]
    grads = [batch[name] for name in batch if name[:4] == "grad"]
    if grads or (case.has_gradient and layer.is_loss):
        grad = None if not grads else grads if layer.part_shapes else grads[0]
        for_sources, for_params = layer.compute_gradient(params, sources, output, grad, case.needs(), ctx)
        results += [*for_sources, *for_params]
    if any(isinstance(result, SparseRows) for result in results):
        raise NotCapturable("a gradient has few rows")
    return [result for result in results if result is not None]


def check(case: LayerCase, ops: Any, layer: Layer | None = None) -> None:
    """Record the passes of a layer and launch them on other batches; raise what refuses that."""
    layer = layer or case.layer()
    batches = [batch_of(case, layer, ops, number) for number in range(3)]
    memory = ops.new_pass()
    recorded: list[Any] = []
    for number in range(3):
        on_device = {name: memory.put(name, array) for name, array in batches[number].items()}
        with memory.recording(step=number):
            ctx = layer_context(ops, case.batch, step=RecordedStep(), unread=[])
            if number < 2:
                recorded = compute(case, layer, on_device, ctx)
            else:
                with memory.capturing():
                    recorded = compute(case, layer, on_device, ctx)
    for step in range(LAUNCHES):
        batch = batches[step % 3]
        for name, array in batch.items():
            memory.put(name, array)
        memory.launch(step)
        eager = compute(case, layer, placed(case, batch, ops), layer_context(ops, case.batch, step=step))
        assert len(eager) == len(recorded)
        for actual, expected in zip(recorded, eager, strict=True):
            np.testing.assert_array_equal(ops.to_numpy(actual), ops.to_numpy(expected), err_msg=f"step {step}")


def placed(case: LayerCase, batch: dict[str, np.ndarray], ops: Ops) -> dict[str, Any]:
    """Return a batch as a layer gets it where its passes are eager: labels and codes are in host memory."""
    labels = case.layer().labels.source
    host = {f"source {labels} 0", "source 0 1"} | ({"source 0 0"} if case.codes else set())
    return {name: array if name in host else ops.asarray(array) for name, array in batch.items()}


def refusal(case: LayerCase, ops: Any) -> str:
    """Check a case; return why its passes cannot be captured, "" if they can."""
    try:
        check(case, ops)
    except NotCapturable as error:
        return str(error)
    return ""


def may_be_refused(case: LayerCase, reason: str) -> bool:
    return str(case).startswith(NOT_CAPTURED) or "sequences have different lengths" in reason


@pytest.mark.parametrize("case", [case for case in CASES if str(case).startswith(QUICK)], ids=str)
def test_a_layer_is_launched_again(case: LayerCase, ops: Ops):
    reason = refusal(case, ops)
    assert not reason or may_be_refused(case, reason), reason


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_all_layers_are_launched_again(precision: str):
    shared = emulated_cupy.load()
    ops = shared.for_worker(0, precision)
    ops.enter()
    reasons = [(case, refusal(case, ops)) for case in CASES]
    assert not [(str(case), why) for case, why in reasons if why and not may_be_refused(case, why)]
    shared.enter()
    assert sum(not why for _, why in reasons) >= 294


def test_steps_after_the_end_of_a_sequence_are_refused_unless_they_show_in_the_loss(ops: Ops):
    """All steps are computed in a recorded pass: with a label of -1 a loss is NaN, where others would be wrong."""
    conf = LayerConf(name="layer", type="kLabel")
    layer = TimeDistributed(lookup("layer", "kLabel"), conf, [(5, 4)], 4, [False])
    labels = ops.asarray(np.full((5, 4), -1))
    with pytest.raises(NotCapturable, match="sequences have different lengths"):
        layer.compute_feature([], [labels], layer_context(ops, 5, unread=[]))


def test_a_number_of_the_host_is_found(ops: Ops):
    class Baked(Layer):
        """Multiplies by the mean of its source, a number that the host reads."""

        def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
            return Output(sources[0] * float(np.asarray(sources[0]).mean()))

    case = LayerCase("kDummy", ((5, 3),), {"dummy_conf": {"output": True}})
    layer = Baked(LayerConf(name="layer", type="kDummy"), case.shapes)
    with pytest.raises(AssertionError, match="step 0"):
        check(case, ops, layer)
