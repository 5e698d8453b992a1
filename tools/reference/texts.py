"""Parts of pages: docstrings as Markdown, tables, signatures, and types of settings in words."""

import enum
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from dsinga.job.component import docs
from dsinga.job.field_types import item_type
from dsinga.job.limits import Range, range_in
from dsinga.job.message import Message, added_fields, added_message, defaults, describe, field_types, is_message
from dsinga.job.type_names import TypeName

ROLE = re.compile(r":\w+:`~?\.?([^`]+)`")
TYPE = re.compile(r"\bk[A-Z]\w+")
SECTION = re.compile(r"^(Args|Attributes):$")
WIDTH = 118  # of a line of text
CELL_WORDS = 25  # of a cell of a table
SINGA = re.compile(r"(^beyond SINGA: |[;,] beyond SINGA$)")


def markdown(text: str) -> str:
    """Return the text of a docstring as Markdown: roles as code, and signs that Markdown reads as others escaped."""
    text = ROLE.sub(r"`\1`", text).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", text)
    for number in range(0, len(parts), 2):
        parts[number] = re.sub(r"(?<!\w)\*(?=\w+\b(?!\*))|(?<= )\*(?= )", r"\\*", parts[number]).replace("<", "&lt;")
        parts[number] = TYPE.sub(r"`\g<0>`", parts[number])
    return "".join(parts)


def paragraphs(component: Any) -> list[str]:
    """Return the paragraphs of a docstring as Markdown, without its sections of arguments; an indented one is code."""
    found = []
    for paragraph in inspect.cleandoc(getattr(component, "__doc__", None) or "").split("\n\n"):
        lines = paragraph.splitlines()
        if not lines or SECTION.match(lines[0]):
            continue
        if lines[0] in ("Examples:", "Example:"):
            lines = inspect.cleandoc("\n".join(["", *lines[1:]])).splitlines()
            paragraph = "\n".join(lines)
        if lines[0].startswith("    "):
            found.append("\n".join(["```text", *(line[4:] for line in lines), "```"]))
        elif lines[0].startswith(("- ", ">>> ")):
            found.append("\n".join(map(markdown, lines)) if lines[0][0] == "-" else f"```pycon\n{paragraph}\n```")
        else:
            found.append(wrapped(markdown(" ".join(lines))))
    return found


def wrapped(text: str) -> str:
    """Return a paragraph in lines; a sign that would begin a list or a heading at the start of a line is escaped."""
    first, *lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([first, *(re.sub(r"^(\||[-+*#>](?= )|\d+[.)](?= ))", r"\\\1", line) for line in lines)])


def first_sentence(component: Any) -> str:
    """Return the first sentence of a docstring, as Markdown."""
    paragraph = " ".join(inspect.cleandoc(getattr(component, "__doc__", None) or "").split("\n\n")[0].split())
    return markdown(re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0])


def arguments(text: str | None) -> dict[str, str]:
    """Return what the sections of arguments and of attributes of a docstring say, by name."""
    found: dict[str, str] = {}
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        title, *lines = paragraph.splitlines() or [""]
        if not SECTION.match(title):
            continue
        name = ""
        for line in lines:
            if match := re.match(r"    (\w+)(?: \(.*?\))?: (.*)", line):
                name = match[1]
                found[name] = match[2]
            elif name:
                found[name] += f" {line.strip()}"
    return {name: meaning.removesuffix(".") for name, meaning in found.items()}


def meanings(conf: type[Message]) -> dict[str, str]:
    """Return what each field of a message means, by its settings or by its docstring."""
    return {**docs(conf), **arguments(conf.__doc__)}


def settings_table(conf: type[Message], names: Iterable[str] | None = None) -> str:
    """Return the table of the fields of a message, or of some of them."""
    said, default = meanings(conf), defaults(conf)
    hints = {**field_types(conf), **{name: added_message(conf, name) for name in added_fields(conf)}}
    rows = []
    for name in field_types(conf) if names is None else names:
        value = "required" if name in conf._required else default_text(default.get(name))
        meaning = SINGA.sub("", said.get(name, ""))
        rows.append((f"`{name}`", type_text(hints[name]), value, markdown(meaning)))
    return short_table(("setting", "type", "default", "meaning"), rows)


def arguments_table(function: Any, said: Mapping[str, str]) -> str:
    """Return the table of the arguments of a function that its docstring explains."""
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in said:
            value = "required" if parameter.default is parameter.empty else python_text(parameter.default)
            rows.append((f"`{name}`", value, markdown(said[name])))
    return short_table(("argument", "default", "meaning"), rows)


def short_table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table whose last cells have up to CELL_WORDS words, and a list of what they leave out."""
    notes = []
    for number, row in enumerate(rows):
        if len(row[-1].split()) > CELL_WORDS:
            first, *rest = re.split(r"(?<=\w)[.;:] ", row[-1], maxsplit=1)
            rows[number] = (*row[:-1], first)
            notes += [f"- {row[0]}: {text}.\n" for text in rest]
    return "\n".join([table(titles, rows), *(["".join(notes)] if notes else [])])


def table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [titles, ("---",) * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def call(function: Any, name: str) -> str:
    """Return a call of a function of ``nn`` with its arguments and defaults, without those of every layer."""
    words = []
    for argument, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.kind is parameter.VAR_KEYWORD:
            continue
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(f"{star}{argument}{default}")
    return f"`{name}({', '.join(words)})`"


def python_text(value: Any) -> str:
    """Return a default as Python has it."""
    return f"`{value!r}`"


def default_text(value: Any) -> str:
    """Return a default as a job file has it."""
    if value is None or value in ([], ""):
        return "none"
    if isinstance(value, enum.Enum):
        return f"`{value.name}`"
    if is_message(type(value)):
        return f"`{getattr(value, 'type', None) and value.type.name}`" if hasattr(value, "type") else "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def type_text(hint: Any) -> str:
    """Return the type of a setting and its bounds in words."""
    kind, repeated = item_type(hint)
    if isinstance(kind, type) and issubclass(kind, TypeName):
        words = "name of a type"
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        words = f"one of {', '.join(f'`{name}`' for name in kind.__members__)}"
    elif is_message(kind):
        words = f"`{kind.__name__.removesuffix('Conf').lower()} {{ ... }}`"
    else:
        words = {str: "text"}.get(kind) or describe(kind).removeprefix("a ")
    limits = bounds(range_in(hint))
    if repeated:
        return f"list of {words}s{limits and ', each '}{limits}"
    return f"{words}{limits and ', '}{limits}"


def bounds(allowed: Range | None) -> str:
    """Return the bounds of numbers in words, "" where there are none."""
    if allowed is None or allowed.low == -allowed.high:
        return "or infinity" if allowed and allowed.infinite else ""
    low = f"{'above' if allowed.open_low else 'at least'} {allowed.low:g}"
    if allowed.high == math.inf:
        return f"{low}, or infinity" if allowed.infinite else low
    if not allowed.open_low and not allowed.open_high:
        return f"from {allowed.low:g} to {allowed.high:g}"
    return f"{low}, {'below' if allowed.open_high else 'at most'} {allowed.high:g}"
