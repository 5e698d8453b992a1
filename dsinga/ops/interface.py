"""The kernel interface: the methods of every backend, which are numpy's where a backend has no faster ones.

Layers call kernels through an :class:`Ops` object. Shapes are tuples, ``B`` is the batch, images are logically
``(B, C, H, W)``. A backend may lay out images in memory as it likes (the CPU backends use channels-last strides);
callers see the logical shape. Arrays are float32 unless a kernel is given float64, which the numpy backend computes in
float64 (the reference for gradient checks). No kernel but ``update`` changes its arguments.

A :data:`~dsinga.ops.types.Pair` is ``(vertical, horizontal)``: kernel, stride and pad are pairs.
"""

from __future__ import annotations

import functools
import logging

from dsinga.base.errors import UserError
from dsinga.ops.numpy.arrays import NumpyArrays
from dsinga.ops.numpy.attention import NumpyAttention
from dsinga.ops.numpy.convolution import NumpyConvolution, NumpyGroupedConvolution, NumpyPooling
from dsinga.ops.numpy.crf import NumpyCRF
from dsinga.ops.numpy.elementwise import NumpyLoss
from dsinga.ops.numpy.lookup import NumpyLookup, NumpyRandom
from dsinga.ops.numpy.normalisation import NumpyGroupNorm, NumpyNormalisation
from dsinga.ops.numpy.points import NumpyPoints
from dsinga.ops.numpy.recurrent import NumpyRecurrent

_warn_once = functools.cache(logging.getLogger(__name__).warning)


class Ops(
    NumpyArrays,
    NumpyConvolution,
    NumpyGroupedConvolution,
    NumpyPooling,
    NumpyGroupNorm,
    NumpyNormalisation,
    NumpyCRF,
    NumpyLookup,
    NumpyRecurrent,
    NumpyAttention,
    NumpyLoss,
    NumpyPoints,
    NumpyRandom,
):
    """Array kernels of one backend, stateless for its callers: what it caches never changes a result.

    The methods of this class, all in numpy, are the reference; a backend overrides those for which it has faster ones.
    """

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        """Return the backend for one worker: itself on CPUs; on GPUs, one with streams of its own.

        ``device`` is the number of a GPU among those that this process sees, the first if None. ``precision`` is that
        of products of float32 arrays: "float32", "tf32" or "bf16". Params and their gradients are float32 in each; with
        "bf16" features of images may be bfloat16 (``has_bf16_features``). A backend on CPUs that has no bfloat16
        computes in float32 and warns once. Raises UserError for a device or another precision that it does not have.
        """
        if device is not None:
            raise UserError(f"the kernel backend {self.name!r} computes on CPUs; it has no device {device}")
        if precision == "bf16":
            _warn_once("precision kBF16 computes in float32 here: %s", self.lacks_bf16())
        elif precision != "float32":
            raise UserError(f"the kernel backend {self.name!r} computes in float32; {precision} needs a GPU")
        return self
