"""The numpy backend, which is the reference for the others: all kernels, in float32 or float64."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.ops.interface import Ops
from dsinga.ops.layout import LAST, to_image, to_rows
from dsinga.ops.numpy.attention import NumpyAttention
from dsinga.ops.numpy.convolution import NumpyConvolution, NumpyPooling
from dsinga.ops.numpy.crf import NumpyCRF
from dsinga.ops.numpy.elementwise import NumpyElementwise, NumpyLoss
from dsinga.ops.numpy.lookup import NumpyLookup, NumpyRandom
from dsinga.ops.numpy.normalisation import NumpyNormalisation
from dsinga.ops.numpy.points import NumpyPoints
from dsinga.ops.numpy.recurrent import NumpyRecurrent
from dsinga.ops.types import Array, AsyncCopy, FinishedCopy
from dsinga.ops.update import Update, apply

_warn_once = functools.cache(logging.getLogger(__name__).warning)


class NumpyOps(
    NumpyConvolution,
    NumpyPooling,
    NumpyNormalisation,
    NumpyElementwise,
    NumpyCRF,
    NumpyLookup,
    NumpyRecurrent,
    NumpyAttention,
    NumpyLoss,
    NumpyPoints,
    NumpyRandom,
):
    """All kernels in numpy; the images that it makes are channels-last, its arguments may have any strides."""

    name = "numpy"
    xp = np

    def asarray(self, array: Any) -> Array:
        return np.asarray(array)

    def to_numpy(self, array: Array) -> Array:
        return array

    def read(self, numbers: Sequence[Any]) -> list[float]:
        return [float(number) for number in numbers]

    def images(self, array: Array, scale: float = 1.0, mean: Array | None = None, std: Array | None = None) -> Array:
        result = self.empty(array.shape, np.float32)
        np.subtract(array, 0 if mean is None else mean, out=result, dtype=np.float32, casting="same_kind")
        factor = np.float32(scale) if std is None else np.float32(scale) / np.asarray(std, np.float32)
        if factor.ndim or factor != 1:
            result *= factor
        return result

    def flatten(self, x: Array) -> Array:
        return x.reshape(x.shape[0], math.prod(x.shape[1:]))  # not -1, which is ambiguous for an empty batch

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if len(shape) not in LAST:
            return np.empty(shape, dtype)
        batch, channels, *sizes = shape
        return to_image(np.empty((batch, *sizes, channels), dtype))

    def unflatten(self, x: Array, shape: tuple[int, ...]) -> Array:
        x = x.reshape(shape)
        return to_image(to_rows(x)) if x.ndim in LAST else x

    def set_threads(self, count: int) -> None:
        """Do nothing: numpy's BLAS counts its threads for the whole process, not for the calling thread."""

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        if device is not None:
            raise UserError(f"the kernel backend {self.name!r} computes on CPUs; it has no device {device}")
        if precision == "bf16":
            _warn_once("precision kBF16 computes in float32 here: %s", self.lacks_bf16())
        elif precision != "float32":
            raise UserError(f"the kernel backend {self.name!r} computes in float32; {precision} needs a GPU")
        return self

    def lacks_bf16(self) -> str:
        """Return why products have no bfloat16 here, "" if they have."""
        return f"the kernel backend {self.name!r} has no other precision"

    def device_count(self) -> int:
        return 0

    def describe(self) -> str:
        return f"the kernel backend {self.name!r}, on CPUs"

    def lacks(self) -> str:
        return ""

    def enter(self) -> None:
        """Do nothing: any thread may compute for any worker."""

    def upload(self, array: Array) -> AsyncCopy:
        return FinishedCopy(array)

    def download(self, array: Array) -> AsyncCopy:
        return FinishedCopy(array)

    def synchronize(self) -> None:
        """Do nothing: a kernel has ended when its call returns."""

    def free_memory(self) -> int | None:
        return None

    def update(self, updates: Sequence[Update], clip_norm: float = 0.0) -> None:
        for update in updates:
            apply(update, clip_norm)
