"""Lookups of components by a literal kind and name count as imports."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from dsinga.base.components import TABLE, addon_of
from tools.benchmarks.counts import circular, closing_lookups, import_graph, lookup_graph, module_name

ROOT = Path(__file__).parents[1]
# Where the core or the cluster asks for what an outer part does with the objects of this file.
DOORS = {
    "dsinga/api/engines.py -> dsinga/cluster/clients.py",
    "dsinga/cluster/lazy_prediction.py -> dsinga/addons/fields/prediction/field_prediction.py",
}


@functools.cache
def graphs() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the files that each file imports, and those whose components it looks up."""
    paths = sorted((ROOT / "dsinga").rglob("*.py"))
    modules = {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in paths}
    return import_graph(modules), lookup_graph(modules, TABLE)


def test_lookups_close_no_circle_of_imports_but_at_these_doors():
    assert {*closing_lookups(*graphs())} <= DOORS


def test_no_addon_asks_the_registry_for_a_component_of_its_own():
    _, lookups = graphs()
    own = [(name, target) for name in lookups for target in lookups[name] if addon(name) == addon(target) is not None]
    assert not own


def test_no_two_addons_need_each_other():
    needs: dict[str, set[str]] = {}
    for graph in graphs():
        for name, targets in graph.items():
            if of := addon(name):
                needs.setdefault(of, set()).update(each for each in map(addon, targets) if each and each != of)
    needs = {of: needs.get(of, set()) for of in {*needs, *(each for targets in needs.values() for each in targets)}}
    assert not circular(needs)


def addon(file: str) -> str | None:
    """Return the add-on that a file belongs to, None for a file of another room."""
    return addon_of(module_name(file)) if file.startswith("dsinga/addons/") else None
