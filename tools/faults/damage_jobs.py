"""Damages the text of a job by its structure: fields and blocks, numbers, names, sources, nesting."""

from __future__ import annotations

import random as random_module
import re
from collections.abc import Iterator
from typing import NamedTuple

from dsinga.job import enums
from dsinga.job.layerconf import LayerConf
from dsinga.job.message import Message, field_types, is_message, item_type
from dsinga.job.schema import Job

TOKEN = re.compile(r'#[^\n]*|"(?:\\.|[^"\\\n])*"|[A-Za-z_]\w*|[-+.\w]+|\s+|.')
NUMBER = re.compile(r"-?\.?\d[\w.+-]*")
NASTY_NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "0.5", "-0.5", "1.5", "1e-30", "1e30", "1e39", "-1e39", "1e999999", "-1e999999",
    "nan", "-nan", "inf", "-inf", "2147483647", "2147483648", "-2147483649", "4294967296", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "1000000000000", "1000000", "65536", "10" * 200, "1" + "0" * 5000,
    "0x10", "0xffffffffffffffffff", "007", "08", "1e", "1.2.3", "--1", "1f", ".5", "5.", "true", '"1"', "1e-400",
    "[]", "[1, 2]", "{ }", "kNone",
)  # fmt: skip
NASTY_STRINGS = (
    '""', '"data"', '"loss"', '"a b"', '"x" "y"', r'"\n"', r'"\000"', r'"\377"', r'"\ud800"', '"%s{0}"',
    '"../.."', '"/"', '"/dev/null"', '"/dev/zero"', '"é\u202e\U0001f600"', '"' + "x" * 5000 + '"', "'unclosed", "bare",
    '"0#data"', '"a/b"', '"."', '"train.zarr"', '"text"', '"text/vocab.txt"', '"s3://"', '"http://127.0.0.1:1/"', "1",
)  # fmt: skip
NASTY_TEXTS = (
    "{", "}", "{ }", "<", ">", "[", "]", ":", ",", ";", '"', "'", "#", "\\", "\0", "\r\n", "\ufeff", "\u00a0", "-",
    "layer { }", "[ext] { a: 1 }", "[ext]: 5", "{" * 500, "layer {" * 200, "x: [" * 100, "\n" * 2000, "1" * 6000,
    "a" * 20000, "neuralnet { }", "updater { }", "cluster { }", "param { }", "include: kTrain", "net { }",
)  # fmt: skip


class Field(NamedTuple):
    """The tokens of one field: where its name begins, where its value begins, and where it ends."""

    start: int
    value: int
    stop: int

    def text(self, tokens: list[str]) -> str:
        """Return the field as written."""
        return "".join(tokens[self.start : self.stop])


def fields_of(tokens: list[str]) -> list[Field]:
    """Return all fields of a well-formed text, outer ones before the fields in them."""
    fields: list[Field] = []
    open_: list[tuple[int, int]] = []
    at = 0
    while at < len(tokens):
        if re.fullmatch(r"[A-Za-z_]\w*", tokens[at]):
            value = at + 1
            while value < len(tokens) and (tokens[value].isspace() or tokens[value] == ":"):
                value += 1
            if value < len(tokens) and tokens[value] == "{":
                open_.append((at, value))
                at = value + 1
                continue
            if ":" in tokens[at + 1 : value]:
                stop = value + 1
                if tokens[value : value + 1] == ["["]:
                    stop = value + (tokens[value:].index("]") + 1 if "]" in tokens[value:] else 1)
                elif tokens[value : value + 1] == ["-"]:
                    stop = value + 2
                fields.append(Field(at, value, min(stop, len(tokens))))
                at = stop
                continue
        elif tokens[at] == "}" and open_:
            fields.append(Field(*open_.pop(), at + 1))
        at += 1
    return sorted(fields)


def damage_structure(random: random_module.Random, text: str, other: str) -> tuple[str, str]:
    """Return ``text`` with one change of its structure, and what was done; ``other`` is a job to take parts from."""
    tokens = TOKEN.findall(text)
    fields = [field for field in fields_of(tokens) if field.value < len(tokens)]
    if len(fields) < 3 or not any(tokens[field.value] == "{" for field in fields):
        return text + random.choice(NASTY_TEXTS), "add a text"
    kind = random.choice(KINDS)
    field = random.choice(fields)
    blocks = [f for f in fields if tokens[f.value] == "{"]
    name = tokens[field.start]

    def put(start: int, stop: int, new: str) -> str:
        return "".join([*tokens[:start], new, *tokens[stop:]])

    if kind == "delete":
        return put(field.start, field.stop, ""), f"delete {name}"
    if kind == "double":
        return put(field.stop, field.stop, f" {field.text(tokens)}"), f"double {name}"
    if kind == "repeat":
        count = random.choice((3, 20, 300))
        return put(field.stop, field.stop, f" {field.text(tokens)}" * count), f"repeat {name} {count} times"
    if kind == "swap":
        first, second = sorted((field, random.choice(fields)))
        if first.stop > second.start:
            return put(first.start, first.stop, second.text(tokens)), f"replace {tokens[first.start]} by its part"
        middle = "".join(tokens[first.stop : second.start])
        new = second.text(tokens) + middle + first.text(tokens)
        return put(first.start, second.stop, new), f"swap {tokens[first.start]} and {tokens[second.start]}"
    if kind == "move" and blocks:
        block = random.choice(blocks)
        return put(block.value + 1, block.value + 1, f" {field.text(tokens)} "), f"copy {name} to {tokens[block.start]}"
    if kind == "splice":
        others = TOKEN.findall(other)
        part = random.choice(fields_of(others))
        block = random.choice(blocks)
        new = f" {part.text(others)} "
        return put(block.value + 1, block.value + 1, new), f"splice {others[part.start]} into {tokens[block.start]}"
    if kind == "rename":
        new = random.choice([*field_types(random.choice(MESSAGES)), name[:-1] or "x", name + "s", name.upper(), "é"])
        return put(field.start, field.start + 1, new), f"rename {name} {new}"
    if kind == "token":
        at = random.randrange(len(tokens))
        new = random.choice(NASTY_TEXTS)
        return put(at, at + random.randrange(2), new), f"put {new[:20]!r} at token {at}"
    if kind == "add":
        block = random.choice(blocks)
        new = added_field(random)
        return put(block.value + 1, block.value + 1, f" {new} "), f"add {new[:60]} to {tokens[block.start]}"
    if kind == "space":
        at = random.randrange(len(tokens))
        new = random.choice((" ", "\n", "\t", "  # a comment { ] }\n", "\r\n")) if tokens[at].isspace() else ""
        return put(at, at, new), "add white space"
    if kind == "near":
        numbers = [f for f in fields if NUMBER.fullmatch("".join(tokens[f.value : f.stop]))]
        field = random.choice(numbers or fields)
        if not numbers:
            return put(field.start, field.stop, ""), "delete a field"
        old = "".join(tokens[field.value : field.stop])
        new = random.choice((f"{old}.0", f"1{old}", f"{old}0", f"{old}1", "1", "2", "3", "0.25", "4.0"))
        return put(field.value, field.stop, new), f"{tokens[field.start]}: {old} becomes {new}"
    if kind == "nest":
        count = random.choice((2, 50, 3000))
        new = f"{name} {{ " * count + field.text(tokens) + " }" * count
        return put(field.start, field.stop, new), f"nest {name} {count} times"
    return damage_value(random, tokens, fields, put)


def damage_value(random: random_module.Random, tokens: list[str], fields: list[Field], put) -> tuple[str, str]:
    """Return a text in which the value of a field, which is no block, is another one, and what was done."""
    field = random.choice([f for f in fields if tokens[f.value] != "{"])
    name, old = tokens[field.start], "".join(tokens[field.value : field.stop])
    values = [tokens[f.value] for f in fields if f.stop == f.value + 1]
    if NUMBER.fullmatch(old):
        new = random.choice(NASTY_NUMBERS)
    elif old.startswith(('"', "'", "[")):
        names = [value for value in values if value.startswith('"')] or ['"x"']
        new = random.choice((random.choice(names), random.choice(NASTY_STRINGS)))
    else:
        kind = random.choice(ENUMS)
        same = [e for e in ENUMS if old in e.__members__]
        new = random.choice([*random.choice(same or [kind]).__members__, random.choice([*kind.__members__]), old[:-1]])
    return put(field.value, field.stop, new), f"{name}: {old} becomes {new[:60]}"


def added_field(random: random_module.Random) -> str:
    """Return a field of the schema with a value of its type, or of another."""
    cls = random.choice((Job, LayerConf, *MESSAGES))
    name, hint = random.choice([*field_types(cls).items()])
    kind, _ = item_type(hint)
    if is_message(kind):
        return f"{name} {{ {' '.join(added_field(random) for _ in range(random.randrange(2)))} }}"
    if kind in (int, float):
        return f"{name}: {random.choice(NASTY_NUMBERS)}"
    if isinstance(kind, type) and issubclass(kind, enums.Enum):
        return f"{name}: {random.choice([*kind.__members__])}"
    return f"{name}: {random.choice((random.choice(NASTY_STRINGS), 'true', 'false'))}"


def _messages(cls: type[Message], above: tuple[type[Message], ...] = ()) -> Iterator[type[Message]]:
    yield cls
    for hint in field_types(cls).values():
        kind, _ = item_type(hint)
        if is_message(kind) and kind not in above:  # a schedule may be made of schedules
            yield from _messages(kind, (*above, cls))


MESSAGES = tuple(dict.fromkeys(_messages(Job)))
ENUMS = [kind for kind in vars(enums).values() if isinstance(kind, type) and issubclass(kind, enums.Enum)]
ENUMS = [kind for kind in ENUMS if kind.__members__]
KINDS = (
    "delete", "double", "repeat", "swap", "move", "splice", "rename", "token", "add", "add", "nest", "value", "value",
    "value", "value", "space", "near", "near", "near",
)  # fmt: skip
