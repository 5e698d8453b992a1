"""The backend of GPUs as others find it by its name: its kernels, the choice of GPUs, and what is known of captures.

Importing this file needs no GPU and no CuPy; :func:`create_ops` says what is missing.
"""

from __future__ import annotations

from dsinga.addons.gpu.captured_iterations import describe_capture
from dsinga.addons.gpu.devices import choose_devices, training_bytes
from dsinga.ops import Ops

__all__ = ["choose_devices", "create_ops", "describe_capture", "training_bytes"]


def create_ops() -> Ops:
    """Return the kernels of GPUs. Raises UserError where CuPy, a device or a new enough driver is missing."""
    from dsinga.addons.gpu.cupy.cupy_ops import CupyOps

    return CupyOps()
