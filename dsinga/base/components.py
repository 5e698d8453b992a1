"""Imports components and packages' public names at their first use, so that ``import dsinga`` is fast."""

from __future__ import annotations

import ast
import contextlib
import functools
import glob
import importlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from dsinga.base.error_frames import public
from dsinga.base.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TABLE = Path(__file__).with_suffix(".csv")
GROUP = "dsinga.addons"  # of entry points
WRITTEN = re.compile(r"^# (\w+)\.(\S+) is of the distribution ([\w.-]+)$", re.MULTILINE)
_written: dict[tuple[str, str], str] = {}  # the distributions of components, as the texts of jobs say


class Row(NamedTuple):
    """How to find a built-in component: module, name, SINGA's number, and its settings' fields."""

    number: int | None
    module: str
    attribute: str
    fields: tuple[str, ...]


@functools.cache
def _table() -> Mapping[str, Mapping[str, Row]]:
    table: dict[str, dict[str, Row]] = {}
    for line in TABLE.read_text("utf-8").splitlines()[1:]:
        kind, name, number, module, attribute, fields = line.split(",")
        row = Row(int(number) if number else None, module, attribute, tuple(fields.split()))
        table.setdefault(kind, {})[name] = row
    return table


def built_in(kind: str) -> Mapping[str, Row]:
    """Return how to find the built-in components of a kind, by name."""
    return _table().get(kind, {})


@functools.cache
def _entry_points() -> Mapping[str, Mapping[str, list[EntryPoint]]]:
    if not any(map(_names_group, sys.path)):
        return {}
    from importlib.metadata import entry_points

    points: dict[str, dict[str, list[EntryPoint]]] = {}
    for point in entry_points(group=GROUP):
        kind, _, name = point.name.partition(".")
        points.setdefault(kind, {}).setdefault(name, []).append(point)
    return points


def _names_group(place: str) -> bool:
    """Whether a folder of Python packages may have entry points for dsinga."""
    if os.path.isfile(place):
        return True
    for file in glob.iglob(os.path.join(glob.escape(place), "*-[iI][nN][fF][oO]", "entry_points.txt")):
        with contextlib.suppress(OSError):
            if f"[{GROUP}]" in Path(file).read_text("utf-8", "replace"):
                return True
    return False


def offered(kind: str) -> Mapping[str, list[EntryPoint]]:
    """Return the components of a kind that other packages provide, as entry points by name."""
    return _entry_points().get(kind, {})


def scanned() -> bool:
    """Whether the entry points of all installed packages have been read, as :func:`offered` does once."""
    return bool(_entry_points.cache_info().currsize)


def addon_of(module: str) -> str:
    """Return the package that a module belongs to, such as dsinga.addons.fields."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["addons"] else 2])


def import_component(what: str, module: str) -> types.ModuleType:
    """Import a module of dsinga for ``what``. Raises UserError if an add-on that it needs is missing."""
    with naming_addons(what):
        return importlib.import_module(module)


@contextlib.contextmanager
def naming_addons(what: str) -> Iterator[None]:
    """Turn a failed import of a missing add-on into a UserError that says what needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("dsinga."):
            raise
        raise UserError(
            f"{what} belongs to the add-on {addon_of(str(error.name))}, which is not installed; "
            "install all of dsinga by 'pip install --force-reinstall dsinga'"
        ) from error


def distribution_comments(text: str) -> str:
    """Return comments for a job's text that name the packages that provide its components."""
    points = [(kind, name, point) for kind, by_name in _entry_points().items() for name, (point, *_) in by_name.items()]
    return "".join(
        f"# {kind}.{name} is of the distribution {point.dist.name}\n"
        for kind, name, point in points
        if point.dist and re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", text)
    )


def note_distributions(text: str) -> None:
    """Remember the packages that a job's text names in comments, for :func:`written_distribution`."""
    _written.update({(kind, name): distribution for kind, name, distribution in WRITTEN.findall(text)})


def written_distribution(kind: str, name: str) -> str:
    """Say which package provided a component, as noted in a job file; "" if unknown."""
    distribution = _written.get((kind, name))
    return f"; it is of the distribution {distribution}: pip install {distribution}" if distribution else ""


def lazy_names(
    package: str, otherwise: Callable[[str], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package import its public names at first use: return its ``__getattr__`` and ``__dir__``.

    The names are read where type checkers read them: in the block ``if TYPE_CHECKING:`` of ``__init__.py``, or else in
    ``__init__.pyi``, which also has names of add-ons. ``otherwise`` is called for any other name.
    """
    module = sys.modules[package]

    def no_name(name: str) -> NoReturn:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    @functools.cache
    def names() -> dict[str, tuple[str, str]]:
        return _names_for_type_checkers(Path(str(module.__file__)))

    @public
    def find(name: str) -> Any:
        if name == "__all__":
            return sorted(names())
        if name.startswith("_") or name not in names():
            return (otherwise or no_name)(name)
        path, attribute = names()[name]
        what = f"{package}.{name}"
        value: Any = import_component(what, what if path == package else path)
        if attribute and path != package:
            missing = object()
            value = getattr(value, attribute, missing)
            value = import_component(what, f"{path}.{attribute}") if value is missing else value
        setattr(module, name, value)
        return value

    def shown() -> list[str]:
        own = {name for name in vars(module) if name.startswith("__") or f"{package}.{name}" in sys.modules}
        return sorted(own | {*vars(module).get("__all__", ()), *names()})

    return find, shown


def _names_for_type_checkers(file: Path) -> dict[str, tuple[str, str]]:
    """Read which module, and name in it, each public name of a package is imported from."""
    blocks = [block for block in ast.parse(file.read_bytes()).body if isinstance(block, ast.If)]
    lines = [line for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for line in block.body]
    lines = lines or ast.parse(file.with_suffix(".pyi").read_bytes()).body
    names = {}
    for line in lines:
        for alias in line.names if isinstance(line, (ast.Import, ast.ImportFrom)) else ():
            imported = (line.module or "", alias.name) if isinstance(line, ast.ImportFrom) else (alias.name, "")
            if not (name := alias.asname or alias.name).startswith("_"):
                names[name] = imported
    return names
