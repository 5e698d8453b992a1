"""The kernel interface: the methods of every backend, which are numpy's where a backend has no faster ones.

Layers call kernels through an :class:`Ops` object. Shapes are tuples, ``B`` is the batch, images are logically
``(B, C, H, W)``. A backend may lay out images in memory as it likes (the CPU backends use channels-last strides);
callers see the logical shape. Arrays are float32 unless a kernel is given float64, which the numpy backend computes in
float64 (the reference for gradient checks). No kernel but ``update`` changes its arguments.

A :data:`~dsinga.ops.types.Pair` is ``(vertical, horizontal)``: kernel, stride and pad are pairs.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, register
from dsinga.ops.numpy.arrays import NumpyArrays
from dsinga.ops.numpy.attention import NumpyAttention
from dsinga.ops.numpy.convolution import NumpyConvolution, NumpyGroupedConvolution, NumpyPooling
from dsinga.ops.numpy.elementwise import NumpyLoss
from dsinga.ops.numpy.lookup import NumpyLookup, NumpyRandom
from dsinga.ops.numpy.normalisation import NumpyGroupNorm, NumpyNormalisation
from dsinga.ops.numpy.points import NumpyPoints
from dsinga.ops.numpy.recurrent import NumpyRecurrent
from dsinga.ops.types import Array

_warn_once = functools.cache(logging.getLogger(__name__).warning)


class PassResult(NamedTuple):
    """The metrics of a pass, and its outputs, which the next pass overwrites."""

    metrics: Any
    outputs: Any = None


class PassMemory(Protocol):
    """The arrays of one captured pass, and what is launched: a graph of a GPU, or a list of calls on a host.

    Attributes:
        warm_ups: how often a pass is recorded before it is captured.
        is_on_host: whether it is replayed by calls on a host, in which case it changes no param.
    """

    warm_ups: int
    is_on_host: bool

    def put(self, name: str, array: Any) -> Array:
        """Copy an array of the batch to the buffer of its name, and return the buffer."""

    def hold(self, params: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return params that keep their addresses, as the recorded pass takes them."""

    def recording(self, step: int) -> AbstractContextManager[None]:
        """Return a context in which kernels take the numbers of ``step`` from where later launches put theirs."""

    def capturing(self) -> AbstractContextManager[None]:
        """Return a context, within :meth:`recording`, after which the pass is captured."""

    @property
    def captured(self) -> bool:
        """Whether there is something to launch."""

    def launch(self, step: int) -> None:
        """Compute the pass on what its buffers hold, with the numbers of ``step``."""

    def read(self) -> list[float]:
        """Return the metrics of the first launch that was not read; one is NaN where the pass must be called."""

    def results(self, outputs: Any) -> Any:
        """Return the outputs of a recorded pass as callers take them; each launch overwrites them."""

    def cancel(self) -> None:
        """Wait for all launches, and forget their metrics."""

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it holds."""


class RepeatedIterations(Protocol):
    """Replays captured training iterations and evaluations of one worker; used by one thread."""

    def train(self, records: Mapping[str, Any], ctx: Any) -> Any | None:
        """Replay the iteration of a step and return its metrics; None if the iteration must be computed by calls."""

    def begin(self, step: int) -> None:
        """Make ``step`` the current step again, where its iteration or a later one was launched and changed nothing."""

    def launch(self, records: Mapping[str, Any], ctx: Any) -> bool:
        """Launch a captured iteration without waiting for it; return whether there is one, to be finished later."""

    def finish(self) -> Any | None:
        """Return the metrics of the first launched iteration; None if it and later ones must be computed by calls."""

    def evaluate(self, net: Any, records: Mapping[str, Any], ctx: Any) -> Any | None:
        """Replay the evaluation of a batch of another phase; return its metrics, None if it must be done by calls."""

    def clear(self) -> None:
        """Drop all captures, because the params have moved to other addresses."""


class Capture(Protocol):
    """How a backend repeats a *pass*, a function that calls kernels: recorded, then replayed without that function.

    A worker asks its kernels once by :meth:`Ops.capture`; None stands for a backend without, whose passes are called. A
    backend whose arrays are not in host memory has one, if only to exchange them. What a capture is, a graph on a GPU
    or a list of calls of kernels on a CPU, is the backend's. All keep these rules:

    - A replay gives the bits of the call. All that changes from pass to pass is among its records and params, of which
      each set of shapes and dtypes has a capture of its own, or follows from the step: while a pass is recorded the
      context has a :class:`~dsinga.ops.types.RecordedStep`, and layers take numbers that depend on the step from
      :meth:`Ops.step_number`.
    - None, in place of a result, says that the pass must be called, and that no param has changed: a layer has raised
      :class:`~dsinga.ops.types.NotCapturable`, or a metric is not finite, so that the call says what is wrong.
    """

    def iterations(
        self, step: Any, updater: Any, params: Any, updates: Any, is_local: bool = True
    ) -> RepeatedIterations:
        """Return the object that repeats the iterations of a worker.

        ``step`` is its :class:`~dsinga.passes.training_step.TrainingStep`; ``updates`` takes gradients as its
        ``Updates``, and has ``begin`` and ``discard``. Unless ``is_local``, servers update ``params``, which come from
        :meth:`exchange`.
        """

    def exchange(self, exchange: Any, **options: Any) -> Any:
        """Return the exchange of params with servers that a worker of a cluster calls in place of its own.

        That is ``exchange`` itself where kernels compute in host memory. ``GroupWorker`` gives the options.
        """


class Ops(
    NumpyArrays,
    NumpyConvolution,
    NumpyGroupedConvolution,
    NumpyPooling,
    NumpyLookup,
    NumpyLoss,
    NumpyRandom,
    NumpyGroupNorm,
    NumpyNormalisation,
    NumpyRecurrent,
    NumpyAttention,
    NumpyPoints,
):
    """Array kernels of one backend, stateless for its callers: what it caches never changes a result.

    The methods of this class, all in numpy, are the reference; a backend overrides those for which it has faster ones.
    """

    def capture(self) -> Capture | None:
        """Return how this worker repeats passes; None where each is computed as it is called."""
        return None

    @classmethod
    def create(cls) -> Ops:
        """Return the backend, as the registry's kind "backend" asks for it."""
        return cls()

    def kernel(self, name: str) -> Callable[..., Any]:
        """Return a kernel by its name; those of add-ons, of the registry's kind "kernel", have a body in numpy.

        A backend that has a faster one of that name defines it as a method.
        """
        kernel: Callable[..., Any] = getattr(self, name, None) or lookup("kernel", name)
        return kernel

    captures_passes: ClassVar[bool] = False
    """Whether :meth:`new_pass` returns one."""
    calls_before_capture: ClassVar[int] = 0
    """How often a pass is called before it is worth to be recorded."""

    def new_pass(self) -> PassMemory | None:
        """Return memory for a pass that is captured; None where there is none for passes."""
        return None

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        """Return the backend for one worker: itself on CPUs; on GPUs, one with streams of its own.

        ``device`` is the number of a GPU among those that this process sees, the first if None. ``precision`` is that
        of products of float32 arrays: "float32", "tf32" or "bf16". Params and their gradients are float32 in each; with
        "bf16" features of images may be bfloat16 (``has_bf16_features``). A backend on CPUs that has no bfloat16
        computes in float32 and warns once. Raises UserError for a device or another precision that it does not have.
        """
        if device is not None:
            raise UserError(f"the kernel backend {self.name!r} computes on CPUs; it has no device {device}")
        if precision == "bf16":
            _warn_once("precision kBF16 computes in float32 here: %s", self.lacks_bf16())
        elif precision != "float32":
            raise UserError(f"the kernel backend {self.name!r} computes in float32; {precision} needs a GPU")
        return self


@register("backend", "numpy")
class NumpyOps(Ops):
    """All kernels in numpy; the images that it makes are channels-last, its arguments may have any strides."""
