"""The kernel interface: the methods that every backend implements.

Layers call kernels through an :class:`Ops` object. Shapes are tuples, ``B`` is the batch, images are logically
``(B, C, H, W)``. A backend may lay out images in memory as it likes (the CPU backends use channels-last strides);
callers see the logical shape. Arrays are float32 unless a kernel is given float64, which the numpy backend computes in
float64 (the reference for gradient checks). No kernel but ``update`` changes its arguments.

A :data:`~dsinga.ops.types.Pair` is ``(vertical, horizontal)``: kernel, stride and pad are pairs.
"""

from __future__ import annotations

from abc import abstractmethod

from dsinga.ops.interface.arrays import ArrayOps
from dsinga.ops.interface.groups import GroupNormOps
from dsinga.ops.interface.images import ImageOps
from dsinga.ops.interface.points import PointOps
from dsinga.ops.interface.sequences import AttentionOps, SequenceOps


class Ops(GroupNormOps, ImageOps, PointOps, SequenceOps, AttentionOps):
    """Array kernels of one backend, stateless for its callers: what it caches never changes a result."""

    def with_fast_rounding(self) -> Ops:
        """Return the backend with the fastest small products; the bits of a row then depend on the batch."""
        return self

    @abstractmethod
    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        """Return the backend for one worker: itself on CPUs; on GPUs, one with streams of its own.

        ``device`` is the number of a GPU among those that this process sees, the first if None. ``precision`` is that
        of products of float32 arrays: "float32", "tf32" or "bf16"; params stay float32, images are bfloat16
        with "bf16". Raises UserError if the backend has no such device; numpy computes every precision in float32.
        """
