"""Reads job files in protobuf text format, as SINGA's are, from a path or a string."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from dsinga.base.arguments import with_types
from dsinga.base.components import note_distributions
from dsinga.base.durable_files import read_saved_file
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.redaction import redacted_cause
from dsinga.base.registry import nearest
from dsinga.base.regular_files import read_regular
from dsinga.job.builder import MessageBuilder, builder_of, read
from dsinga.job.enums import Phase
from dsinga.job.layerconf import LayerConf, included
from dsinga.job.message import JobError, Where, is_message, member
from dsinga.job.schema import Job
from dsinga.job.textformat import UnclosedError, parse, parse_value
from dsinga.job.writer import written

_FILE_NAME = re.compile(r"[^\n{}:]+")
LARGEST_BYTES = 32 << 20  # of a job file; that is enough for 20,000 layers, or 3,000 columns of a table


@with_types
@public
def load(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Job:
    """Read a job file: return its job, with ``overrides`` ("path=value") applied.

    Raises JobError, with file, line and layer, for a wrong file. :func:`dsinga.job.check` checks more.
    """
    if not isinstance(path, (str, os.PathLike)):
        remedy = ""
        if hasattr(path, "fit"):
            remedy = "; a model has methods, such as model.predict(x); its job is model.job(), its params model.params"
        raise JobError(f"a job is read from the path of a file, not from {type(path).__name__}{remedy}")
    file = os.fspath(path)
    if ("\n" in file or "{" in file) and not os.path.exists(file):
        raise JobError(
            "job is the text of a job, not a path; write dsinga.loads(text), as in dsinga.train(dsinga.loads(text))"
        )
    try:
        content = read_saved_file(Path(path), lambda place: read_regular(place, LARGEST_BYTES))
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        return loads(text, file, overrides)
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise JobError(f"{file}: not a job file: byte {error.start} is not UTF-8 text") from error
        if isinstance(error, JobError) and Path(file).suffix not in ("", ".conf"):
            remedy = f"if {file} is no job file, give one, such as job.conf"
            raise JobError(f"{error}; {remedy}") from None
        if isinstance(error, UserError):
            raise
        jobs = sorted(Path(file).glob("*.conf"))
        remedy = f"; give the job file in it, {str(jobs[0])!r}" if jobs else ""
        if isinstance(error, FileNotFoundError):
            remedy = _remedy_of_missing(file)
        if isinstance(error, IsADirectoryError) and not jobs and _is_store(Path(file)):
            raise JobError(f"{file!r} is a store; dsinga data info {file} describes it") from redacted_cause(error)
        reason = getattr(error, "strerror", None) or error
        raise JobError(f"cannot read the job file {file!r}: {reason}{remedy}") from redacted_cause(error)


def _is_path(text: str) -> bool:
    """Whether the text of a job is rather the path of a job file."""
    return _FILE_NAME.fullmatch(text) is not None and (text.endswith(".conf") or os.path.isfile(text))


def _is_store(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (".zattrs", ".zgroup", "zarr.json"))


def _remedy_of_missing(file: str) -> str:
    """Suggest a path or a command in place of the path of a missing job file."""
    folder = Path(file).parent
    if not folder.is_dir() and "://" not in file:
        missing = f"there is no folder {str(folder)!r}{'' if folder.is_absolute() else ' in the current folder'}"
        return f"; {missing}; give the path of a job file, or write one by: dsinga example digits digits"
    if Path(f"{file}.conf").is_file():
        return f"; did you mean {file + '.conf'!r}?"
    return nearest(file, map(str, folder.glob("*.conf")))


@with_types
@public
def loads(text: str, file: str = "<string>", overrides: Iterable[str] = ()) -> Job:
    """Read a job from ``text``; errors call the text ``file``. Raises JobError as :func:`load` does.

    Examples:
        >>> import dsinga
        >>> job = dsinga.loads('name: "first" train_steps: 100', overrides=["train_steps=5"])
        >>> job.train_steps
        5
    """
    if isinstance(text, os.PathLike) or _is_path(text):
        raise JobError(f"{str(text)!r} is a path; write dsinga.load({str(text)!r})")
    note_distributions(text)
    try:
        block = parse(text, file)
    except UnclosedError as error:
        # The first field that does not belong into the open block shows where a '}' is missing.
        read(parse(f"{text}\n{error.closing}", file), Job, Where(file, 1))
        raise
    builder = read(block, Job, Where(file, 1))
    for path_and_value in overrides:
        override(builder, path_and_value)
    return cast(Job, builder.build())


STEP = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\.|\s*=|$)")


class PathStep(NamedTuple):
    """One step of the path to a field: the field, and the index or name of a value."""

    name: str
    which: str | None


def with_fields(job: Job, fields: Mapping[str, Any]) -> Job:
    """Return a copy of a job with changed fields, by paths such as "updater.learning_rate.base_lr"."""
    return cast(Job, _builder_with(job, fields).build())


def check_fields(job: Job, fields: Mapping[str, Any]) -> None:
    """Raise JobError for an unknown path or a wrong value, without building the changed job."""
    _builder_with(job, fields)


def _builder_with(job: Job, fields: Mapping[str, Any]) -> MessageBuilder:
    builder = builder_of(job, Where("the job"))
    for path, value in fields.items():
        text = f"{path}={value if isinstance(value, str) else written(plain(value))}"
        override(builder, text, Where(text))
    return builder


def plain(value: Any) -> Any:
    """Turn numpy values and tuples into numbers and lists, to write them into a job."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def override(job: MessageBuilder, text: str, where: Where | None = None) -> None:
    """Change a field of a job, given as ``"path=value"``, as ``--set`` does.

    Separate fields by dots, as in ``updater.learning_rate.base_lr``. Choose one of several values by index,
    ``layer[0]``, by name, ``layer[conv1]``, or by name and phase, ``layer[data,kTrain]``. The value is a scalar of the
    text format (strings need no quotes), a list or a block. Raises JobError with the path and the nearest valid field.
    """
    where = where or Where(f"--set {text}")
    steps, value = split(text, where)
    builder = job
    for step in steps[:-1]:
        name, kind, repeated = builder.field(step.name, where)
        if not is_message(kind):
            raise builder.error(f"{builder.cls.__name__}.{name} is a single value and has no fields", where)
        if repeated:
            builder = builder.values.get(name, [])[index(builder, name, step.which, where)]
        elif step.which is None:
            builder = builder.child(name, kind, where)
        else:
            raise builder.error(f"{builder.cls.__name__}.{name} has one value only: leave out [{step.which}]", where)
    assign(builder, steps[-1], value, where)


def split(text: str, where: Where) -> tuple[list[PathStep], str]:
    """Split ``"path=value"`` into the steps of the path and the text of the value."""
    steps, position = [], len(text) - len(text.lstrip())
    while match := STEP.match(text, position):
        steps.append(PathStep(match[1], match[2]))
        position = match.end()
        if match[3].endswith("="):
            return steps, text[position:].strip()
        if not match[3]:
            break
    raise JobError(f"{where}: expected path=value, as in updater.learning_rate.base_lr=0.1 or layer[conv1].name=x")


def assign(builder: MessageBuilder, step: PathStep, text: str, where: Where) -> None:
    """Set a field, or one value of a repeated field, to the value in ``text``."""
    name, kind, repeated = builder.field(step.name, where)
    plain = kind is str and not text.startswith(("'", '"', "[") if repeated and step.which is None else ("'", '"'))
    value = text if plain else parse_value(text, str(where))
    if step.which is None:
        builder.values.pop(name, None)
        builder.lines.pop(name, None)
        builder.add(name, value, where)
    elif repeated:
        place = index(builder, name, step.which, where)
        builder.values[name][place] = builder.item(name, kind, value, where)
        builder.lines[name][place] = where
    else:
        raise builder.error(f"{builder.cls.__name__}.{name} has one value only: leave out [{step.which}]", where)


def index(builder: MessageBuilder, name: str, which: str | None, where: Where) -> int:
    """Find a value of a repeated field by index, name, or "name,phase"; return its index."""
    values: list[Any] = builder.values.get(name, [])
    what = f"{builder.cls.__name__}.{name}"
    if which is None:
        raise builder.error(f"{what} has several values: write {name}[0]{by_name(values, name)} to choose one", where)
    if which.isdecimal():
        if len(which) < 10 and int(which) < len(values):
            return int(which)
        raise builder.error(f"there is no {name}[{which}]; {what} has {len(values)} values, counted from 0", where)
    key, _, phase = (part.strip() for part in which.partition(","))
    builders = [(place, value) for place, value in enumerate(values) if isinstance(value, MessageBuilder)]
    named = [place for place, inner in builders if inner.values.get("name") == key]
    if not named:
        names = [inner.values.get("name", "") for _, inner in builders]
        raise builder.error(f"there is no {name}[{key}]{nearest(key, names)}", where)
    if phase:
        named = [place for place in named if runs_in(values[place], phase, where)]
    if len(named) == 1:
        return named[0]
    if named:
        text = f"{len(named)} values are called {name}[{key}]: write {name}[{key},kTrain], or another phase"
        raise builder.error(text, where)
    raise builder.error(f"{name}[{key}] is not in phase {phase}", where)


def by_name(values: list[Any], name: str) -> str:
    """Hint that values of a repeated field can be chosen by name, for an error."""
    names = [value.values["name"] for value in values if isinstance(value, MessageBuilder) and "name" in value.values]
    return f" or {name}[{names[0]}]" if names else ""


def runs_in(layer: MessageBuilder, phase: str, where: Where) -> bool:
    """Whether a layer belongs to a phase, by its ``include`` and ``exclude``."""
    if layer.cls is not LayerConf:
        raise layer.error(f"only layers have phases: leave out {phase!r}", where)
    phase_value = Phase(member(phase, Phase, str(where)).value)
    return included(layer.values.get("include", ()), layer.values.get("exclude", ()), phase_value)
