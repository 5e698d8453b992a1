"""Add-ons, and the faces that are like them, reach into no object of the core: they use public names alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

from dsinga.base.components import addon_of
from tests.support.imports import defined, is_private, module_name, names_reached

ROOT = Path(__file__).parents[1]
OUTSIDE = {"convert", "estimators", "models", "rl", "testing"}  # besides addons/
OF_OTHER_LIBRARIES = {"_data", "_meta"}  # of variables of xarray; of collections of Dask


def test_addons_reach_into_no_private_name_of_the_core_or_the_cluster():
    paths = sorted((ROOT / "dsinga").rglob("*.py"))
    modules = {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in paths}
    assert not [*reaches(modules)]


def test_a_reach_is_found():
    modules = {
        "dsinga/nn/net.py": ast.parse("class Net:\n    def _params(self): ..."),
        "dsinga/addons/lora/low_rank.py": ast.parse("def merge(net):\n    own(net._params)\n    net._own = net._data"),
    }
    assert [*reaches(modules)] == ["dsinga/addons/lora/low_rank.py:2 _params"]


def reaches(modules: dict[str, ast.Module]) -> Iterator[str]:
    """Yield the places in add-ons that name what only files of the core, or of the cluster, define as private."""
    private: dict[str | None, set[str]] = {}
    for file, module in modules.items():
        names = {name for node in ast.walk(module) if is_private(name := defined(node))}
        private.setdefault(outside(file), set()).update(names)
    for file, module in modules.items():
        if addon := outside(file):
            foreign = private[None] - private[addon] - OF_OTHER_LIBRARIES
            for node in ast.walk(module):
                for name in sorted({*names_reached(node)} & foreign):
                    yield f"{file}:{getattr(node, 'lineno', 0)} {name}"


def outside(file: str) -> str | None:
    """Return the add-on or face that a file belongs to, None for a file of the core or the cluster."""
    part = file.split("/")[1]
    return addon_of(module_name(file)) if part in OUTSIDE | {"addons"} else None
