"""Runs one worker's cuDNN plans: created once for a problem, run with addresses of arrays, without a lock."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.cudnn_choice import ERRORS, Candidate, PlanChoices, choices_file, digest, fastest
from dsinga.addons.gpu.cupy.cudnn_graphs import ConvolutionPlan, ConvolutionProblem, PlanMaker, empty
from dsinga.addons.gpu.cupy.library import cudnn, cupy, device_name
from dsinga.ops.types import FLOAT32, Array

_log = logging.getLogger(__name__)

Inputs = Callable[[], Sequence[Array]]
Others = Mapping[str, Callable[[], Array]]
PLANS = 512  # of one worker; a net has three for each convolution
ALIGNMENT = 16  # bytes: every plan takes its arrays to begin at a multiple, as allocations do, and views need not
LARGEST = 2**30  # bytes of workspace of a plan that is chosen: a thread keeps one workspace for all of its plans
FAST = "1.32."  # the versions of the front end that can run plans by an array of addresses


SECTIONS = {"float32": "float32", "tf32": "tf32", "bf16": "bf16 between layers"}
"""The section of the file of choices, by precision; "bf16" has choices of plans with float32 results."""


class PlanRunner:
    """Runs a plan on one thread's handle, with addresses in a reused array."""

    def __init__(self, plan: ConvolutionPlan, frontend: Any, handle: Any, workspace: Array):
        self._plan, self._handle, self._workspace = plan, handle, workspace
        self.dtype = FLOAT32 if plan.float_result else None  # of the result; None for the inputs' dtype
        self._count = len(plan.tensors)
        self._addresses = (ctypes.c_void_p * self._count)()
        self._fast = fast_execution(frontend, plan.graph, self._count)
        if self._fast:
            execute, index = self._fast
            self._execute, self._last = execute, (workspace.data.ptr, handle.backend_handle, index)
            self._at = ctypes.addressof(self._addresses)

    def run(self, *arrays: int) -> None:
        """Compute on arrays at these addresses: the inputs, the result, and the bias if any."""
        if not self._fast:
            addresses = dict(zip(self._plan.tensors, arrays, strict=True))
            self._plan.graph.execute(addresses, int(self._workspace.data.ptr), handle=self._handle)
            return
        self._addresses[:] = list(arrays)
        self._execute(self._at, self._count, *self._last)


def fast_execution(frontend: Any, graph: Any, count: int) -> tuple[Any, int] | None:
    """Find the method that runs a graph by ``count`` addresses, and its plan's number; None if there is none."""
    if not str(getattr(frontend, "__version__", "")).startswith(FAST) or graph.selected_engine is not None:
        return None
    number = graph._plans[graph._plan_index].cpp_index
    if number is None or list(graph._variant_pack_uids() or ()) != list(range(1, count + 1)):
        return None
    return graph._lowered_graph._execute_with_raw_ptrs, number


class _ThreadPlans(threading.local):
    def __init__(self) -> None:
        self.handle: Any = None
        self.stream = -1
        self.workspace: Array | None = None
        self.runners: dict[ConvolutionProblem, PlanRunner | str] = {}


class ConvolutionPlans:
    """The convolution plans of one worker, and a handle for each thread; running a plan again needs no lock."""

    def __init__(self, precision: str):
        self._frontend: Any = cudnn()
        self._maker = PlanMaker(self._frontend, precision)
        self._plans: dict[ConvolutionProblem, ConvolutionPlan | str] = {}
        self._kept_choices: PlanChoices | None = None
        self._thread, self._lock = _ThreadPlans(), threading.Lock()
        self._workspaces: list[Array] = []  # of all threads; graphs that were captured use them

    def digest(self) -> str:
        """Hash this host's choices for the device, to compare hosts; "" without choices."""
        return digest(device_name(), choices_file()) if self._frontend is not None else ""

    def knows(self, problem: ConvolutionProblem) -> bool:
        """Whether the calling thread has a runner for a problem."""
        return problem in self._thread.runners

    def compute(self, problem: ConvolutionProblem, arrays: Inputs, others: Others) -> Array:
        """Compute a convolution by its plan, or by one of ``others`` if that is faster.

        ``arrays()`` are the direction's inputs in the order x, w, dy, and any bias, all float32 or all bfloat16.
        Gradients of filters may be float32 in either case. ``others`` compute the result without a plan, by name; the
        first is the fallback.
        """
        if self._frontend is None:
            return next(iter(others.values()))()
        thread = self._thread
        if problem not in thread.runners:
            self._add_runner(problem, arrays, others)
        runner = thread.runners[problem]
        return others[runner]() if isinstance(runner, str) else self._run(problem, runner, arrays)

    def _run(self, problem: ConvolutionProblem, runner: PlanRunner, arrays: Inputs) -> Array:
        left, right, *bias = map(_aligned, arrays())
        thread, stream = self._thread, cupy.cuda.get_current_stream().ptr
        if thread.stream != stream:
            self._frontend.set_stream(handle=thread.handle, stream=stream)
            thread.stream = stream
        result = empty(problem.result, runner.dtype or left.dtype, problem.channels_last)
        runner.run(left.data.ptr, right.data.ptr, result.data.ptr, *(array.data.ptr for array in bias))
        return result

    def _add_runner(self, problem: ConvolutionProblem, arrays: Inputs, others: Others) -> None:
        thread = self._thread
        if thread.handle is None:
            thread.handle = self._frontend.create_handle()
        with self._lock:
            if problem not in self._plans:
                if len(self._plans) >= PLANS:
                    self._plans.clear()
                self._plans[problem] = self._plan(problem, arrays, others)
            plan = self._plans[problem]
        if len(thread.runners) >= PLANS:
            thread.runners.clear()
        thread.runners[problem] = plan if isinstance(plan, str) else self._runner(plan)

    def _runner(self, plan: ConvolutionPlan) -> PlanRunner:
        return PlanRunner(plan, self._frontend, self._thread.handle, self._workspace(plan.workspace))

    def _plan(self, problem: ConvolutionProblem, arrays: Inputs, others: Others) -> ConvolutionPlan | str:
        choices, handle = self._choices(), self._thread.handle
        choice = choices.find(problem)
        if choice is None and choices.is_kept and cupy.cuda.get_current_stream().ptr:
            try:
                choice = self._choose(problem, choices, arrays, others)
            except OSError as error:
                _log.warning("plans of cuDNN are not timed, since choices cannot be kept: %s", error)
        if choice is not None and choice in others:
            return choice
        plan = None if choice is None else self._maker.named(problem, handle, choice)
        return plan or self._maker.make(problem, handle) or next(iter(others))

    def _choose(self, problem: ConvolutionProblem, choices: PlanChoices, arrays: Inputs, others: Others) -> str | None:
        with choices.choosing():
            choice = choices.find(problem)
            if choice is None:
                choice = self._measure(problem, arrays, others)
                if choice is not None:
                    choices.add(problem, choice)
        return choice

    def _choices(self) -> PlanChoices:
        if self._kept_choices is None:
            device = device_name()
            libraries = f"cuDNN {self._frontend.backend_version_string()} {getattr(self._frontend, '__version__', '')}"
            self._kept_choices = PlanChoices(
                f"{device}, {libraries}, {SECTIONS[self._maker.precision]}", choices_file()
            )
        return self._kept_choices

    def _measure(self, problem: ConvolutionProblem, arrays: Inputs, others: Others) -> str | None:
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            reference, first = None, next(iter(others))
            with contextlib.suppress(cupy.cuda.memory.OutOfMemoryError):
                reference = others[first]()

            def candidates() -> Iterator[Candidate]:
                for plan in self._maker.plans(problem, self._thread.handle):
                    if plan.workspace > LARGEST:
                        continue
                    with contextlib.suppress(cupy.cuda.memory.OutOfMemoryError):
                        workspace = cupy.empty(max(plan.workspace, 1), np.uint8)
                        runner = PlanRunner(plan, self._frontend, self._thread.handle, workspace)
                        yield Candidate(plan.name, functools.partial(self._run, problem, runner, arrays))
                for name, compute in others.items():
                    if name != first or reference is not None:
                        yield Candidate(name, compute)

            comparable = None if problem.bf16 else reference
            return fastest(candidates(), comparable, ERRORS[self._maker.precision])

    def _workspace(self, size: int) -> Array:
        thread = self._thread
        if thread.workspace is None or thread.workspace.size < size:
            thread.workspace = cupy.empty(max(size, 1), np.uint8)
            self._workspaces.append(thread.workspace)
        return thread.workspace


def _aligned(array: Array) -> Array:
    if array.data.ptr % ALIGNMENT == 0:
        return array
    copy = empty(array.shape, array.dtype, array.ndim == 4 and array.strides[1] == array.itemsize)
    copy[...] = array
    return copy
