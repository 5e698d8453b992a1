"""Contracts for layers, updaters, extensions and kernel backends, as pytest classes to subclass for your own code.

The built-in ones pass :class:`LayerContract`, :class:`UpdaterContract`, :class:`ExtensionContract` and
:class:`KernelContract`. The last one also needs hypothesis.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dsinga.testing needs pytest; install it by 'pip install pytest'", name="pytest"
    ) from error

KERNEL_CHECKS = ("arrays", "cases", "crf", "elementwise", "formulas", "images", "sequences")

CONTRACTS = ("extensions", "layer_parts", "layers", "updaters")

pytest.register_assert_rewrite(*(f"dsinga.testing.{name}" for name in CONTRACTS))
pytest.register_assert_rewrite(*(f"dsinga.testing.kernel_{name}" for name in KERNEL_CHECKS))

from dsinga.testing.extensions import ExtensionContract  # noqa: E402
from dsinga.testing.layer_cases import LayerCase  # noqa: E402
from dsinga.testing.layers import LayerContract  # noqa: E402
from dsinga.testing.simulated_loop import SimulatedLoop  # noqa: E402
from dsinga.testing.updaters import UpdaterContract  # noqa: E402

if TYPE_CHECKING:
    from dsinga.testing.kernels import KernelContract

__all__ = [
    "ExtensionContract",
    "KernelContract",
    "LayerCase",
    "LayerContract",
    "SimulatedLoop",
    "UpdaterContract",
]


def __getattr__(name: str) -> Any:
    """Import KernelContract when it is first used, which alone needs hypothesis."""
    if name != "KernelContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("dsinga.testing.kernels").KernelContract
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ModuleNotFoundError(
            "dsinga.testing.KernelContract needs hypothesis; install it by 'pip install hypothesis'", name="hypothesis"
        ) from error
