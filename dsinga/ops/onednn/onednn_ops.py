"""The class of the oneDNN backend, assembled from its families of kernels."""

from __future__ import annotations

from dsinga.ops.interface import Ops
from dsinga.ops.numpy_ops import NumpyOps
from dsinga.ops.onednn.casting import has_bf16
from dsinga.ops.onednn.convolution import OnednnConvolution
from dsinga.ops.onednn.elementwise import OnednnElementwise
from dsinga.ops.onednn.normalisation import OnednnNormalisation
from dsinga.ops.onednn.pooling import OnednnPooling
from dsinga.ops.onednn.products import OnednnAttention, OnednnProducts
from dsinga.ops.onednn.recurrent import OnednnRecurrent
from dsinga.ops.onednn.thread import set_threads


class OnednnOps(
    OnednnConvolution,
    OnednnProducts,
    OnednnPooling,
    OnednnNormalisation,
    OnednnElementwise,
    OnednnRecurrent,
    OnednnAttention,
    NumpyOps,
):
    """Kernels of oneDNN on float32; numpy computes what the library does not support, as float64 and empty batches."""

    name = "onednn"

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        if device is None and precision == "bf16" and not self.lacks_bf16():
            from dsinga.ops.onednn.bf16_ops import Bf16Ops  # a subclass

            return Bf16Ops()
        return super().for_worker(device, precision)

    def lacks_bf16(self) -> str:
        return "" if has_bf16() else "the processor has neither AVX512_BF16 nor AMX"

    def set_threads(self, count: int) -> None:
        set_threads(count)
