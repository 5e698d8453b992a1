"""Contracts that layers, updaters and kernels must pass, as pytest classes: subclass one to check your own code.

:class:`LayerContract` and :class:`UpdaterContract` are the ones that the built-in layers and updaters pass.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dsinga.testing needs pytest; install it by 'pip install pytest'", name="pytest"
    ) from error

pytest.register_assert_rewrite("dsinga.testing.layer_parts", "dsinga.testing.layers", "dsinga.testing.updaters")

from dsinga.testing.layer_cases import LayerCase  # noqa: E402
from dsinga.testing.layers import LayerContract  # noqa: E402
from dsinga.testing.updaters import UpdaterContract  # noqa: E402

__all__ = ["LayerCase", "LayerContract", "UpdaterContract"]
