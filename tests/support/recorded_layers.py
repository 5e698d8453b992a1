"""Records both passes of a layer's case, launches them on other batches and steps, and compares them with calls."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.layers import Layer, Records
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.layers.metrics.metric_state import MetricState
from dsinga.ops import Ops, SparseRows
from dsinga.ops.layout import LAST
from dsinga.ops.recorded_array import RecordedResult
from dsinga.ops.types import BFLOAT16, NotCapturable, RecordedStep
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import feature_parts, layer_context, random_gradient

LAUNCHES = 4


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
    if any(isinstance(number, MetricState) for number in results):
        raise NotCapturable("a metric is computed in host memory")  # as a recorded net does
    grads = [batch[name] for name in batch if name[:4] == "grad"]
    if grads or (case.has_gradient and layer.is_loss):
        grad = None if not grads else grads if layer.part_shapes else grads[0]
        for_sources, for_params = layer.compute_gradient(params, sources, output, grad, case.needs(), ctx)
        results += [*for_sources, *for_params]
    return [result for result in results if result is not None]


def check(case: LayerCase, ops: Any, layer: Layer | None = None) -> None:
    """Record the passes of a layer and launch them on other batches; raise what refuses that."""
    layer = layer or case.layer()
    batches = [batch_of(case, layer, ops, number) for number in range(3)]
    memory = ops.new_pass()
    recorded: list[Any] = []
    for number in range(memory.warm_ups + 1):
        on_device = {name: memory.put(name, array) for name, array in batches[number].items()}
        with memory.recording(step=number):
            ctx = layer_context(ops, case.batch, step=RecordedStep(), unread=[])
            if number < memory.warm_ups:
                recorded = compute(case, layer, on_device, ctx)
            else:
                with memory.capturing():
                    recorded = compute(case, layer, on_device, ctx)
    recorded = memory.results(recorded)
    for step in range(LAUNCHES):
        batch = batches[step % 3]
        for name, array in batch.items():
            memory.put(name, array)
        memory.launch(step)
        if memory.is_on_host:
            assert not any(map(np.isnan, memory.read())), "Python decides otherwise for another batch"
        eager = compute(case, layer, placed(case, batch, ops), layer_context(ops, case.batch, step=step))
        assert len(eager) == len(recorded)
        for actual, expected in zip(recorded, eager, strict=True):
            np.testing.assert_array_equal(dense(actual, ops), dense(expected, ops), err_msg=f"step {step}")


def dense(value: Any, ops: Ops) -> Any:
    """Return a number, or an array in host memory, of a result: gradients of few rows have zeros in the others."""
    value = value.value if isinstance(value, RecordedResult) else value
    return value.dense() if isinstance(value, SparseRows) else ops.to_numpy(value)


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
