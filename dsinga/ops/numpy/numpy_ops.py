"""The numpy backend, which is the reference for the others: all kernels, in float32 or float64."""

from __future__ import annotations

from typing import ClassVar

from dsinga.base.registry import register
from dsinga.ops.interface import Ops


@register("backend", "numpy")
class NumpyOps(Ops):
    """All kernels in numpy; the images that it makes are channels-last, its arguments may have any strides."""

    families: ClassVar = {}
