"""The numpy backend's conversions, device copies and optimizer updates: kernels outside layers' arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsinga.ops.layout import LAST, to_image, to_rows
from dsinga.ops.recorded_array import RecordedArray, host_array, recorder
from dsinga.ops.types import Array, AsyncCopy, FinishedCopy, NotCapturable, RecordedStep
from dsinga.ops.update import Update, apply


class NumpyArrays:
    """Converts arrays, copies them to devices and updates params; images are channels-last."""

    name = "numpy"
    xp: Any = np
    """The module with numpy's functions for this backend's arrays: numpy or cupy."""
    precision: str = "float32"
    """How products round their factors: "float32", "tf32" or "bf16"."""
    has_bf16_features: bool = False
    """Whether some features are bfloat16 arrays, which only layers that support them get."""

    fuses_rectifiers: bool = False
    """Whether ``rectified_convolution`` and ``rectified_inner_product`` save a pass over the result."""

    # -- arrays ----------------------------------------------------------------------------------------------

    def asarray(self, array: Array) -> Array:
        """Return ``array`` as this backend's array, without a copy if possible."""
        return host_array(array)

    def to_numpy(self, array: Array) -> Array:
        """Return ``array`` as a numpy array in host memory."""
        return array

    def to_numpy_bf16(self, array: Array) -> Array:
        """Copy an array to host memory, float32 as bfloat16 if products round their factors so."""
        return self.to_numpy(array)

    def to_float32(self, x: Array) -> Array:
        """Convert a bfloat16 feature to float32; other arrays are unchanged."""
        return x

    def cast_like(self, x: Array, target: Array) -> Array:
        """Convert x to the dtype of ``target``, if one is bfloat16 and the other float32; else return x itself."""
        return x

    def as_source(self, x: Array) -> Array:
        """Round the source of a product once for both passes, if it takes less memory then."""
        return x

    rounded_params: Any = None
    """The kept copies of params in the precision of factors (``RoundedParams``), or None."""

    def as_factor(self, w: Array) -> Array:
        """Round a weight once for all products of a pass, if the precision rounds factors."""
        return w

    def read(self, numbers: Sequence[Any]) -> list[float]:
        """Read numbers and 0-d arrays as floats, with one blocking copy from the device."""
        return [float(number) for number in numbers]

    def images(self, array: Array, scale: float = 1.0, mean: Array | None = None, std: Array | None = None) -> Array:
        """Normalise records: ``(array - mean) / std * scale`` as float32, for records (B, ...) of any dtype.

        ``mean`` and ``std`` are None, scalars or arrays that broadcast to one record.
        """
        result = self.empty(array.shape, np.float32)
        np.subtract(array, 0 if mean is None else mean, out=result, dtype=np.float32, casting="same_kind")
        factor = np.float32(scale) if std is None else np.float32(scale) / np.asarray(std, np.float32)
        if factor.ndim or factor != 1:
            result *= factor
        return result

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array; images and volumes have the fastest layout."""
        if len(shape) not in LAST:
            return np.empty(shape, dtype)
        batch, channels, *sizes = shape
        return to_image(np.empty((batch, *sizes, channels), dtype))

    def flatten(self, x: Array) -> Array:
        """Flatten (B, C, H, W) to (B, C·H·W) in the order C, H, W, for any layout; a view if possible."""
        return x.reshape(x.shape[0], math.prod(x.shape[1:]))  # not -1, which is ambiguous for an empty batch

    def unflatten(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Undo :meth:`flatten`: (B, n) to ``shape``; images and volumes have the fastest layout."""
        x = x.reshape(shape)
        return to_image(to_rows(x)) if x.ndim in LAST else x

    def set_threads(self, count: int) -> None:
        """Let kernels of the calling thread use ``count`` cores; ignored here: numpy's threads are global."""

    # -- workers and their device ----------------------------------------------------------------------------

    def device_count(self) -> int:
        """Return the number of visible GPUs; 0 if the backend computes in host memory."""
        return 0

    def describe(self) -> str:
        """Name the processor and the libraries in one sentence."""
        return f"the kernel backend {self.name!r}, on CPUs"

    def lacks_bf16(self) -> str:
        """Say why the backend has no precision "bf16", or "" if it has."""
        return f"the kernel backend {self.name!r} has no other precision"

    def enter(self) -> None:
        """Select this worker's device and stream in the calling thread, before any kernel; numpy needs nothing."""

    def upload(self, array: Array) -> AsyncCopy:
        """Start to copy a host array of any dtype to the device, concurrently with its kernels.

        bfloat16 becomes float32, unless the backend has bfloat16 features.
        """
        return FinishedCopy(array)

    def download(self, array: Array) -> AsyncCopy:
        """Start to copy an array to host memory after earlier kernels, concurrently with later ones."""
        return FinishedCopy(array)

    def hand_over(self, array: Array) -> AsyncCopy:
        """Let other threads and streams use an array: return a handle that waits for earlier kernels."""
        return FinishedCopy(array)

    @contextmanager
    def serialised(self) -> Iterator[None]:
        """Let any thread call these kernels within the context, one thread at a time."""
        yield

    def synchronize(self) -> None:
        """Wait for all kernels and copies of this worker, for timers."""

    def free_memory(self) -> int | None:
        """Return the free bytes of the device; None if the backend computes in host memory."""
        return None

    # -- passes that are captured ------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """Whether a pass is recorded for replay, so that nothing may be copied from or to the host."""
        return recorder() is not None

    def step_number(self, compute: Callable[[int], float], step: int) -> float | Array:
        """Return a number that depends on the step; in a recording, an array (1,) for later steps, too."""
        recorded = recorder()
        if recorded is None or not isinstance(step, RecordedStep):
            return compute(step)
        return recorded.of_step(lambda step: [compute(step)])

    def defer_read(self, numbers: Sequence[Any]) -> None:
        """Read these numbers, metrics, after each replay; param updates require all to be finite."""
        recorded = recorder()
        assert recorded is not None, "no pass is recorded"
        if not all(isinstance(number, RecordedArray) for number in numbers):
            raise NotCapturable("a metric is computed in host memory")
        recorded.numbers = [number.array for number in numbers]

    # -- updates ---------------------------------------------------------------------------------------------

    def update(self, updates: Sequence[Update], clip_norm: float = 0.0) -> None:
        """Update params in place by gradients, each by its optimizer's formula, with the bits of the formula's ufuncs.

        Unless ``clip_norm`` is 0, a gradient of larger, finite Euclidean norm is first scaled down to it.
        """
        for update in updates:
            apply(update, clip_norm)

    def check_recordable(self, updates: Sequence[Update]) -> None:
        """Raise NotCapturable unless a recorded pass can contain all these updates."""
        raise NotCapturable(f"{self.name} records no passes")
