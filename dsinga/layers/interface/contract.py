"""Run-time checks of layers' shapes, params, features and gradients, so that faults show in the layer that has them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.job import LayerConf
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import RecordInfo
from dsinga.layers.interface.declarations import ParamSpec, fault_of
from dsinga.layers.interface.layer import Array, Arrays, Layer, Output, Shape
from dsinga.ops import SparseRows
from dsinga.ops.sparse import fault
from dsinga.ops.types import FLOAT32


class MustUnroll(UserError):
    """Error: a layer cannot compute all steps at once, so its net must be unrolled into copies, one for each step."""


def copy_name(step: int, layer: str) -> str:
    """Return the name of a layer's copy for a time step in an unrolled net, as in SINGA."""
    return f"{step}#{layer}"


def make_layer(cls: type[Layer], conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None) -> Layer:
    """Create a layer and check its declarations. Raises JobError if ``cls`` sets ``shape`` or ``params`` wrongly."""
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise conf.error(f"layer {conf.name!r}: the class {cls.__name__} does not define {missing}")
    try:
        layer = cls(conf, source_shapes, info)
    except Exception as error:
        error.add_note(f"in {cls.__name__}(conf, source_shapes, info) of layer {conf.name!r}")
        raise
    if not hasattr(layer, "source_shapes"):
        call = "super().__init__(conf, source_shapes, info)"
        raise conf.error(f"layer {conf.name!r}: {cls.__name__}.__init__ must begin with {call}")
    check_layer(layer)
    return layer


def check_layer(layer: Layer) -> None:
    """Raise JobError if a layer sets ``shape`` or ``params`` wrongly."""
    cls = type(layer)
    if declared := fault_of(layer):
        raise layer.fail(f"{cls.__name__} {declared}")
    if not is_shape(layer.shape):
        raise layer.fail(
            f"{cls.__name__}.__init__ must set self.shape to the shape of the feature, a tuple of whole numbers "
            f"above 0 with the batch first; it is {layer.shape!r}"
        )
    specs: Any = layer.params
    if not isinstance(specs, (tuple, list)) or not all(isinstance(spec, ParamSpec) for spec in specs):
        raise layer.fail(f'self.params must be a tuple such as (ParamSpec("weight", (2, 3)),), not {specs!r}')
    for spec in specs:
        if not is_shape(spec.shape):
            raise layer.fail(f"the shape of its param {spec.role!r} must be a tuple such as (2, 3), not {spec.shape!r}")


def is_shape(shape: Any) -> bool:
    """Whether ``shape`` is a non-empty tuple of whole numbers above 0."""
    return isinstance(shape, tuple) and bool(shape) and all(isinstance(n, (int, np.integer)) and n > 0 for n in shape)


def check_output(layer: Layer, params: Arrays, sources: Arrays, output: Output) -> None:
    """Raise UserError unless a forward pass gave arrays of the declared shapes; make its feature read-only."""
    if not isinstance(output, Output):
        raise layer.fail(f"compute_feature must return an Output, as in Output(feature), not {describe_type(output)}")
    feature = output.feature
    if feature is not None and not layer.part_shapes:
        if type(feature) is np.ndarray and feature.dtype is FLOAT32 and feature.shape[1:] == layer.shape[1:] != ():
            feature.setflags(write=False)  # the common case, which every layer of every iteration passes
        else:
            check_feature(layer, params, sources, feature)
            freeze(feature)
    for name, metric in output.metrics.items():
        if not is_metric(metric):
            raise layer.fail(f"the metric {name!r} must be a pair (sum, count), not {metric!r}")
    for role, state in output.state.items():
        check_state(layer, params, role, state)


def check_feature(layer: Layer, params: Arrays, sources: Arrays, feature: Any) -> None:
    """Raise UserError unless a feature has the declared shape, and is float64 only if a source or param is."""
    if not hasattr(feature, "dtype"):
        raise layer.fail(f"compute_feature must return an array as its feature, not {describe_type(feature)}")
    if feature.shape[1:] != layer.shape[1:] or feature.ndim != len(layer.shape):
        raise layer.fail(
            f"compute_feature returned a feature of {shape_text(feature.shape)}, but self.shape promises rows of "
            f"{shape_text(layer.shape[1:])}; make them agree"
        )
    if feature.dtype == np.float64 and not layer.is_input:
        inputs = (*params, *sources)
        if inputs and not any(getattr(array, "dtype", None) == np.float64 for array in inputs):
            check_no_codes(layer, sources)
            raise layer.fail("compute_feature made float64 of float32; return feature.astype(numpy.float32)")


def check_no_codes(layer: Layer, sources: Arrays) -> None:
    """Raise UserError if a layer that computes with numbers gets integer codes."""
    for index, source in enumerate(sources):
        if index != layer.labels.source and getattr(source, "dtype", np.dtype(float)).kind in "iu":
            raise layer.fail(
                f"computes with numbers, but {layer.source_name(index)} gives {source.dtype}, which are codes, such as "
                'words; if they are numbers, give an array as x.astype("float32"), or its store_conf std_value: 1 to '
                "have them as float32; else put a kEmbedding or kOneHot layer between"
            )


def check_labels(layer: Layer, output: Output) -> None:
    """Raise UserError if a layer of a partitioned net makes labels without declaring ``new_labels``."""
    if output.labels is not None and not (layer.is_input or layer.new_labels):
        raise layer.fail(f"compute_feature returned labels; set new_labels = LabelFormat() in {type(layer).__name__}")


def check_state(layer: Layer, params: Arrays, role: str, state: Any) -> None:
    """Raise UserError unless new ``state`` has the shape and dtype of the untrained param ``role``."""
    for spec, param in zip(layer.params, params, strict=True):
        if spec.role == role and not spec.trainable:
            if not has_shape_and_dtype_of(state, param):
                raise mismatch(layer, f"the new state of param {role!r}", state, param)
            return
    roles = [spec.role for spec in layer.params if not spec.trainable]
    raise layer.fail(f"has no param {role!r} with trainable=False to take a new state{nearest(role, roles)}")


def is_metric(metric: Any) -> bool:
    """Whether a reported metric has the form (sum, count)."""
    return isinstance(metric, tuple) and len(metric) == 2


def check_gradients(layer: Layer, params: Arrays, sources: Arrays, computed: Any) -> None:
    """Raise UserError unless a backward pass gave gradients of the right shape and dtype for sources and params."""
    if not isinstance(computed, tuple) or len(computed) != 2:
        raise layer.fail(
            "compute_gradient must return (gradients for the sources, gradients for the params), "
            f"as in (dx,), (dw, db), not {describe_type(computed)}"
        )
    for_sources, for_params = computed
    for what, gradients, arrays in (("sources", for_sources, sources), ("params", for_params, params)):
        if not isinstance(gradients, (tuple, list)) or len(gradients) != len(arrays):
            count = f"{len(gradients)}" if isinstance(gradients, (tuple, list)) else describe_type(gradients)
            raise layer.fail(f"compute_gradient must return a sequence of {len(arrays)} for its {what}, not {count}")
    check_source_gradients(layer, sources, for_sources)
    check_param_gradients(layer, params, for_params)


def check_source_gradients(layer: Layer, sources: Arrays, for_sources: Sequence[Array | None]) -> None:
    """Check a layer's gradients for sources only, as in :func:`check_gradients`."""
    for index, gradient in enumerate(for_sources):
        if gradient is not None:
            if not has_shape_and_dtype_of(gradient, sources[index]):
                raise mismatch(layer, f"the gradient for {layer.source_name(index)}", gradient, sources[index])
            freeze(gradient)


def check_param_gradients(layer: Layer, params: Arrays, for_params: Sequence[Array | None]) -> None:
    """Check a layer's gradients for params only, as in :func:`check_gradients`."""
    for spec, gradient, param in zip(layer.params, for_params, params, strict=True):
        if type(gradient) is type(param) is np.ndarray and gradient.shape == param.shape:
            if gradient.dtype != param.dtype:
                raise mismatch(layer, f"the gradient for param {spec.role!r}", gradient, param)
        elif gradient is not None:
            if not has_shape_and_dtype_of(gradient, param):
                raise mismatch(layer, f"the gradient for param {spec.role!r}", gradient, param)
            if isinstance(gradient, SparseRows) and (wrong := fault(gradient)):
                raise layer.fail(f"the gradient for param {spec.role!r}: {wrong}")
        elif spec.trainable:
            raise layer.fail(f"compute_gradient returned None for its param {spec.role!r}; return an array")


def has_shape_and_dtype_of(value: Any, model: Array) -> bool:
    """Whether ``value`` is an array with the shape and dtype of ``model``."""
    if type(value) is type(model) is np.ndarray and value.dtype is model.dtype:
        return bool(value.shape == model.shape)
    return hasattr(value, "dtype") and bool(value.shape == model.shape and value.dtype == model.dtype)


def mismatch(layer: Layer, what: str, value: Any, model: Array) -> Exception:
    """Return a UserError that says how ``value``, called ``what``, differs from ``model`` in shape or dtype."""
    if not hasattr(value, "dtype"):
        return layer.fail(f"{what} must be an array, not {describe_type(value)}")
    return layer.fail(
        f"{what} has the shape {value.shape} and is {value.dtype}; it must be of shape {model.shape} and {model.dtype}"
    )


def freeze(array: Array) -> None:
    """Make a numpy array read-only, so that layers cannot write to their arguments."""
    if type(array) is np.ndarray:
        array.setflags(write=False)


def add_layer_note(error: Exception, layer: Layer, method: str) -> None:
    """Add the layer's name, the method and, if known, the remedy to an error from a layer."""
    error.add_note(f"in {method} of layer {layer.name!r}")
    if isinstance(error, ValueError) and "read-only" in str(error):
        error.add_note("a layer must not change the arrays that it is given; work on a copy")


def describe_type(value: Any) -> str:
    """Describe the type of a value in an error."""
    if value is None:
        return "None"
    return f"an array of {shape_text(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
