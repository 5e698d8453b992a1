"""The class of the cupy backend, assembled from its families of kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsinga.addons.gpu.captured_iterations import GraphCapture
from dsinga.addons.gpu.cupy.arrays import CupyArrays, by_channel, cast, from_channel_rows
from dsinga.addons.gpu.cupy.cudnn_plans import ConvolutionPlans
from dsinga.addons.gpu.cupy.device_pass import CupyPass
from dsinga.addons.gpu.cupy.elementwise import CupyElementwise, CupyLookup
from dsinga.addons.gpu.cupy.library import cupy, describe, lacks
from dsinga.addons.gpu.cupy.normalisation import CupyBatchNorm
from dsinga.addons.gpu.cupy.products import PRECISIONS, Blas, CupyProducts
from dsinga.addons.gpu.cupy.recurrent import CupyRecurrent
from dsinga.addons.gpu.cupy.sequences import CupyAttention, CupyCRF
from dsinga.addons.gpu.cupy.streams import ComputedArray, Download, Streams, Upload
from dsinga.addons.gpu.cupy.update import CupyUpdate
from dsinga.addons.gpu.cupy.volumes import CupyGroupedConvolution, CupyVolumePooling
from dsinga.base.errors import UserError
from dsinga.ops.interface import Capture, Ops
from dsinga.ops.types import BFLOAT16, FLOAT32, Array, AsyncCopy, FinishedCopy, Shaped, converted


class CupyPoints(CupyElementwise):
    """Softmax and cross-entropy of field points; results are channels-last."""

    def point_softmax(self, x: Array) -> Array:
        return from_channel_rows(self.softmax(by_channel(x)), x.shape)

    def point_softmax_loss(self, x: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Any, Any]:
        p = self.softmax(by_channel(x))
        rows = self.label_losses(p, labels.reshape(-1), 1)
        if weights is not None:
            rows *= weights.reshape(-1)
        sums = rows.sum(axis=1)
        return from_channel_rows(p, x.shape), sums[0], sums[1]

    def point_softmax_loss_grad(self, p: Array, labels: Array, weights: Array | None, factor: float) -> Array:
        dx = self.softmax_loss_grad(by_channel(p), labels.reshape(-1), factor)
        if weights is not None:
            dx *= weights.reshape(-1, 1).astype(dx.dtype, copy=False)
        return from_channel_rows(dx, p.shape)

    def highest_channel(self, x: Array) -> Array:
        return x.argmax(axis=1)


class CupyOps(
    CupyArrays,
    CupyProducts,
    CupyGroupedConvolution,
    CupyVolumePooling,
    CupyBatchNorm,
    CupyPoints,
    CupyRecurrent,
    CupyAttention,
    CupyCRF,
    CupyLookup,
    CupyUpdate,
):
    """All kernels on one GPU, in float32, or float64 for float64 arguments; created images are channels-last.

    Without ``own_streams`` it computes on the default stream, for all threads. Workers exchange arrays through host
    memory.
    """

    name = "cupy"
    captures_passes = True

    def __init__(self, device: int = 0, precision: str = "float32", own_streams: bool = False):
        super().__init__()
        self.device, self.precision, self._own_streams = device, precision, own_streams
        self._serial = threading.Lock()
        self.has_bf16_features, self.fuses_rectifiers = precision == "bf16", precision != "float32"
        self.streams, self.blas, self.plans = Streams(device, own_streams), Blas(precision), ConvolutionPlans(precision)

    def __reduce__(self) -> tuple[Any, ...]:
        return CupyOps, (self.device, self.precision, self._own_streams)

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        count = self.device_count()
        if device is not None and not 0 <= device < count:
            raise UserError(f"there is no GPU {device}: this process sees {count}, counted from 0")
        if precision not in PRECISIONS:
            raise UserError(f"there is no precision {precision!r} (known: {', '.join(PRECISIONS)})")
        return CupyOps(device or 0, precision, own_streams=True)

    def device_count(self) -> int:
        return int(cupy.cuda.runtime.getDeviceCount())

    def describe(self) -> str:
        with self.streams.device:
            return describe()

    def lacks(self) -> str:
        """Return a sentence about a missing library and its replacement, or ""."""
        return lacks()

    def lacks_bf16(self) -> str:
        return ""

    def choices(self) -> str:
        """Hash this host's measured choices, to compare hosts, which may round otherwise; "" without choices."""
        with self.streams.device:
            return self.plans.digest()

    def enter(self) -> None:
        self.streams.enter()

    def capture(self) -> Capture:
        return GraphCapture(self)

    def new_pass(self) -> CupyPass | None:
        """Allocate memory for a captured pass; None on the default stream, which has no graphs."""
        return CupyPass(self, self.streams) if self._own_streams else None

    def to_numpy_bf16(self, array: Array) -> Array:
        return self.to_numpy(cast(array, BFLOAT16) if self.has_bf16_features else array)

    def to_float32(self, x: Array) -> Array:
        def convert(array: Array) -> Array:
            return cast(array, FLOAT32) if isinstance(array, cupy.ndarray) and array.dtype == BFLOAT16 else array

        return converted(x, convert)

    def cast_like(self, x: Array, target: Array) -> Array:
        both = isinstance(x, cupy.ndarray) and isinstance(target, (cupy.ndarray, Shaped))
        return cast(x, target.dtype) if both and {x.dtype, target.dtype} == {FLOAT32, BFLOAT16} else x

    def upload(self, array: Array) -> AsyncCopy:
        if array.dtype == BFLOAT16 and not self.has_bf16_features:
            return FinishedCopy(cast(Upload(self.streams, array).result(), FLOAT32))
        return FinishedCopy(array) if isinstance(array, cupy.ndarray) else Upload(self.streams, array)

    def download(self, array: Array) -> AsyncCopy:
        return Download(self.streams, array) if isinstance(array, cupy.ndarray) else FinishedCopy(array)

    def hand_over(self, array: Array) -> AsyncCopy:
        return ComputedArray(self.streams, self.asarray(array))

    @contextmanager
    def serialised(self) -> Iterator[None]:
        with self._serial, self.streams.device, self.streams.compute:
            yield
            self.streams.compute.synchronize()

    def synchronize(self) -> None:
        self.streams.synchronize()

    def free_memory(self) -> int | None:
        """Return the free bytes of the device and of this process's pool."""
        with self.streams.device:
            free, _ = cupy.cuda.runtime.memGetInfo()
            return int(free + cupy.get_default_memory_pool().free_bytes())
