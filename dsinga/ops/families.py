"""Families of kernels that are imported when one of their kernels is first called: a net needs few of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

KERNELS = {
    "attention": (
        "attention", "attention_grad", "attention_weights", "attention_weights_grad", "batched_product", "rotate_pairs",
        "weighted_means", "weighted_means_grad",
    ),
    "crf": ("crf", "crf_decode", "crf_grad"),
    "normalisation": (
        "batch_norm_affine", "batch_norm_grad", "batch_norm_slopes", "batch_norm_sums", "batch_norm_training",
        "batch_norm_training_grad", "channel_affine", "channel_moments", "channel_sums", "layer_norm",
        "layer_norm_grad", "lrn", "lrn_grad", "moving_average", "rectified_affine", "rectified_batch_norm_grad",
        "rectified_batch_norm_sums", "rms_norm", "rms_norm_grad", "row_affine", "row_affine_grad", "row_moments",
        "row_sums",
    ),
    "points": (
        "highest_channel", "point_softmax", "point_softmax_loss", "point_softmax_loss_grad", "softmax_blocks",
    ),
    "recurrent": (
        "cell_functions", "factor", "multiply_by", "multiply_into", "recurrent", "recurrent_grad", "sigmoid_into",
    ),
}  # fmt: skip
"""The kernels of each family."""
_family_of = {kernel: family for family, kernels in KERNELS.items() for kernel in kernels}
_backends: list[type[LazyFamilies]] = []  # that name classes of families, those above first
_loaded: list[str] = []  # families that all of them have
_lock = threading.RLock()


class LazyFamilies:
    """Adds classes to the bases of backends when they are needed; from then on their kernels are plain methods.

    A class that names the classes of families in ``families`` gets those of each by the first call of a kernel. Other
    subclasses have all of them when they are defined, so that they can override kernels and call ``super()``.
    """

    families: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # "module:Class" of this backend, by family

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        with _lock:
            if "families" in vars(cls):
                _backends.append(cls)
                for family in _loaded:
                    _add(cls, family)
            else:
                for family in KERNELS:
                    load(family)

    def __getattr__(self, kernel: str) -> Any:
        if kernel in _family_of:
            load(_family_of[kernel])
        return object.__getattribute__(self, kernel)  # raises AttributeError if there is none


def load(family: str) -> None:
    """Give a family to all backends, so that none inherits its kernels from one that has slower ones.

    Those that others inherit from come last: a thread that meanwhile calls a kernel finds that of its backend, or waits
    here, but never the slower one, whose bits may differ.
    """
    with _lock:
        if family not in _loaded:
            _loaded.append(family)
            for backend in reversed(_backends):
                _add(backend, family)


def _add(backend: type[LazyFamilies], family: str) -> None:
    names = (name.split(":") for name in vars(backend)["families"].get(family, ()))
    backend.__bases__ = (*(getattr(import_module(module), name) for module, name in names), *backend.__bases__)
