"""Arrays on the device and their layouts: images are channels-last, all others C-contiguous."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.addons.gpu.cupy.recording import CupyRecording
from dsinga.ops.layout import LAST, is_channels_last, to_image
from dsinga.ops.types import BFLOAT16, FLOAT32, Array, NotCapturable

_images, _elementwise = Source("images"), Source("elementwise")
TYPES = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float32", "float64"}
CONSTANTS = 64  # means and standard deviations of records kept on the device


def contiguous(x: Array, dtype: Any = None) -> Array:
    """Return x if it is C-contiguous and of this dtype, else a copy; faster than CuPy's function."""
    if x.flags.c_contiguous and (dtype is None or x.dtype == dtype):
        return x
    if dtype is not None and x.dtype != dtype and BFLOAT16 in (x.dtype, dtype):
        return cast(contiguous(x), dtype)
    return cupy.ascontiguousarray(x, dtype)


def cast(x: Array, dtype: Any) -> Array:
    """Convert x between float32 and bfloat16, dense and in its layout; return other dtypes unchanged.

    Numbers are rounded to the nearest, ties to even.
    """
    if x.dtype == FLOAT32 and dtype == BFLOAT16:
        kernel = "to_bfloat16"
    elif x.dtype == BFLOAT16 and dtype == FLOAT32:
        kernel = "from_bfloat16"
    else:
        return x
    x = x if x.flags.f_contiguous else dense(x)
    result = cupy.empty_like(x, dtype=dtype)
    _elementwise.each(kernel, FLOAT32, x.size, x, result)
    return result


def real(dtype: Any) -> Any:
    """Return the dtype in which kernels compute: float32 for bfloat16, else ``dtype``."""
    return FLOAT32 if dtype == BFLOAT16 else dtype


def to_rows(x: Array) -> Array:
    """Return image x (B, C, H, W) as C-contiguous (B, H, W, C): a view if x is channels-last, else a copy."""
    return contiguous(x.transpose(LAST[x.ndim]))


def by_channel(x: Array) -> Array:
    """Return x (B, C, ...) as C-contiguous (n, C), a row a pixel: a view if x is channels-last, else a copy."""
    rows = contiguous(x.transpose(0, *range(2, x.ndim), 1))  # cupy.moveaxis takes five times as long
    return rows.reshape(x.size // max(x.shape[1], 1), x.shape[1])


def from_channel_rows(rows: Array, shape: tuple[int, ...]) -> Array:
    """Undo :func:`by_channel`: view rows (n, C) as the channels-last array (B, C, ...) of ``shape``."""
    batch, channels, *sizes = shape
    return rows.reshape(batch, *sizes, channels).transpose(0, len(shape) - 1, *range(1, len(shape) - 1))


def empty_image(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an uninitialised image (B, C, H, W) with channels-last strides."""
    batch, channels, *sizes = shape
    return to_image(cupy.empty((batch, *sizes, channels), dtype))


def dense(x: Array) -> Array:
    """Return x if it is C-contiguous or channels-last, else a C-contiguous copy."""
    return x if x.flags.c_contiguous or is_channels_last(x) else cupy.ascontiguousarray(x)


def empty_like(x: Array) -> Array:
    """Return an uninitialised array with the layout of dense x."""
    return cupy.empty(x.shape, x.dtype) if x.flags.c_contiguous else empty_image(x.shape, x.dtype)


def aligned(x: Array, model: Array) -> Array:
    """Return x with the dtype and layout of the dense ``model``."""
    same = x.flags.c_contiguous if model.flags.c_contiguous else is_channels_last(x)
    if same:
        x = cast(x, model.dtype)
    if same and x.dtype == model.dtype:
        return x
    copy = empty_like(model)
    copy[...] = x
    return copy


class CupyArrays(CupyRecording):
    """Converts arrays between host and device, and records to images."""

    xp = cupy

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[tuple[Any, ...], tuple[Any, Array]] = {}

    def asarray(self, array: Any) -> Array:
        """Copy a host array to the device in order with the kernels; return device arrays unchanged."""
        if self.recording is not None and not isinstance(array, cupy.ndarray):
            return self.recording.constant(array)
        return cupy.asarray(array)

    def to_numpy(self, array: Array) -> Array:
        """Copy a device array to the host once its kernels have ended; return host arrays unchanged."""
        if not isinstance(array, cupy.ndarray):
            return np.asarray(array)
        if self.is_recording:
            raise NotCapturable("the host reads an array of the device")
        return array.get()

    def images(self, array: Array, scale: float = 1.0, mean: Array | None = None, std: Array | None = None) -> Array:
        array = cupy.asarray(array)
        array = array if array.dtype.name in TYPES else array.astype(np.float32)
        pixels = math.prod(array.shape[1:])
        image = array if array.ndim == 4 else contiguous(array).reshape(len(array), pixels, 1, 1)
        result = empty_image(image.shape, np.float32)
        shape, record = image.shape[1:], array.shape[1:]
        means, factors = self._constant(mean, None, record), self._constant(std, scale, record)
        steps = [step for constant in (means, factors) for step in _steps(constant, shape)]
        arguments = image, means, factors, result, float(scale), *(step // image.itemsize for step in image.strides)
        _images.each(f"images_{image.dtype}", result.dtype, result.size, *arguments, *steps, *shape)
        result = result if array.ndim == 4 else result.reshape(array.shape)
        return to_image(to_rows(result)) if array.ndim == 5 else result

    def _constant(self, value: Any, scale: float | None, record: tuple[int, ...]) -> Array | None:
        """Return a mean, or a factor ``scale``/value, to broadcast against an image, cached on the device."""
        if value is None:
            return None
        key = value if isinstance(value, float) else id(value), scale, record
        if key not in self._constants:
            if len(self._constants) >= CONSTANTS:
                self._constants.clear()
            numbers = np.asarray(self.to_numpy(value), np.float32)
            numbers = numbers if scale is None else np.float32(scale) / numbers
            if len(record) != 3:
                numbers = np.broadcast_to(numbers, record).reshape(-1, 1, 1) if numbers.ndim else numbers
            # with a reference to value, so that its id stays unique
            self._constants[key] = value, cupy.asarray(np.ascontiguousarray(numbers))
        return self.held(self._constants[key][1])

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return empty_image(shape, dtype) if len(shape) in LAST else cupy.empty(shape, dtype)

    def unflatten(self, x: Array, shape: tuple[int, ...]) -> Array:
        x = x.reshape(shape)
        return to_image(to_rows(x)) if x.ndim in LAST else x

    def set_threads(self, count: int) -> None:
        """Ignore the number of CPU threads: kernels use the whole device."""


def _steps(constant: Array | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    if constant is None:
        return 0, 0, 0
    return tuple(step // constant.itemsize for step in cupy.broadcast_to(constant, shape).strides)
