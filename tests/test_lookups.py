"""Lookups of components by a literal kind and name count as imports."""

import ast
import functools
from pathlib import Path

from dsinga.base.components import TABLE, addon_of
from tests.support.imports import circular, closing_lookups, import_graph, lookup_graph, module_name

ROOT = Path(__file__).parents[1]


def graphs() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the files that each file imports, and those whose components it looks up."""
    return read()[:2]


@functools.cache
def read() -> tuple[dict[str, set[str]], dict[str, set[str]], list[tuple[str, list[str]]]]:
    """Return both graphs, and each function that has decorators with them.

    The syntax trees are made once, which takes seconds, and not kept: they are 90 MB.
    """
    paths = sorted((ROOT / "dsinga").rglob("*.py"))
    files = {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in paths}
    decorated = [
        (node.name, [ast.unparse(decorator) for decorator in node.decorator_list])
        for module in files.values()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    ]
    return import_graph(files), lookup_graph(files, TABLE), decorated


def test_lookups_close_no_circle_of_imports():
    assert not [*closing_lookups(*graphs())]


def test_no_addon_asks_the_registry_for_a_component_of_its_own():
    _, lookups = graphs()
    own = [(name, target) for name in lookups for target in lookups[name] if addon(name) == addon(target) is not None]
    assert not own


def test_a_hook_has_a_type_that_both_sides_name():
    """Those that are public functions, too, keep their own type, by which users call them."""
    implement, hooks = set(), set()
    for name, decorators in read()[2]:
        hooks |= {name for decorator in decorators if decorator.startswith("register('hook'")}
        implement |= {name for decorator in decorators if decorator.startswith("implements(")}
    assert hooks - implement <= {"evaluate_fields", "predict_lazily"}


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
