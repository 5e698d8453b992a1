"""Contracts for layers, updaters and kernel backends, as pytest classes: subclass one to check your own code.

The built-in layers, updaters and backends pass :class:`LayerContract`, :class:`UpdaterContract` and
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

pytest.register_assert_rewrite("dsinga.testing.layer_parts", "dsinga.testing.layers", "dsinga.testing.updaters")
pytest.register_assert_rewrite(*(f"dsinga.testing.kernel_{name}" for name in KERNEL_CHECKS))

from dsinga.testing.layer_cases import LayerCase  # noqa: E402
from dsinga.testing.layers import LayerContract  # noqa: E402
from dsinga.testing.updaters import UpdaterContract  # noqa: E402

if TYPE_CHECKING:
    from dsinga.testing.kernels import KernelContract

__all__ = ["KernelContract", "LayerCase", "LayerContract", "UpdaterContract"]


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
