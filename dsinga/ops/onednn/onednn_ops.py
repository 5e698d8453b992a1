"""The oneDNN backend: float32 kernels by families, and bf16 on processors that support it (bf16_ops.py)."""

from __future__ import annotations

from typing import Any

from dsinga.base import buffers
from dsinga.base.registry import register
from dsinga.ops.host_pass import HostPass
from dsinga.ops.interface import NumpyOps, Ops
from dsinga.ops.layout import LAST
from dsinga.ops.onednn.choices import resolve
from dsinga.ops.onednn.convolution import OnednnConvolution, OnednnGroupedConvolution
from dsinga.ops.onednn.elementwise import OnednnElementwise
from dsinga.ops.onednn.library import AVX512_BF16, get_instructions, version
from dsinga.ops.onednn.normalisation import OnednnGroupNorm, OnednnNormalisation, OnednnPoints
from dsinga.ops.onednn.pooling import OnednnPooling
from dsinga.ops.onednn.products import OnednnProducts
from dsinga.ops.onednn.recurrent import OnednnAttention, OnednnRecurrent
from dsinga.ops.onednn.thread import set_threads
from dsinga.ops.types import Array


class Float32Ops(
    OnednnConvolution,
    OnednnGroupedConvolution,
    OnednnProducts,
    OnednnPooling,
    OnednnElementwise,
    OnednnGroupNorm,
    OnednnNormalisation,
    OnednnPoints,
    OnednnRecurrent,
    OnednnAttention,
    NumpyOps,
):
    """oneDNN kernels on float32; numpy computes others, such as float64 and empty batches."""

    name = "onednn"

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return buffers.empty(shape, channels_last=len(shape) in LAST, dtype=dtype)

    def set_threads(self, count: int) -> None:
        set_threads(count)

    captures_passes = True
    calls_before_capture = 3

    def new_pass(self) -> HostPass | None:
        return HostPass()


@register("backend", "onednn")
class OnednnOps(Float32Ops):
    """oneDNN kernels in float32, or in bfloat16 for kBF16 on supporting processors."""

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        if device is None and precision == "bf16" and not self.lacks_bf16():
            kernels: Ops = resolve("bf16_ops.Bf16Ops")()
            return kernels
        return super().for_worker(device, precision)

    def describe(self) -> str:
        return f"the kernel backend {self.name!r} of oneDNN {version()}, on CPUs"

    def lacks_bf16(self) -> str:
        return (
            "" if get_instructions() & AVX512_BF16 == AVX512_BF16 else "the processor has neither AVX512_BF16 nor AMX"
        )
