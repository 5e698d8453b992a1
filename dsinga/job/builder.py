"""Builds a job from parsed text, field by field, with the place of each value for errors."""

from __future__ import annotations

from typing import Any

from dsinga.base.components import built_in, written_distribution
from dsinga.base.errors import UserError
from dsinga.base.registry import find, missing_hint, nearest
from dsinga.job.component import Component
from dsinga.job.field_types import item_type
from dsinga.job.layerconf import LayerConf
from dsinga.job.message import (
    JobError,
    Message,
    Where,
    convert_item,
    defaults,
    describe,
    field_name,
    field_text,
    field_type,
    field_types,
    importable_fields,
    is_message,
    missing,
    set_fields,
)
from dsinga.job.textformat import BareWord, Block

# Where a job has what is searched at its top, by the names that people try.
PATHS = {
    **dict.fromkeys(("lr", "learning_rate", "base_lr"), "updater.learning_rate.base_lr"),
    **dict.fromkeys(("batchsize", "batch_size"), "neuralnet.layer[NAME].store_conf.batchsize"),
    **dict.fromkeys(("workers", "nworkers"), "cluster.nworkers_per_group"),
    "steps": "train_steps",
}
BOOLEANS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False, 1: True, 0: False}


class MessageBuilder:
    """Collects the values of a part of a job while the job file is read.

    Attributes:
        owner: the layer that errors name first.
        origin: the message that is copied and changed, or None.
    """

    __slots__ = ("cls", "lines", "origin", "outer", "owner", "values", "where")  # a job may have many

    def __init__(
        self,
        cls: type[Message],
        where: Where,
        owner: str = "",
        outer: MessageBuilder | None = None,
        origin: Message | None = None,
    ):
        self.cls, self.where, self.owner, self.outer, self.origin = cls, where, owner, outer, origin
        self.values: dict[str, Any] = {}
        self.lines: dict[str, list[Where]] = {}

    def error(self, message: str, where: Where | None = None) -> JobError:
        """Return a JobError that names a place: ``where``, or the start of the message."""
        return JobError(f"{where or self.where}: {self.owner}{message}")

    def field(self, spelled: str, where: Where) -> tuple[str, Any, bool]:
        """Look up a field of a message: name, type of a value, and whether it is repeated."""
        try:
            name = field_name(self.cls, spelled)
        except JobError as error:
            self.check_registered(where)
            hint = written_distribution("message", f"{self.cls.__name__}.{spelled}") or self.placement_hint(spelled)
            text = f"{self.cls.__name__} has no field {spelled!r}{hint}" if hint else str(error)
            raise self.error(text, where) from None
        try:
            return (name, *item_type(field_type(self.cls, name)))
        except UserError as error:  # an add-on is not installed
            raise self.error(str(error), where) from None

    def check_registered(self, where: Where) -> None:
        """Raise JobError if the message names a user's component that does not exist."""
        cls: Any = self.cls
        name = self.values.get(cls.user_field) if issubclass(cls, Component) else None
        if name and find(cls.kind, name) is None:
            raise self.error(f"no {cls.kind} is registered as {name!r}{missing_hint(cls.kind, name)}", where)

    def import_components(self, block: Block) -> None:
        """Import the components of other packages that a block names, so that their settings are known."""
        cls: Any = self.cls
        for entry in block.entries:
            if entry.name == cls.user_field and type(entry.value) is str:
                try:
                    find(cls.kind, entry.value)
                except UserError as error:
                    raise self.error(str(error), Where(self.where.file, entry.line)) from None

    def placement_hint(self, spelled: str) -> str:
        """Say where a misplaced field belongs: in an inner or an outer message."""
        if self.outer is None and spelled in PATHS:
            return f"; it is {PATHS[spelled]}"
        kinds = {name: item_type(hint)[0] for name, hint in importable_fields(self.cls).items()}
        blocks = [name for name, kind in kinds.items() if is_message(kind) and spelled in field_types(kind)]
        if issubclass(self.cls, Component):  # rather those of the layer's own type
            row = built_in(self.cls.kind).get(str(self.values.get(self.cls.type_field)))
            blocks = [name for name in blocks if row and name in row.fields] or blocks
        if blocks:
            return f"; it belongs in {' or '.join(blocks)}"
        if spelled == "activation" and self.outer is not None:
            source = self.outer.values.get("name", "NAME")
            return f'; an activation is a layer: layer {{ name: "relu" type: kReLU srclayers: "{source}" }}'
        outer = self.outer
        while outer and spelled not in field_types(outer.cls):
            outer = outer.outer
        return f", but {outer.cls.__name__} has it: is a '}}' missing before it?" if outer else ""

    def add(self, spelled: str, value: Any, where: Where) -> None:
        """Set a field to a parsed value, or append to a repeated field."""
        if spelled.startswith("["):
            return self.add_extension(spelled, value, where)
        name, kind, repeated = self.field(spelled, where)
        if repeated:
            items = [self.item(name, kind, item, where) for item in (value if isinstance(value, list) else [value])]
            self.values.setdefault(name, []).extend(items)
            self.lines.setdefault(name, []).extend([where] * len(items))
            return None
        if name in self.values:
            raise self.error(f"{self.cls.__name__}.{name} is given twice, first at {self.lines[name][0]}", where)
        self.values[name] = self.item(name, kind, value, where)
        self.lines[name] = [where]
        return None

    def add_extension(self, spelled: str, value: Any, where: Where) -> None:
        """Read settings of a user's component, which SINGA writes as ``[name] { ... }``."""
        cls: Any = self.cls
        conf = self.extension_settings(spelled, where)
        if not cls.flat or not isinstance(value, Block):
            return self.add(conf.field, value, where)
        inner = read(value, conf, where, self)
        for name in inner.values:
            if name in self.values:
                raise self.error(f"{cls.__name__}.{name} is given twice, first at {self.lines[name][0]}", where)
        self.values.update(inner.values)
        return self.lines.update(inner.lines)

    def extension_settings(self, spelled: str, where: Where) -> Any:
        """Return the settings class that the user's component declares for ``[name]``."""
        self.check_registered(where)
        cls: Any = self.cls
        user = self.values.get(cls.user_field) if issubclass(cls, Component) else None
        if not user:
            hint = nearest(spelled[1:-1], field_types(cls)) or "; that would be settings of a component of your own"
            raise self.error(f"{cls.__name__} takes no extension {spelled}{hint}", where)
        conf = getattr(find(cls.kind, user), "Conf", None)
        if conf is None or spelled != f"[{conf.field}]":
            declare = f"declare its settings, as class Conf(Settings, field={spelled[1:-1]!r})"
            remedy = declare if conf is None else f"did you mean [{conf.field}]?"
            raise self.error(f"{cls.kind} {user!r} has no extension {spelled}; {remedy}", where)
        return conf

    def item(self, name: str, kind: Any, value: Any, where: Where) -> Any:
        """Convert a parsed value to a field's type; a block becomes the builder of a message."""
        what = f"{self.cls.__name__}.{name}"
        if isinstance(value, Block) and is_message(kind):
            return read(value, kind, where, self)
        if isinstance(value, (Block, list)) or is_message(kind):
            expected = f"a block {name} {{ ... }}" if is_message(kind) else describe(kind)
            spelling = {Block: "a block { ... }", list: "a list"}.get(type(value)) or field_text(value)
            remedy = f"; write {name} {{ {kind.of_number.format(value)} }}" if hasattr(kind, "of_number") else ""
            raise self.error(f"{what} takes {expected}, not {spelling}{remedy}", where)
        try:
            return convert_item(typed(value, kind, what), kind, what)
        except JobError as error:
            raise self.error(str(error), where) from None

    def child(self, name: str, kind: type[Message], where: Where) -> MessageBuilder:
        """Return the builder of an inner message, created from the field's default if needed."""
        if name not in self.values:
            default = defaults(self.cls).get(name)
            self.values[name] = (
                builder_of(default, where, self) if default else MessageBuilder(kind, where, self.owner, self)
            )
            self.lines[name] = [where]
        return self.values[name]

    def build(self) -> Message:
        """Make the message from the collected values. Raises JobError for missing required fields."""
        if text := missing(self.cls, self.values):
            raise self.error(text)
        values = {name: build_value(value) for name, value in self.values.items()}
        if self.origin is not None:  # a copy has what no field holds, too, such as arrays in place of a store
            message = self.origin.replace(**values)
            message._lines = self.lines  # type: ignore[misc]
            return message
        message = self.cls(**values)
        message._where = self.where  # type: ignore[misc]
        message._lines = self.lines  # type: ignore[misc]
        return message


def read(block: Block, cls: type[Message], where: Where, outer: MessageBuilder | None = None) -> MessageBuilder:
    """Read a block of a job file into a builder of the message class ``cls``."""
    owner = outer.owner if outer else ""
    if cls is LayerConf:
        names = [entry.value for entry in block.entries if entry.name == "name" and type(entry.value) is str]
        owner = f"layer {names[0]!r}: " if names else ""
    builder = MessageBuilder(cls, where, owner, outer)
    if issubclass(cls, Component):
        builder.import_components(block)
    for entry in sorted(block.entries, key=lambda entry: entry.name.startswith("[")):  # after the user_type
        builder.add(entry.name, entry.value, Where(where.file, entry.line))
    return builder


def builder_of(message: Message, where: Where, outer: MessageBuilder | None = None) -> MessageBuilder:
    """Prepare a changed copy of a message: return a builder with its values."""
    owner = outer.owner if outer else ""
    if isinstance(message, LayerConf):
        owner = f"layer {message.name!r}: "
    builder = MessageBuilder(type(message), message.where() or where, owner, outer, message)
    for name, value in set_fields(message).items():
        items = value if isinstance(value, list) else [value]
        inner = [builder_of(item, where, builder) if isinstance(item, Message) else item for item in items]
        builder.values[name] = inner if isinstance(value, list) else inner[0]
        builder.lines[name] = [message.where(name, number) or where for number in range(max(1, len(items)))]
    return builder


def build_value(value: Any) -> Any:
    """Make messages of all builders in a value, also in lists."""
    if isinstance(value, list):
        return [build_value(item) for item in value]
    return value.build() if isinstance(value, MessageBuilder) else value


def typed(value: Any, kind: Any, what: str) -> Any:
    """Convert the text format's words for booleans and infinities to Python values."""
    if kind is bool and not (type(value) is str or isinstance(value, float)):
        return BOOLEANS.get(value, value)
    if kind is str and isinstance(value, BareWord):
        raise JobError(f'{what} takes a string: write "{value}", with quotes')
    if kind is float and isinstance(value, BareWord):
        return real(value) or value
    return value


def real(word: BareWord) -> float | None:
    """Return the float that a word spells (inf, infinity, nan), else None."""
    return float(word) if word.lower() in ("inf", "infinity", "nan") else None
