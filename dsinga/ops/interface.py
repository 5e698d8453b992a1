"""The kernel interface that every backend implements; layers call their arithmetic through an :class:`Ops` object.

``B`` is the batch, images are logically ``(B, C, H, W)``. A backend chooses their layout in memory (CPU backends:
channels-last strides). Arrays are float32, or float64 for gradient checks in numpy. Only ``update`` changes its
arguments. Kernel, stride and pad are ``(vertical, horizontal)``.
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
    """One captured pass, its arrays and its launch: a GPU graph, or a list of calls on a host.

    Attributes:
        warm_ups: how often a pass is recorded before its capture.
        is_on_host: whether calls on a host replay it, and change no param.
        rows: first, stop and total of the rows of the batch that the next recording or launch computes. A graph
            always computes the rows of its capture.
    """

    warm_ups: int
    is_on_host: bool
    rows: tuple[int, int, int]

    def put(self, name: str, array: Any) -> Array:
        """Copy an array of the batch to the fixed buffer that the captured pass reads; return the buffer."""

    def hold(self, params: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return params in the form for the recorded pass, which reads them at fixed addresses."""

    def recording(self, step: int) -> AbstractContextManager[None]:
        """Let kernels in the context read the numbers of ``step`` where later launches put theirs."""

    def capturing(self) -> AbstractContextManager[None]:
        """Capture the kernels of the context, within :meth:`recording`."""

    @property
    def captured(self) -> bool:
        """Whether there is a captured pass to launch."""

    def launch(self, step: int) -> None:
        """Replay the pass on its buffers, with the numbers of ``step``."""

    def read(self) -> list[float]:
        """Return the metrics of the earliest unread launch; one is NaN if the pass must be called."""

    def results(self, outputs: Any) -> Any:
        """Return the captured pass's outputs for callers; each launch overwrites them."""

    def cancel(self) -> None:
        """Wait for all launches, and forget their metrics."""

    @property
    def nbytes(self) -> int:
        """The bytes of memory of the captured pass."""


class RepeatedIterations(Protocol):
    """Replays captured training iterations and evaluations of one worker; for one thread."""

    def train(self, records: Mapping[str, Any], ctx: Any) -> Any | None:
        """Replay a training step and return its metrics; None if the step must be called."""

    def begin(self, step: int) -> None:
        """Go back to ``step``, after a launch without effect."""

    def launch(self, records: Mapping[str, Any], ctx: Any) -> bool:
        """Launch a captured training step without waiting; return whether there is one to finish."""

    def finish(self) -> Any | None:
        """Return the metrics of the earliest launch; None if it and later ones must be called."""

    def evaluate(self, net: Any, records: Mapping[str, Any], ctx: Any) -> Any | None:
        """Replay the evaluation of another phase and return its metrics; None if it must be called."""

    def clear(self) -> None:
        """Drop all captured iterations, because the params have other addresses."""


class Capture(Protocol):
    """How a backend records a *pass*, a function that calls kernels, once and then replays it without Python.

    It may be a GPU graph or a list of kernel calls on a CPU. Rules:

    - A replay gives the bits of the call. Only records, params and numbers of the step change. Each set of shapes and
      dtypes has its own capture. Layers get step-dependent numbers from :meth:`Ops.step_number`.
    - The result None means that the pass must be called, and that no param has changed: a layer has raised
      :class:`~dsinga.ops.types.NotCapturable`, or a metric is not finite.
    """

    def iterations(
        self, step: Any, updater: Any, params: Any, updates: Any, is_local: bool = True
    ) -> RepeatedIterations:
        """Return the object that replays a worker's iterations.

        Unless ``is_local``, servers update ``params``, which come from :meth:`exchange`.
        """

    def exchange(self, exchange: Any, **options: Any) -> Any:
        """Return the exchange of params with servers, for a worker with params in device memory.

        It is ``exchange`` itself if kernels compute in host memory.
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
    """The array kernels of one backend, such as ``convolution``; stateless for callers: caches never change a result.

    This class, all in numpy, is the reference; backends override methods.
    """

    def capture(self) -> Capture | None:
        """Return how this worker records and replays passes; None if every pass is called."""
        return None

    @classmethod
    def create(cls) -> Ops:
        """Create the backend, for the registry's kind "backend"."""
        return cls()

    def kernel(self, name: str) -> Callable[..., Any]:
        """Look up a kernel by name: a method, or numpy code registered by an add-on as kind "kernel"."""
        kernel: Callable[..., Any] = getattr(self, name, None) or lookup("kernel", name)
        return kernel

    captures_passes: ClassVar[bool] = False
    """Whether :meth:`new_pass` returns one."""
    calls_before_capture: ClassVar[int] = 0
    """How often a pass is called before a recording pays."""

    def new_pass(self) -> PassMemory | None:
        """Return memory in which to capture a pass; None if the backend captures none."""
        return None

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        """Return the backend for one worker: itself on CPUs; on GPUs, one with its own streams.

        ``device`` is the number of a visible GPU, by default the first. ``precision`` of products of float32 arrays is
        "float32", "tf32" or "bf16". Params and their gradients are always float32; with "bf16" features of images may
        be bfloat16 (``has_bf16_features``). CPU backends without bfloat16 use float32 and warn once. Raises UserError
        for an unsupported device or precision.
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
    """The numpy backend: all kernels in numpy; makes channels-last images, accepts any strides."""
