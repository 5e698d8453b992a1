"""The oneDNN backend, which computes in float32 or bfloat16."""

from __future__ import annotations

from dsinga.ops.interface import Ops
from dsinga.ops.onednn.bf16_ops import Bf16Ops
from dsinga.ops.onednn.casting import has_bf16
from dsinga.ops.onednn.float32_ops import Float32Ops
from dsinga.ops.onednn.library import version


class OnednnOps(Float32Ops):
    """Kernels of oneDNN: in float32, and for workers of a job with kBF16 in bfloat16 where the processor has it."""

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        if device is None and precision == "bf16" and not self.lacks_bf16():
            return Bf16Ops()
        return super().for_worker(device, precision)

    def describe(self) -> str:
        return f"the kernel backend {self.name!r} of oneDNN {version()}, on CPUs"

    def lacks_bf16(self) -> str:
        return "" if has_bf16() else "the processor has neither AVX512_BF16 nor AMX"
