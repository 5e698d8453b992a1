"""Imports components (built-in ones, and entry points) and packages' public names at their first use."""

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
    """A built-in component: SINGA's number if any, the defining module and name, and its settings' fields."""

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
    """Return the rows of the built-in components of a kind by name."""
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
    """Whether an entry-points file in a folder of the path has GROUP; True for archives."""
    if os.path.isfile(place):
        return True
    for file in glob.iglob(os.path.join(glob.escape(place), "*-[iI][nN][fF][oO]", "entry_points.txt")):
        with contextlib.suppress(OSError):
            if f"[{GROUP}]" in Path(file).read_text("utf-8", "replace"):
                return True
    return False


def offered(kind: str) -> Mapping[str, list[EntryPoint]]:
    """Return other distributions' entry points of a component kind, by name; several if they clash."""
    return _entry_points().get(kind, {})


def scanned() -> bool:
    """Whether the entry points are known, which the first call of :func:`offered` reads from all packages."""
    return bool(_entry_points.cache_info().currsize)


def addon_of(module: str) -> str:
    """Return the add-on or top-level package that contains a module of dsinga, such as dsinga.addons.fields."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["addons"] else 2])


def import_component(what: str, module: str) -> types.ModuleType:
    """Import a module of dsinga for ``what``. Raises UserError if it, or its imports, need a missing add-on."""
    with naming_addons(what):
        return importlib.import_module(module)


@contextlib.contextmanager
def naming_addons(what: str) -> Iterator[None]:
    """Raise UserError if an import within the context, needed by ``what``, is of a missing add-on."""
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
    """Return comments for a job's text that name the distributions of its components."""
    points = [(kind, name, point) for kind, by_name in _entry_points().items() for name, (point, *_) in by_name.items()]
    return "".join(
        f"# {kind}.{name} is of the distribution {point.dist.name}\n"
        for kind, name, point in points
        if point.dist and re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", text)
    )


def note_distributions(text: str) -> None:
    """Remember which distributions a job's text names in comments, for :func:`written_distribution`."""
    _written.update({(kind, name): distribution for kind, name, distribution in WRITTEN.findall(text)})


def written_distribution(kind: str, name: str) -> str:
    """Return half a sentence on a component's distribution, as noted in a job file; "" if none."""
    distribution = _written.get((kind, name))
    return f"; it is of the distribution {distribution}: pip install {distribution}" if distribution else ""


def lazy_names(
    package: str, otherwise: Callable[[str], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``, which import names at first use.

    The names, and the module of each, are read where type checkers read them: in the block ``if TYPE_CHECKING:`` of
    ``__init__.py``, or else in ``__init__.pyi``, where the core has the names of add-ons, since it imports none.
    ``otherwise`` is called for any other name. ``dir`` shows these names, those of ``__all__``, and the package's
    modules.
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
    """Return the module, and name there, of each name that a package imports for type checkers."""
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
