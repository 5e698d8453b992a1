"""Lookups of components by a literal kind and name count as imports."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from dsinga.base.components import TABLE, addon_of
from tools.benchmarks.counts import closing_lookups, import_graph, lookup_graph, module_name

ROOT = Path(__file__).parents[1]
# Where the core or the cluster asks for what an outer part does with the objects of this file.
DOORS = {
    "dsinga/api/engines.py -> dsinga/cluster/clients.py",
    "dsinga/cluster/lazy_prediction.py -> dsinga/addons/fields/prediction/field_prediction.py",
    "dsinga/passes/processors.py -> dsinga/addons/gpu/devices.py",
    "dsinga/reading/checked_job.py -> dsinga/addons/sites/site_reader.py",
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
    addons = {name: addon_of(module_name(name)) for name in lookups if name.startswith("dsinga/addons/")}
    own = [(name, target) for name in addons for target in lookups[name] if addons.get(target) == addons[name]]
    assert not own
