"""Describes convolutions as cuDNN graphs, and makes the plans that compute them.

Numerical notes exclude engines that round factors against the precision. Engines that add in no fixed order are a last
resort; one engine is excluded by name.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from dsinga.addons.gpu.cupy.library import cupy
from dsinga.ops.types import Array, Sizes

_log = logging.getLogger(__name__)

Direction = Literal["fprop", "dgrad", "wgrad"]
CANDIDATES = 10  # plans of a problem that are timed
FLOAT = "float "  # begins the names of plans with float32 results for gradients of bfloat16 filters
INEXACT = "eng17_"
"""The engine of weight gradients that is left out in float32 and TF32, although no numerical note covers it: errors of
1e-3 of the root mean square, 1e-2 at most, where others have 1e-6 (cuDNN 9.19 on an H200, November 2026)."""


class ConvolutionProblem(NamedTuple):
    """One convolution: its direction, and the shapes x (B, C, H, W), w (F, C/groups, kh, kw) and y (B, F, H', W').

    Forward, a float32 bias (F,) may be added, and the sum rectified, before y is rounded.
    """

    direction: Direction
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    stride: Sizes
    pad: Sizes
    bf16: bool = False
    channels_last: bool = True
    bias: bool = False
    relu: bool = False
    dilation: Sizes = (1, 1)

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the result."""
        return {"fprop": self.y, "dgrad": self.x, "wgrad": self.w}[self.direction]

    @property
    def may_be_float(self) -> bool:
        """Whether bfloat16 factors may give a float32 result, as for gradients of params."""
        return self.bf16 and self.direction == "wgrad"


class ConvolutionPlan(NamedTuple):
    """A graph to run: two input tensors, the output, a bias if any, and bytes of workspace."""

    graph: Any
    tensors: tuple[Any, ...]
    workspace: int
    name: str = ""
    float_result: bool = False


class PlanMaker:
    """Makes the plans of one precision with cuDNN's front end."""

    def __init__(self, frontend: Any, precision: str):
        self._frontend, self.precision = frontend, precision

    def make(self, problem: ConvolutionProblem, handle: Any) -> ConvolutionPlan | None:
        """Build a plan with sums in a fixed order, else any plan; return None after a warning if there is none."""
        for ordered, float_result in itertools.product(
            (True, False), (True, False) if problem.may_be_float else (False,)
        ):
            try:
                graph, tensors = self.describe(problem, handle, ordered, float_result)
                graph.check_support()
                graph.build_plans(self._frontend.build_plan_policy.HEURISTICS_CHOICE)
                workspace = int(graph.get_workspace_size())
                return ConvolutionPlan(graph, tensors, workspace, float_result=float_result)
            except (self._frontend.cudnnGraphNotSupportedError, RuntimeError) as error:  # the second is the backend's
                reason = error
        if not problem.bias:
            _log.warning("cuDNN has no plan for %s; matrix products of cuBLAS compute it: %s", problem, reason)
        return None

    def named(self, problem: ConvolutionProblem, handle: Any, name: str) -> ConvolutionPlan | None:
        return next(self.plans(problem, handle, name), None)

    def plans(self, problem: ConvolutionProblem, handle: Any, name: str = "") -> Iterator[ConvolutionPlan]:
        """Yield up to CANDIDATES built plans with sums in a fixed order, or the one of that name.

        Each can be run until the next is built. Float32 plans for gradients of bfloat16 filters come first.
        """
        for prefix in (FLOAT, "") if problem.may_be_float else ("",):
            if name.startswith(FLOAT) == bool(prefix) or not name:
                plans = self._plans(problem, handle, bool(prefix), name.removeprefix(FLOAT))
                for plan in itertools.islice(plans, CANDIDATES):
                    yield plan._replace(name=prefix + plan.name)

    def _plans(
        self, problem: ConvolutionProblem, handle: Any, float_result: bool, name: str
    ) -> Iterator[ConvolutionPlan]:
        errors = (self._frontend.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        try:
            graph, tensors = self.describe(problem, handle, True, float_result)
            graph.check_support()
            count = graph.get_execution_plan_count()
        except errors:
            return
        for index in range(count):
            try:
                plan = graph.get_plan_name_at_index(index)
                if name and plan != name:
                    continue
                graph.build_plan_at_index(index)
                yield ConvolutionPlan(graph, tensors, int(graph.get_workspace_size()), plan, float_result)
            except errors:  # one that is excluded, or that the device lacks
                continue

    def describe(
        self, problem: ConvolutionProblem, handle: Any, ordered: bool, float_result: bool = False
    ) -> tuple[Any, tuple[Any, ...]]:
        """Create a graph; return it with its admissible, unbuilt plans, and its tensors."""
        types, notes = self._frontend.data_type, self._frontend.numerical_note
        dtype = types.BFLOAT16 if problem.bf16 else types.FLOAT
        graph = self._frontend.pygraph(
            io_data_type=dtype, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, handle=handle
        )
        tensors = describe(graph, problem, dtype, types.FLOAT)
        result = tensors[2]
        result.set_output(True)
        result.set_uid(3)
        result.set_data_type(types.FLOAT if float_result else dtype)
        result.set_dim(list(problem.result))
        result.set_stride(strides(problem.result, problem.channels_last))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self._frontend.heur_mode.A, self._frontend.heur_mode.FALLBACK])
        excluded = [notes.NONDETERMINISTIC] if ordered else []
        if not problem.bf16:
            excluded += [notes.DOWN_CONVERT_INPUTS]
            excluded += [notes.TENSOR_CORE] if self.precision == "float32" else []
        graph.deselect_numeric_notes(excluded)
        if problem.direction == "wgrad" and not problem.bf16:
            graph.deselect_engines([INEXACT])
        return graph, tensors


def describe(graph: Any, problem: ConvolutionProblem, dtype: Any, real: Any) -> tuple[Any, ...]:
    """Add the convolution to a graph; return its inputs, in the order x, w, dy, its output, and any bias."""

    def tensor(name: str, shape: tuple[int, ...], number: int) -> Any:
        stride = strides(shape, problem.channels_last)
        return graph.tensor(name=name, dim=list(shape), stride=stride, data_type=dtype, uid=number)

    geometry = {"padding": list(problem.pad), "stride": list(problem.stride), "dilation": list(problem.dilation)}
    if problem.direction == "fprop":
        x, w = tensor("x", problem.x, 1), tensor("w", problem.w, 2)
        y = graph.conv_fprop(image=x, weight=w, **geometry)
        if not problem.bias:
            return x, w, y
        filters = problem.w[0]
        stride = [filters, 1, filters, filters]
        bias = graph.tensor(name="b", dim=[1, filters, 1, 1], stride=stride, data_type=real, uid=4)
        y = graph.bias(input=y, bias=bias)
        return x, w, graph.relu(input=y) if problem.relu else y, bias
    if problem.direction == "dgrad":
        w, dy = tensor("w", problem.w, 1), tensor("dy", problem.y, 2)
        return w, dy, graph.conv_dgrad(loss=dy, filter=w, **geometry)
    x, dy = tensor("x", problem.x, 1), tensor("dy", problem.y, 2)
    return x, dy, graph.conv_wgrad(image=x, loss=dy, **geometry)


def strides(shape: tuple[int, ...], channels_last: bool) -> list[int]:
    """Return the strides, in numbers, of a gapless image or filters."""
    _, channels, height, width = shape
    if channels_last:
        return [channels * height * width, 1, width * channels, channels]
    return [channels * height * width, height * width, width, 1]


def empty(shape: tuple[int, ...], dtype: Any, channels_last: bool) -> Array:
    """Allocate an uninitialised array, channels-last or C-contiguous."""
    if not channels_last:
        return cupy.empty(shape, dtype)
    return cupy.empty((shape[0], *shape[2:], shape[1]), dtype).transpose(0, 3, 1, 2)
