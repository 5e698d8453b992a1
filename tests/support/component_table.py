"""Writes dsinga/base/components.csv, the table of the built-in components: ``python -m tests.support.component_table``.

The rows are what ``@register`` says in the sources. The fields of settings are those that the components declare.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[2] / "dsinga"
TABLE = PACKAGE / "base" / "components.csv"
HEADER = "kind,name,number,module,attribute,fields"


class Registered(NamedTuple):
    """A component as the sources register it."""

    kind: str
    name: str
    number: int | None
    module: str
    attribute: str


def registered() -> list[Registered]:
    """Return all components that the files of the package register, by kind, module and line."""
    rows = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if "register(" in text:
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            rows += [row for node in ast.parse(text).body for row in _rows(node, module)]
    return sorted(rows, key=lambda row: row.kind)


def _rows(node: ast.stmt, module: str) -> Iterator[Registered]:
    for call in getattr(node, "decorator_list", ()):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("register", "registry.register"):
            kind, *names = (ast.literal_eval(argument) for argument in call.args)
            numbers = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            for name in (*names, *numbers):
                yield Registered(kind, name, numbers.get(name), module, node.name)  # type: ignore[attr-defined]


def with_fields(rows: list[Registered]) -> dict[Registered, str]:
    """Import the components, by the table that is there, and return the fields of the settings of each."""
    from dsinga.job.component import Component

    components = {row: getattr(importlib.import_module(row.module), row.attribute) for row in rows}
    flat = {cls.kind for cls in _subclasses(Component) if cls.flat}
    settings = {row: getattr(component, "Conf", None) for row, component in components.items()}
    return {
        row: " ".join(() if conf is None else conf._types if row.kind in flat else (conf.field,))
        for row, conf in settings.items()
    }


def table(fields: dict[Registered, str]) -> str:
    """Return the text of the table."""
    lines = (
        (row.kind, row.name, "" if row.number is None else f"{row.number}", row.module, row.attribute, text)
        for row, text in fields.items()
    )
    return "\n".join([HEADER, *map(",".join, lines)]) + "\n"


def _subclasses(cls: Any) -> Iterator[Any]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def written_fields() -> dict[tuple[str, ...], str]:
    """Return the fields of each component, by kind and name, in the table that is there."""
    lines = TABLE.read_text("utf-8").splitlines()[1:] if TABLE.exists() else []
    return {tuple(line.split(",")[:2]): line.rpartition(",")[2] for line in lines}


if __name__ == "__main__":
    rows, fields = registered(), written_fields()
    # Modules that name components, as those of DDPG's updater, can be imported only where their table is right.
    TABLE.write_text(table({row: fields.get(row[:2], "") for row in rows}), "utf-8")
    TABLE.write_text(table(with_fields(rows)), "utf-8")
