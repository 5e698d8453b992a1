"""The oneDNN backend, assembled."""

from __future__ import annotations

from dsinga.ops.numpy_ops import NumpyOps
from dsinga.ops.onednn.convolution import OnednnConvolution
from dsinga.ops.onednn.elementwise import OnednnElementwise
from dsinga.ops.onednn.normalisation import OnednnNormalisation
from dsinga.ops.onednn.pooling import OnednnPooling
from dsinga.ops.onednn.products import OnednnProducts
from dsinga.ops.onednn.recurrent import OnednnRecurrent
from dsinga.ops.onednn.thread import set_threads


class OnednnOps(
    OnednnConvolution, OnednnProducts, OnednnPooling, OnednnNormalisation, OnednnElementwise, OnednnRecurrent, NumpyOps
):
    """Kernels of oneDNN on float32; what the library cannot do (float64, empty batches, odd cases) numpy does."""

    name = "onednn"

    def set_threads(self, count: int) -> None:
        set_threads(count)
