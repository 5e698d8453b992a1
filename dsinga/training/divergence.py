"""Notices NaN and infinity in training, and names the step and layer where they appeared first."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np

from dsinga.base.arrays import first_not_finite, is_finite
from dsinga.base.errors import Diverged
from dsinga.base.registry import is_user_code
from dsinga.layers.interface.context import Context, PassObserver, Records, single_worker
from dsinga.layers.interface.layer import Layer
from dsinga.layers.metrics.metric_state import MetricState
from dsinga.net import NeuralNet
from dsinga.ops import SparseRows
from dsinga.ops.factored_gradient import FactoredGradient
from dsinga.ops.types import Shaped
from dsinga.training.forward_pass import TapeEntry
from dsinga.training.metrics import Metrics, Reports

LARGEST = float(np.finfo(np.float32).max) / 2  # that no rounding of a gradient makes infinite
REMEDY = "lower the learning rate, or clip gradients (clip_norm)"  # where a param is no longer finite
LEFT_OUT = "the loss, a gradient or a record of group %d is not finite at step %d: the batch is left out"
GUARD = "guard its roots, logarithms and divisions"
ADVICE = "lower the learning rate, clip gradients (clip_norm), or leave such batches out (skip_bad_batches)"


def all_finite(metrics: Metrics | Mapping[str, tuple[float, float]]) -> bool:
    """Whether all metric sums are finite."""
    for total, _ in metrics.values():
        if type(total) is float or not isinstance(total, MetricState):  # most are floats, which is known soonest
            if not math.isfinite(total):
                return False
    return True


def is_finite_gradient(gradient: Any) -> bool:
    """Whether a gradient, or each of several, is finite; on a device this is not checked."""
    if isinstance(gradient, (tuple, list)):
        return all(map(is_finite_gradient, gradient))
    array = gradient.values if isinstance(gradient, SparseRows) else gradient
    if type(array) is not np.ndarray:
        return True
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(np.dot(flat, flat)) or is_finite(array)


def first_bad_gradient(gradients: Mapping[str, Any]) -> str | None:
    """Return the name of the first gradient that is not finite, or None."""
    return next((name for name, gradient in gradients.items() if not is_finite_gradient(gradient)), None)


def check_layer_gradient(layer: Layer, gradient: Any, computed: Any, ctx: Context) -> None:
    """Raise Diverged, naming the layer, if it computes gradients that are not finite from a finite one."""
    if is_finite_gradient(computed) or not is_finite_gradient(gradient):
        return
    what = f"the gradient of {'the function of' if _calls_function(layer) else 'layer'} {layer.name!r}"
    remedy = GUARD if layer.runs_user_code else ADVICE
    raise Diverged(f"{what} is not finite at step {ctx.step}, though its feature is; {remedy}")


def find_bad_gradient(
    algorithm: Callable[..., Metrics], net: NeuralNet, params: Any, records: Mapping[str, Records], ctx: Context
) -> None:
    """Repeat a pass to find the first layer with gradients that are not finite, and raise Diverged."""

    def observe(layer: Layer, direction: str, compute: Any, *arguments: Any) -> Any:
        computed = compute(*arguments)
        if direction == "backward":
            check_layer_gradient(layer, arguments[3], computed, ctx)
        return computed

    observed = replace(ctx, observer=cast(PassObserver, observe))
    algorithm(net, params, records, observed, lambda name, gradient: None)


class CheckedPush:
    """Passes on the gradients of a step if they are finite; else calls ``fail``."""

    def __init__(self, updates: Any, fail: Callable[[str], NoReturn]):
        self.updates, self.fail = updates, fail

    def __call__(self, name: str, gradient: Any) -> None:
        """Pass on the gradient of a param."""
        if isinstance(gradient, FactoredGradient) and not gradient.bound() < LARGEST:
            gradient = gradient.compute()
        if not is_finite_gradient(gradient):
            self.fail(name)
        self.updates.push(name, gradient)

    def push_all(self, gradients: Mapping[str, Any]) -> None:
        """Pass on all gradients of a step together, which is faster than one by one."""
        if (lost := self.updates.push_all(gradients)) is not None:
            self.fail(lost)


def param_gradient_fault(name: str, step: int) -> str:
    """Return the error text that a param's gradient is not finite."""
    return f"the gradient of param {name!r} is not finite at step {step}; {ADVICE}"


def are_finite(records: Mapping[str, Records]) -> bool:
    """Whether a batch's records are finite: saturated layers may hide it from the loss."""
    return is_finite([*records.values()])


def check_metrics(metrics: Metrics, step: int) -> None:
    """Raise Diverged, naming step and metric, unless all metrics are finite."""
    if not all_finite(metrics):
        name = next(name for name, metric in metrics.items() if not all_finite({name: metric}))
        raise Diverged(f"{name!r} is not finite at step {step}; {ADVICE}")


def check_losses(
    net: NeuralNet,
    tape: Sequence[TapeEntry],
    reports: Reports,
    ctx: Context,
    repeat: Callable[[], Iterable[TapeEntry]],
) -> None:
    """Raise Diverged, with step, loss and layer, if a forward pass has a metric that is not finite.

    The pass is repeated to find the layer, because the tape lacks features. Other workers would not repeat it, so with
    them the error names a layer whose feature the tape has. Raises UserError if targets are the cause.
    """
    for loss, metrics in reports:
        if not all_finite(metrics):
            for stage, _, sources, _, layer_ctx in tape:
                if stage.layer.is_loss and not any(isinstance(source, Shaped) for source in sources):
                    stage.layer.check_sources(sources, layer_ctx)
            alone = ctx.all_reduce is single_worker and not net.bridged
            cause = _cause(net, _label_nodes(tape), repeat() if alone else tape)
            raise Diverged(f"the loss of layer {loss!r} is not finite at step {ctx.step}: {cause}")


def check_params_finite(params: Mapping[str, Any], step: int) -> None:
    """Raise Diverged if a param is not finite, because no later loss can be finite then."""
    lost = first_not_finite(params)
    if lost is not None:
        why = f"param {lost!r} is not finite at step {step}, so that no batch can have a finite loss"
        raise Diverged(f"{why}; {REMEDY}")


def _cause(net: NeuralNet, labels: Collection[int], entries: Iterable[TapeEntry]) -> str:
    """Say which param or layer was not finite first, with advice; ``labels`` are layers of labels."""
    checked = set[int]()  # the layers whose sources are all kept, and finite
    for stage, params, sources, output, _ in entries:
        for edge, source in zip(stage.edges, sources, strict=False):
            if isinstance(source, Shaped) or edge.labels or edge.node in labels:
                continue  # losses have checked labels, and their NaN may be masked points
            if not is_finite(source):  # its own entry may be without_features, and was then passed over
                return _feature(net.stages[edge.node].layer, source, edge.node in checked)
        if not any(source is None or isinstance(source, Shaped) for source in sources):
            checked.add(stage.position)
        for name, param in zip(stage.params, params, strict=True):
            if not is_finite(param):
                return f"param {name!r} is not; {ADVICE}"
        if not (stage.position in labels or is_finite(output.feature)):
            return _feature(stage.layer, output.feature, stage.position in checked)
    return f"all features are; {ADVICE}"


def _label_nodes(tape: Sequence[TapeEntry]) -> set[int]:
    """Return the positions of layers that compute with labels only, such as a kLabel layer."""
    nodes: set[int] = set()
    for stage, *_ in tape:
        if stage.edges and all(edge.labels or edge.node in nodes for edge in stage.edges):
            nodes.add(stage.position)
    return nodes


def _feature(layer: Layer, feature: Any, is_first: bool) -> str:
    """Say that a layer's output is not finite; for an input layer, name the record."""
    what = "is the first that is not" if is_first else "is not, and perhaps not the first"
    if _calls_function(layer):
        return f"the function of {layer.name!r} {what}; {GUARD}"
    if not layer.is_input:
        return f"the feature of {layer.name!r} {what}; {ADVICE}"
    array = np.asarray(feature)
    row, *place = (int(index) for index in np.argwhere(~np.isfinite(array))[0])
    where = f"row {row} of the batch{f' at {tuple(place)}' if place else ''}"
    return (
        f"the records of {layer.name!r} are not, once normalised, first in {where}; "
        "scale them otherwise (mean and std of the layer), or leave such records out; see dsinga data info"
    )


def _calls_function(layer: Layer) -> bool:
    """Whether a built-in layer computes by a user's function."""
    return layer.runs_user_code and not is_user_code(layer)
