"""A job as protobuf text format: what the reader reads back to an equal job."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsinga.job.message import JobError, Message, set_fields
from dsinga.job.schema import Job

WIDTH = 100  # a block that fits a line of this length is written on one
NAME = re.compile(r"[A-Za-z_]\w*|\[[A-Za-z_][\w./-]*\]")


def to_text(job: Job) -> str:
    """Return ``job`` in text format, without the fields that have their default values.

    Raises JobError for extensions that the format cannot express: it knows no None and no list within a list.
    """
    return "".join(f"{line}\n" for line in lines(message_fields(job)))


def message_fields(message: Message) -> Iterator[tuple[str, Any]]:
    """Yield names and values as the text has them: extensions under their bracketed names."""
    for name, value in set_fields(message).items():
        if name == "extensions":
            yield from ((f"[{extension}]", inner) for extension, inner in value.items())
        else:
            # A list of one is written as a single value, as one does by hand; one of messages as so many fields.
            single = isinstance(value, list) and (len(value) == 1 or isinstance(value[0], Message))
            yield from ((name, one) for one in (value if single else [value]))


def lines(fields: Iterable[tuple[str, Any]], width: int = WIDTH) -> Iterator[str]:
    """Yield the lines of a block, without its braces; blocks within it that fit ``width`` take one each."""
    for name, value in fields:
        if not NAME.fullmatch(name):
            raise JobError(f"a job in text format cannot hold a field called {name!r}")
        if isinstance(value, (Message, Mapping)):
            inner = [*lines(message_fields(value) if isinstance(value, Message) else value.items(), width - 2)]
            whole = " ".join([name, "{", *inner, "}"])
            if len(whole) <= width:
                yield whole
            else:
                yield from (f"{name} {{", *(f"  {line}" for line in inner), "}")
        else:
            yield f"{name}: {written(value)}"


def written(value: Any) -> str:
    """Return a value that stands on one line: a scalar, or a list, whose items may be blocks of an extension."""
    if isinstance(value, list):
        if any(isinstance(one, list) for one in value):
            raise JobError(f"a job in text format cannot hold a list within a list: {value!r}")
        return f"[{', '.join(written(one) for one in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {' '.join(lines(value.items()))} }}"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return quoted(value)
    raise JobError(f"a job in text format cannot hold {value!r}")


def quoted(text: str) -> str:
    """Return ``text`` as a string literal; what does not print is escaped as the bytes of its UTF-8."""
    escapes = {"\n": r"\n", "\t": r"\t", '"': r"\"", "\\": r"\\"}

    def escaped(one: str) -> str:
        return escapes.get(one) or (one if one.isprintable() else "".join(f"\\{byte:03o}" for byte in one.encode()))

    return f'"{"".join(map(escaped, text))}"'
