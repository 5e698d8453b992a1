"""Arrays, devices, random numbers and updates: the part of the kernel interface that is not layers' arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from dsinga.ops.interface.device_pass import DevicePass, NotCapturable
from dsinga.ops.types import Array, AsyncCopy, Pair
from dsinga.ops.update import Update


class ArrayOps(ABC):
    """Conversion of arrays, copies to and from devices, random numbers, and updates of params."""

    name: str
    xp: Any
    """The module that has numpy's functions for this backend's arrays: numpy, or cupy."""
    precision: str = "float32"
    """How products round their factors: "float32", "tf32" or "bf16"."""
    has_bf16_features: bool = False
    """Whether some features are bfloat16 arrays: then only layers that take these get them."""

    rectifies_convolutions: bool = False
    """Whether ``rectified_convolution`` takes less time than a convolution and a rectifier."""

    # -- arrays ----------------------------------------------------------------------------------------------

    @abstractmethod
    def asarray(self, array: Array) -> Array:
        """Return ``array`` as this backend's array, without a copy where possible."""

    @abstractmethod
    def to_numpy(self, array: Array) -> Array:
        """Return ``array`` as a numpy array in host memory."""

    def to_numpy_bf16(self, array: Array) -> Array:
        """Return ``array`` in host memory, if it is float32 rounded to bfloat16 as products round their factors.

        In a precision that does not round them so, it is what :meth:`to_numpy` returns.
        """
        return self.to_numpy(array)

    def to_float32(self, x: Array) -> Array:
        """Return a feature in float32, if it is bfloat16; labels and all else as they are."""
        return x

    def cast_like(self, x: Array, target: Array) -> Array:
        """Return x in the dtype of ``target``, if one of them is bfloat16 and the other float32; else x itself."""
        return x

    def as_factor(self, w: Array) -> Array:
        """Return a weight as products take it, rounded once for all products of a pass if the precision rounds factors.

        The kernels take it in place of w, and give the same bits.
        """
        return w

    @abstractmethod
    def read(self, numbers: Sequence[Any]) -> list[float]:
        """Return numbers and 0-d arrays of the backend as floats, by one copy to the host, which waits for it."""

    @abstractmethod
    def images(self, array: Array, scale: float = 1.0, mean: Array | None = None, std: Array | None = None) -> Array:
        """Return ``(array - mean) / std * scale`` as float32, for records (B, ...) of any dtype.

        ``mean`` and ``std`` are None, scalars or arrays that broadcast against one record. An image or volume has the
        layout in which this backend's convolution is fastest.
        """

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array; an image or a volume in the layout in which this backend is fastest."""

    @abstractmethod
    def flatten(self, x: Array) -> Array:
        """(B, C, H, W) -> (B, C·H·W) in the order C, H, W, whatever the memory layout; a view where possible."""

    @abstractmethod
    def unflatten(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Undo :meth:`flatten`: (B, n) -> ``shape``; an image or a volume in this backend's fastest layout."""

    @abstractmethod
    def set_threads(self, count: int) -> None:
        """Let kernels of the calling thread use ``count`` cores."""

    # -- workers and their device ----------------------------------------------------------------------------

    @abstractmethod
    def device_count(self) -> int:
        """Return the number of GPUs that this process sees; 0 if the backend computes in host memory."""

    @abstractmethod
    def describe(self) -> str:
        """Return one sentence that names the processor and the libraries that compute."""

    @abstractmethod
    def lacks(self) -> str:
        """Return one sentence that names a missing library and what runs instead of it; "" if none is missing."""

    def choices(self) -> str:
        """Return a digest of what this host has chosen by measurement for later runs, "" if nothing was.

        Hosts with the same device and other choices may round otherwise.
        """
        return ""

    def lacks_bf16(self) -> str:
        """Return why it cannot compute in the precision "bf16", "" if it can."""
        return ""

    @abstractmethod
    def enter(self) -> None:
        """Make this worker's device and stream those of the calling thread; call it before any kernel."""

    @abstractmethod
    def upload(self, array: Array) -> AsyncCopy:
        """Start to copy a host array of any dtype to the device, concurrently with its kernels.

        Later kernels may use the result. It is float32 for a bfloat16 array, unless the backend has bfloat16 features.
        The array may be changed as soon as this method returns, unless the backend computes in host memory.
        """

    @abstractmethod
    def download(self, array: Array) -> AsyncCopy:
        """Start to copy an array to host memory, after the kernels called so far and concurrently with later ones."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all kernels and copies of this worker have ended; a timer must call it."""

    @abstractmethod
    def free_memory(self) -> int | None:
        """Return the free bytes of the worker's device; None if the backend computes in host memory."""

    # -- passes that a device repeats ------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """Whether a pass is recorded, so that nothing may be copied from or to the host (:class:`DevicePass`)."""
        return False

    def new_pass(self) -> DevicePass | None:
        """Return memory for a pass that is captured as a graph; None for a backend, or a worker, without graphs."""
        return None

    def step_number(self, compute: Callable[[int], float], step: int) -> float | Array:
        """Return ``compute(step)``; where a pass is recorded, a float64 array (1,) that has it for each later step."""
        return compute(step)

    def defer_read(self, numbers: Sequence[Any]) -> None:
        """Let :meth:`DevicePass.read` return these numbers after each pass; updates need all of them to be finite."""
        raise NotImplementedError(f"{self.name} records no passes")

    # -- random numbers --------------------------------------------------------------------------------------

    @abstractmethod
    def uniform(self, key: Pair, first: int, step: int, rows: int, columns: int) -> Array:
        """Return rows ``first`` to ``first + rows`` of the random numbers of a key and step: float32 in [0, 1).

        The result is (rows, columns). In every backend the numbers are those of numpy's Philox4x64-10, bit for bit.
        Each row takes w = ⌈columns/8⌉ counters; the first counter of the first row is (first·w, 0, step, 0). Both
        numbers of the key are below 2⁶⁴. Where a pass is recorded, the step is that of each later pass.
        """

    @abstractmethod
    def crop(
        self, images: Array, tops: Sequence[int], lefts: Sequence[int], mirrored: Sequence[bool], size: Pair, pad: int
    ) -> Array:
        """(B, C, H, W) of any dtype -> (B, C, *size): the window at (top, left) of each image, mirrored or not.

        Tops and lefts are counted in images with ``pad`` zeros added on every side. ``tops``, ``lefts`` and
        ``mirrored`` have one entry an image, in host memory, or are arrays of the backend.
        """

    @abstractmethod
    def bernoulli(self, p: Array, uniform: Array) -> Array:
        """1 with probability p, else 0: 1 where the uniform is below p, of the shape and dtype of p (B, n)."""

    @abstractmethod
    def dropout_mask(self, uniform: Array, ratio: float) -> Array:
        """(B, n) uniforms -> float32: 1/(1 - ratio) where the uniform is >= ratio, else 0."""

    # -- updates ---------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, updates: Sequence[Update], clip_norm: float = 0.0) -> None:
        """Update params in place by their gradients, each by its own formula, with the bits of the formula's ufuncs.

        Unless ``clip_norm`` is 0, a gradient whose Euclidean norm is larger than that, and finite, is first scaled down
        to it. The norm is summed in float64, the factor is float32.
        """

    def check_recordable(self, updates: Sequence[Update]) -> None:
        """Raise NotCapturable unless a pass that is recorded can have all of these updates."""
        raise NotCapturable(f"{self.name} records no passes")
