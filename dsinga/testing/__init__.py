"""Tests that your own layers, updaters, extensions, sources, engines and kernels must pass, as pytest classes.

The built-in components pass :class:`LayerContract`, :class:`UpdaterContract`, :class:`ExtensionContract`,
:class:`SourceContract`, :class:`EngineContract`, :class:`GroupSyncContract`, :class:`CaptureContract` and
:class:`KernelContract`; your own components should, too. KernelContract also requires hypothesis.
:class:`AddonContract` checks a distribution that adds components by entry points.

Write a class in a test file, ``class TestMine(LayerContract)``, list its ``cases``, and run pytest on the file. Each
contract's docstring has an example and lists the checks. :class:`SimulatedLoop` runs extensions without a cluster.
"""

import pkgutil
import sys
from typing import TYPE_CHECKING, Any

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
    from dsinga.testing.engines import EngineContract
    from dsinga.testing.extensions import AddonContract, ExtensionContract
    from dsinga.testing.group_syncs import GroupSyncContract
    from dsinga.testing.kernel_captures import CaptureContract
    from dsinga.testing.kernels import KernelContract
    from dsinga.testing.layer_cases import LayerCase
    from dsinga.testing.layers import LayerContract
    from dsinga.testing.simulated_loop import SimulatedLoop
    from dsinga.testing.sources import SourceContract
    from dsinga.testing.updaters import UpdaterContract

__all__ = [
    "AddonContract", "CaptureContract", "EngineContract", "ExtensionContract", "GroupSyncContract", "KernelContract",
    "LayerCase", "LayerContract", "SimulatedLoop", "SourceContract", "UpdaterContract",
]  # fmt: skip

PACKAGES = ("pytest", "hypothesis")  # packages that dsinga does not install
_find, __dir__ = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    """Import a test class at its first use, because Dask workers can lack pytest and hypothesis."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest

        modules = {f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)}
        pytest.register_assert_rewrite(*(modules - sys.modules.keys()))  # a failed assertion shows its values
        return _find(name)
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        raise ModuleNotFoundError(
            f"dsinga.testing.{name} needs {error.name}; install it by 'pip install {error.name}'", name=error.name
        ) from error
