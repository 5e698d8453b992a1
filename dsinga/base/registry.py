"""Maps the names in a job (``type``, ``user_type``) to classes and functions.

A component is registered where it is defined, with its name, SINGA's number, and its settings
(:class:`dsinga.job.Settings`, as ``Conf`` of its class). It is found by kind and name, and only its module is imported,
on request. The order of the search:

- registered components: a user's one replaces a built-in one of that name;
- the table ``components.csv`` of the built-in ones and add-ons (``python -m tests.support.component_table`` writes it
  from the sources);
- entry points of other distributions: group ``dsinga.addons``, name ``KIND.NAME``, such as ``layer.kWave``, value the
  module that registers it, or ``module:object``.

Functions of add-ons that the core calls are components, too: of the kind ``hook``, or a kind of their own. A protocol
of the core defines the call; with :func:`implements` type checkers compare them. The kind ``method`` has functions of
models, with the model as their first argument.

Further kinds for distributions are ``message.LayerConf.wave``, a :class:`dsinga.job.Settings` as a field of a message
of jobs, and ``backend.NAME``, a subclass of :class:`dsinga.ops.Ops`. ``kernel.NAME`` is a function of arrays with a
body in numpy, which a layer gets as ``ctx.ops.kernel("NAME")``. ``engine.NAME`` and ``sync_method.NAME`` compute steps,
and synchronise server groups. An add-on that fails on import does not affect others.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dsinga.base.advice import option
from dsinga.base.components import Row, built_in, import_component, offered, written_distribution
from dsinga.base.errors import UserError
from dsinga.base.regular_files import METADATA_BYTES, read_regular

T = TypeVar("T")

LONGEST_NAME = 200  # characters
LISTED = 12  # names in a message
LIKE = 0.66  # the share of letters that a suggested name has in common with the unknown one
IMPORTING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", importlib.__file__)  # files

KINDS = (
    "layer", "metric", "composed_metric", "function", "updater", "schedule", "initialiser", "algorithm", "importer",
    "source", "extension", "augmentation", "environment", "learning_algorithm", "message", "command", "records",
    "data", "definition", "drawing", "engine", "sync_method", "panel", "backend", "word", "hook", "kernel", "method",
    "saved",
)  # fmt: skip
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_entries: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}  # those that are imported
_numbers: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
_files: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}  # in which each name is registered
_version = 0


def register(kind: str, /, *names: str, **numbers: int) -> Callable[[T], T]:
    """Register a class or function, so that jobs can name it: return a decorator.

    ``numbers`` are further names, each with a number that a job may use instead: ``kReLU=211``.

    A file or notebook may register a name again. A user's component replaces a built-in one of that name. Raises
    UserError if two user files register one name, two names have one number, or a ``Conf`` is no subclass of
    :class:`dsinga.job.Settings`.
    """
    if kind not in _entries:
        raise UserError(f"{kind!r} is not a kind of registry; choose one of {', '.join(KINDS)}")
    if not names + (*numbers,) or not all(isinstance(name, str) for name in names):
        raise UserError(f'register needs the name that a job will use, as in @register("{kind}", "MyName")')
    frame = sys._getframe(1)  # a class that is pickled by value has no module that could be asked for its file
    file = "__main__" if frame.f_globals.get("__name__") == "__main__" else frame.f_code.co_filename

    def decorate(entry: T) -> T:
        conf = getattr(entry, "Conf", None)
        if isinstance(conf, type) and not hasattr(conf, "all_faults"):
            raise UserError(f"{kind} {(*names, *numbers)[0]!r}: write class Conf(dsinga.job.Settings)")
        for name in (*names, *numbers):
            before = _files[kind].get(name, file)
            if not (before == file or before.startswith(PACKAGE) or file.startswith(PACKAGE)):
                raise UserError(f"two {kind}s are called {name!r}, in {before} and in {file}; give one another name")
            if before == file or not file.startswith(PACKAGE):
                _set(kind, name, entry, file)
        known = registered_numbers(kind)
        for name, number in numbers.items():
            if known.get(name) == number:
                continue
            taken = [each for each, its in known.items() if its == number and each not in numbers]
            if taken:
                raise UserError(f"{kind}s {taken[0]!r} and {name!r} have the same number, {number}; give one another")
            _numbers[kind][name] = number
        return entry

    return decorate


def implements(protocol: type[T]) -> Callable[[T], T]:
    """Let type checkers compare a component with the core's protocol: return a decorator."""
    return lambda entry: entry


def _set(kind: str, name: str, entry: Any, file: str) -> None:
    global _version
    if name in _entries[kind] or name not in built_in(kind) or not file.startswith(PACKAGE):
        _version += 1
    _entries[kind][name], _files[kind][name] = entry, file


def unregister(kind: str, name: str) -> None:
    """Remove the registration of a name; a built-in component of that name is found again."""
    global _version
    _version += _entries[kind].pop(name, None) is not None
    _files[kind].pop(name, None)
    _numbers[kind].pop(name, None)


def version() -> int:
    """Return a counter that grows with each registration, so that caches notice new components."""
    return _version


def registered_numbers(kind: str) -> Mapping[str, int]:
    """Return SINGA's numbers of a kind of components, by name, without importing any."""
    return {**{name: row.number for name, row in built_in(kind).items() if row.number is not None}, **_numbers[kind]}


def registered(kind: str) -> list[str]:
    """Return the names of all components of a kind, also of other packages, without importing any."""
    return list(dict.fromkeys((*built_in(kind), *_entries[kind], *offered(kind))))


def imported(kind: str) -> Mapping[str, Any]:
    """Return the components of a kind that have been imported, by name."""
    return _entries[kind]


def entries(kind: str) -> Mapping[str, Any]:
    """Import all components of a kind, except of missing add-ons, and return them by name."""
    for name, row in built_in(kind).items():
        if name not in _entries[kind]:
            try:
                _import_built_in(kind, name, row)
            except UserError as error:
                if not isinstance(error.__cause__, ModuleNotFoundError):
                    raise
    names = dict.fromkeys((*built_in(kind), *_entries[kind]))
    return {name: _entries[kind][name] for name in names if name in _entries[kind]}


def find(kind: str, name: str) -> Any:
    """Return the class or function with a name, imported if need be; None if unknown.

    Raises UserError if its add-on is missing or fails, or two packages provide it.
    """
    if name in _entries[kind]:
        return _entries[kind][name]
    if row := built_in(kind).get(name):
        _import_built_in(kind, name, row)
    elif owners := check_owner(kind, name):
        (point,) = offered(kind)[name]
        with user_errors(f"{kind} {name!r} of the add-on {owners[0]} cannot be imported: "):
            value = point.load()
        if point.attr:
            _set(kind, name, value, point.value)
        elif name not in _entries[kind]:
            raise UserError(f"the add-on {owners[0]} registers no {kind} {name!r} in {point.value}")
    return _entries[kind].get(name)


def check_owner(kind: str, name: str) -> list[str]:
    """Return which package provides a component, [] if none does. Raises UserError for several."""
    owners = ["dsinga"] if name in built_in(kind) else []
    owners += [point.dist.name if point.dist else point.value for point in offered(kind).get(name, ())]
    if len(owners) > 1:
        raise UserError(
            f"{' and '.join(owners)} both have a {kind} called {name!r}; uninstall one of these distributions"
        )
    return owners


def _import_built_in(kind: str, name: str, row: Row) -> None:
    module = import_component(f"{kind.replace('_', ' ')} {name!r}", row.module)
    if name not in _entries[kind]:  # it was unregistered, after it had taken the place of this one
        _entries[kind][name], _files[kind][name] = getattr(module, row.attribute), str(module.__file__)


def lookup(kind: str, name: str) -> Any:
    """Return the class or function with a name. Raises UserError with the nearest name if there is none."""
    entry = find(kind, name)
    if entry is None:
        raise UserError(f"no {kind} is registered as {name!r}{missing_hint(kind, name)}")
    return entry


def missing_hint(kind: str, name: str) -> str:
    """Advise on an unknown name, for an error: its package, or the nearest name and a remedy."""
    hint = written_distribution(kind, name)
    return hint or f"{(near := nearest(name, registered(kind)))}{'' if near else ';'} {how_to_register(kind, name)}"


def how_to_register(kind: str, name: str) -> str:
    """Advise how to register a user's class under ``name``, as half a sentence."""
    remedy = option("import", "FILE", python="import the module that does so")
    return f'if it is your own, decorate it with @dsinga.register("{kind}", "{name}") and {remedy}'


def import_file(path: str | os.PathLike[str]) -> types.ModuleType:
    """Execute a user's Python file, which registers components, and return it as a module.

    Its classes are pickled by value, like a script's, so workers need not have the file. Raises UserError if the file
    cannot be read, registers nothing, or raises an exception, which becomes the ``__cause__``.
    """
    file = Path(path)
    try:
        code = compile(read_regular(file, METADATA_BYTES), str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UserError(f"{file}:{error.lineno or 1}: {error.msg}") from error
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{file} cannot be imported: {getattr(error, 'strerror', None) or error}") from error
    before = _version
    module = types.ModuleType(f"imported_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # while the file runs: dataclasses look their module up
    try:
        with user_errors(file=str(file)):
            exec(code, module.__dict__)
    finally:
        del sys.modules[module.__name__]
    if _version == before:
        raise UserError(f'{file} registers nothing; decorate a class, as in @dsinga.register("layer", "MyLayer")')
    return module


@contextlib.contextmanager
def user_errors(what: str = "", file: str = "") -> Iterator[None]:
    """Turn any exception of user code, also sys.exit(), into a UserError with file and line."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[2:]]
        frames += [(str(error.filename), error.lineno)] if isinstance(error, SyntaxError) else []
        lines = [f"{name}:{line}: " for name, line in frames if file in ("", name) and name not in IMPORTING]
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and not lines:
            text = f"{error}; put the folder of {error.name}.py into PYTHONPATH"
        raise UserError(f"{what}{(lines or [''])[-1]}{text}") from error


def is_user_code(entry: Any) -> bool:
    """Whether a class, a function, or an object's class is defined outside dsinga."""
    named = entry if hasattr(entry, "__name__") else type(entry)
    return bool((named.__module__ or "").partition(".")[0] != "dsinga")


def nearest(name: str, names: Iterable[str]) -> str:
    """Suggest the most similar of ``names``, as ``"; did you mean 'x'?"``; "" if none is similar."""
    if len(name) > LONGEST_NAME:
        return ""
    spellings: dict[str, list[str]] = {}
    for known in names:
        spellings.setdefault(known.casefold(), []).append(known)
    words = _words(name)
    with_words = [known for known, spelled in spellings.items() if len(words) > 1 and words <= _words(spelled[0])]
    matches = difflib.get_close_matches(name.casefold(), with_words or spellings, n=1, cutoff=LIKE)
    if not matches:
        return ""
    best = difflib.get_close_matches(name, spellings[matches[0]], n=1, cutoff=0)
    return f"; did you mean {best[0]!r}?"


def _words(name: str) -> set[str]:
    return {word.casefold() for word in re.findall("[A-Z]+[a-z0-9]*|[a-z0-9]+", name)}


def listed(names: Iterable[str]) -> str:
    """List names for a message, separated by commas; of many the first LISTED, and a count."""
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "none") + more


def nearest_or_listed(name: str, names: Iterable[str], what: str) -> str:
    """Suggest the most similar name, as :func:`nearest`, or list all: ``"; WHAT a, b, c"``."""
    names = list(names)
    if hint := nearest(name, names):
        return hint
    if len(names) > LISTED:
        names = difflib.get_close_matches(name[:LONGEST_NAME], names, n=len(names), cutoff=0)
    return f"; {what} {listed(names)}"
