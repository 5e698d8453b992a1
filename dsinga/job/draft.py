"""A message while it is read: values may still be added or replaced before the required ones are asked for."""

from __future__ import annotations

from typing import Any

from dsinga.job.layerconf import LayerConf
from dsinga.job.message import (
    JobError,
    Message,
    Where,
    convert_item,
    defaults,
    describe,
    field_name,
    field_types,
    is_message,
    item_type,
    missing,
    set_fields,
)
from dsinga.job.textformat import Block, Word

BOOLEANS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False, 1: True, 0: False}


class Draft:
    """The values of a message to be, and the place of each.

    ``values`` holds what the message will, with drafts for messages; ``lines`` the place of each value of each field.
    ``owner`` names the layer that the message belongs to, for errors. ``outer`` is the draft around this one.
    """

    def __init__(self, cls: type[Message], where: Where, owner: str = "", outer: Draft | None = None):
        self.cls, self.where, self.owner, self.outer = cls, where, owner, outer
        self.values: dict[str, Any] = {}
        self.lines: dict[str, list[Where]] = {}

    def fault(self, message: str, where: Where | None = None) -> JobError:
        """Return the JobError that says ``message`` of this draft, at ``where`` or where the draft begins."""
        return JobError(f"{where or self.where}: {self.owner}{message}")

    def field(self, spelled: str, where: Where) -> tuple[str, Any, bool]:
        """Return the name of a field, the type of one value and whether it is repeated; JobError if there is none."""
        try:
            name = field_name(self.cls, spelled)
        except JobError as error:
            elsewhere = self.elsewhere(spelled)
            text = f"{self.cls.__name__} has no field {spelled!r}{elsewhere}" if elsewhere else str(error)
            raise self.fault(text, where) from None
        return (name, *item_type(field_types(self.cls)[name]))

    def elsewhere(self, spelled: str) -> str:
        """Return where a field belongs that this message has not: within some of its blocks, or in one around it."""
        kinds = {name: item_type(hint)[0] for name, hint in field_types(self.cls).items()}
        blocks = [name for name, kind in kinds.items() if is_message(kind) and spelled in field_types(kind)]
        if blocks:
            return f"; it belongs in {' or '.join(blocks)}"
        around = self.outer
        while around and spelled not in field_types(around.cls):
            around = around.outer
        return f", but {around.cls.__name__} has: is a '}}' missing before it?" if around else ""

    def add(self, spelled: str, value: Any, where: Where) -> None:
        """Give the field ``spelled`` a value as the parser has it, one more if it is repeated."""
        if spelled.startswith("["):
            return self.add_extension(spelled, value, where)
        name, kind, repeated = self.field(spelled, where)
        if kind is dict:
            raise self.fault(f"{self.cls.__name__}: extensions are written by name, as [name] {{ ... }}", where)
        if repeated:
            items = [self.item(name, kind, one, where) for one in (value if isinstance(value, list) else [value])]
            self.values.setdefault(name, []).extend(items)
            self.lines.setdefault(name, []).extend([where] * len(items))
            return None
        if name in self.values:
            raise self.fault(f"{self.cls.__name__}.{name} is given twice, first at {self.lines[name][0]}", where)
        self.values[name] = self.item(name, kind, value, where)
        self.lines[name] = [where]
        return None

    def add_extension(self, spelled: str, value: Any, where: Where) -> None:
        """Keep the extension ``[name]`` of a user-defined type as nested dicts."""
        if "extensions" not in field_types(self.cls):
            raise self.fault(f"{self.cls.__name__} takes no extensions such as {spelled}", where)
        put(self.values.setdefault("extensions", {}), spelled[1:-1], untyped(value))
        self.lines.setdefault("extensions", []).append(where)

    def item(self, name: str, kind: Any, value: Any, where: Where) -> Any:
        """Return one value of a field as the type ``kind``, a draft for a message; JobError where it is none."""
        what = f"{self.cls.__name__}.{name}"
        if isinstance(value, Block) and is_message(kind):
            return read(value, kind, where, self)
        if isinstance(value, (Block, list)) or is_message(kind):
            wanted = f"a block {name} {{ ... }}" if is_message(kind) else describe(kind)
            found = {Block: "a block { ... }", list: "a list"}.get(type(value), repr(value))
            raise self.fault(f"{what} takes {wanted}, not {found}", where)
        try:
            return convert_item(typed(value, kind, what), kind, what)
        except JobError as error:
            raise self.fault(str(error), where) from None

    def child(self, name: str, kind: type[Message], where: Where) -> Draft:
        """Return the draft in a field that is not repeated; one with the field's default value if it has none yet."""
        if name not in self.values:
            default = defaults(self.cls).get(name)
            self.values[name] = thaw(default, where, self) if default else Draft(kind, where, self.owner, self)
            self.lines[name] = [where]
        return self.values[name]

    def build(self) -> Message:
        """Return the message; raise JobError if this draft or one within it lacks a required field."""
        if lack := missing(self.cls, self.values):
            raise self.fault(lack)
        message = self.cls(**{name: built(value) for name, value in self.values.items()})
        message._where = self.where  # type: ignore[misc]
        message._lines = self.lines  # type: ignore[misc]
        return message


def read(block: Block, cls: type[Message], where: Where, outer: Draft | None = None) -> Draft:
    """Return the draft of a message from a block of the text that begins at ``where``."""
    owner = outer.owner if outer else ""
    if cls is LayerConf:
        names = [entry.value for entry in block.entries if entry.name == "name" and type(entry.value) is str]
        owner = f"layer {names[0]!r}: " if names else ""
    draft = Draft(cls, where, owner, outer)
    for entry in block.entries:
        draft.add(entry.name, entry.value, Where(where.file, entry.line))
    return draft


def thaw(message: Message, where: Where, outer: Draft) -> Draft:
    """Return a draft that would build ``message``, a default: it holds no lists."""
    draft = Draft(type(message), where, outer.owner, outer)
    for name, value in set_fields(message).items():
        draft.values[name] = thaw(value, where, draft) if isinstance(value, Message) else value
    return draft


def built(value: Any) -> Any:
    """Return a value of a draft with its drafts built."""
    if isinstance(value, list):
        return [built(one) for one in value]
    return value.build() if isinstance(value, Draft) else value


def typed(value: Any, kind: Any, what: str) -> Any:
    """Return a scalar in Python's spelling, where the text format's differs: booleans, strings, infinities."""
    if kind is bool and not (type(value) is str or isinstance(value, float)):
        return BOOLEANS.get(value, value)
    if kind is str and isinstance(value, Word):
        raise JobError(f'{what} takes a string: write "{value}", with quotes')
    if kind is float and isinstance(value, Word):
        return real(value) or value
    return value


def real(word: Word) -> float | None:
    """Return the float that a word means, None if it means none."""
    return float(word) if word.lower() in ("inf", "infinity", "nan") else None


def untyped(value: Any) -> Any:
    """Return a value of an extension, whose schema is unknown, as Python's: dict, list, bool, number or string."""
    if isinstance(value, Block):
        fields: dict[str, Any] = {}
        for entry in value.entries:
            put(fields, entry.name, untyped(entry.value))
        return fields
    if isinstance(value, list):
        return [untyped(one) for one in value]
    if isinstance(value, Word):
        number = real(value)
        return {"true": True, "false": False}.get(value, str(value)) if number is None else number
    return value


def put(fields: dict[str, Any], name: str, value: Any) -> None:
    """Set a field whose schema is unknown: given again, it is repeated, and its values become a list."""
    if name in fields:
        before, after = (one if isinstance(one, list) else [one] for one in (fields[name], value))
        value = before + after
    fields[name] = value
