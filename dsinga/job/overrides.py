"""``--set path=value``: one field of a job, found by its path, gets another value."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dsinga.job.draft import Draft, untyped
from dsinga.job.enums import Phase
from dsinga.job.layerconf import LayerConf, included
from dsinga.job.message import JobError, Where, is_message, member
from dsinga.job.textformat import Word, parse_value
from dsinga.registry import nearest

STEP = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\.|\s*=|$)")


class Step(NamedTuple):
    """One step of a path: a field, and which of its values, if it is repeated."""

    name: str
    which: str | None


def override(job: Draft, text: str) -> None:
    """Apply ``"path=value"`` to the draft of a job.

    The path goes through fields, ``updater.learning_rate.base_lr``; of a repeated one it says which value: by index,
    ``layer[0]``, by name, ``layer[conv1]``, or by name and phase, ``layer[data,kTrain]``. Messages on the way that the
    job lacks are created. The value is a scalar of the text format (a string may go without quotes), a list or a block.
    Raises JobError, naming the path and the nearest valid field.
    """
    where = Where(f"--set {text}")
    steps, value = split(text, where)
    draft = job
    for position, step in enumerate(steps[:-1]):
        name, kind, repeated = draft.field(step.name, where)
        if kind is dict:
            return set_extension(draft, [one.name for one in steps[position + 1 :]], value, where)
        if not is_message(kind):
            raise draft.fault(f"{draft.cls.__name__}.{name} has no fields of its own", where)
        if repeated:
            draft = draft.values.get(name, [])[index(draft, name, step.which, where)]
        elif step.which is None:
            draft = draft.child(name, kind, where)
        else:
            raise draft.fault(f"{draft.cls.__name__}.{name} is not repeated: leave out [{step.which}]", where)
    return assign(draft, steps[-1], value, where)


def split(text: str, where: Where) -> tuple[list[Step], str]:
    """Return the steps of the path and the text of the value."""
    steps, position = [], len(text) - len(text.lstrip())
    while match := STEP.match(text, position):
        steps.append(Step(match[1], match[2]))
        position = match.end()
        if match[3].endswith("="):
            return steps, text[position:].strip()
        if not match[3]:
            break
    raise JobError(f"{where}: expected path=value, as in updater.learning_rate.base_lr=0.1 or layer[conv1].name=x")


def assign(draft: Draft, step: Step, text: str, where: Where) -> None:
    """Set a field of a draft, or one value of a repeated field, to what ``text`` says."""
    name, kind, repeated = draft.field(step.name, where)
    plain = kind is str and not text.startswith(("'", '"', "[") if repeated and step.which is None else ("'", '"'))
    value = text if plain else parse_value(text, str(where))
    if step.which is None:
        draft.values.pop(name, None)
        draft.lines.pop(name, None)
        draft.add(name, value, where)
    elif repeated:
        place = index(draft, name, step.which, where)
        draft.values[name][place] = draft.item(name, kind, value, where)
        draft.lines[name][place] = where
    else:
        raise draft.fault(f"{draft.cls.__name__}.{name} is not repeated: leave out [{step.which}]", where)


def set_extension(draft: Draft, names: list[str], text: str, where: Where) -> None:
    """Set a field in the extensions, plain nested dicts; what is no value of the text format is a string."""
    fields = draft.values.setdefault("extensions", {})
    for name in names[:-1]:
        fields = fields.setdefault(name, {})
        if not isinstance(fields, dict):
            raise draft.fault(f"the extension's field {name!r} has no fields of its own", where)
    try:
        value = parse_value(text, str(where))
    except JobError:
        value = Word(text)
    fields[names[-1]] = untyped(value)


def index(draft: Draft, name: str, which: str | None, where: Where) -> int:
    """Return the index that ``which`` means among the values of a repeated field: an index, a name, or name,phase."""
    values: list[Any] = draft.values.get(name, [])
    what = f"{draft.cls.__name__}.{name}"
    if which is None:
        raise draft.fault(f"{what} is repeated: say which one, as {name}[0]{by_name(values, name)}", where)
    if which.isdecimal():
        if int(which) < len(values):
            return int(which)
        raise draft.fault(f"there is no {name}[{which}]; {what} has {len(values)} values, counted from 0", where)
    wanted, _, phase = (part.strip() for part in which.partition(","))
    named = [place for place, one in enumerate(values) if isinstance(one, Draft) and one.values.get("name") == wanted]
    if not named:
        names = [one.values.get("name", "") for one in values if isinstance(one, Draft)]
        raise draft.fault(f"there is no {name}[{wanted}]{nearest(wanted, names)}", where)
    if phase:
        named = [place for place in named if runs_in(values[place], phase, where)]
    if len(named) == 1:
        return named[0]
    if named:
        raise draft.fault(
            f"{len(named)} values are called {name}[{wanted}]: say [{wanted},kTrain], or another phase", where
        )
    raise draft.fault(f"{name}[{wanted}] is not in phase {phase}", where)


def by_name(values: list[Any], name: str) -> str:
    """Return " or name[...]" with the name of the first value that has one."""
    names = [one.values["name"] for one in values if isinstance(one, Draft) and "name" in one.values]
    return f" or {name}[{names[0]}]" if names else ""


def runs_in(layer: Draft, phase: str, where: Where) -> bool:
    """Whether the draft of a layer belongs to the phase of this name."""
    if layer.cls is not LayerConf:
        raise layer.fault(f"only layers have phases: leave out {phase!r}", where)
    wanted = member(phase, Phase, str(where))
    return included(layer.values.get("include", ()), layer.values.get("exclude", ()), Phase(wanted.value))
