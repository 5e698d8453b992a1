"""The kernels of the oneDNN backend in float32, assembled from its families."""

from __future__ import annotations

from typing import Any

from dsinga.ops import buffers
from dsinga.ops.layout import LAST
from dsinga.ops.numpy.numpy_ops import NumpyOps
from dsinga.ops.onednn.attention import OnednnAttention
from dsinga.ops.onednn.convolution import OnednnConvolution
from dsinga.ops.onednn.elementwise import OnednnElementwise
from dsinga.ops.onednn.group_norm import OnednnGroupNorm
from dsinga.ops.onednn.grouped_convolution import OnednnGroupedConvolution
from dsinga.ops.onednn.normalisation import OnednnNormalisation
from dsinga.ops.onednn.points import OnednnPoints
from dsinga.ops.onednn.pooling import OnednnPooling
from dsinga.ops.onednn.products import OnednnProducts
from dsinga.ops.onednn.recurrent import OnednnRecurrent
from dsinga.ops.onednn.thread import set_threads
from dsinga.ops.types import Array


class Float32Ops(
    OnednnConvolution,
    OnednnGroupedConvolution,
    OnednnProducts,
    OnednnPooling,
    OnednnGroupNorm,
    OnednnNormalisation,
    OnednnElementwise,
    OnednnPoints,
    OnednnRecurrent,
    OnednnAttention,
    NumpyOps,
):
    """Kernels of oneDNN on float32; numpy computes what the library does not support, as float64 and empty batches."""

    name = "onednn"

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return buffers.empty(shape, channels_last=len(shape) in LAST, dtype=dtype)

    def set_threads(self, count: int) -> None:
        set_threads(count)
