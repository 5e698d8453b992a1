"""Parses protobuf's text format, which job files are written in, into names, values and line numbers.

The language is https://protobuf.dev/reference/protobuf/textformat-spec/. Like protobuf's C++ parser, it accepts octal
and hexadecimal numbers, adjacent strings, ``<`` ``>`` blocks and separators after any field. It uses no recursion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinga.job.message import JobError
from dsinga.job.tokens import END, BadToken, Tokens, minus_word, name, number, quoted, unquote

DEEPEST = 100  # blocks within each other
MOST_VALUES = 1_000_000  # in a text: a table has 257 quantiles and 48 bins for each of some thousand columns
CLOSING = {"{": "}", "<": ">", "[": "]"}


class UnclosedError(JobError):
    """Raised if a text ends within a block; ``closing`` has the missing brackets."""

    def __init__(self, message: str, closing: str):
        super().__init__(message)
        self.closing = closing


class BareWord(str):
    """A value without quotes in the text: an enum member, ``true``, ``inf``."""


class Block(NamedTuple):
    """The fields between two braces of a text, in order."""

    entries: Sequence[Entry]


class Entry(NamedTuple):
    """A field as it is written: name, value and line.

    The value is a ``str`` (quoted), :class:`BareWord`, ``int``, ``float``, :class:`Block`, or a ``list``.
    """

    name: str
    value: Any
    line: int


def parse(text: str, file: str) -> Block:
    """Parse a text into its fields. Raises JobError with file, line, column and what was expected."""
    parser = _Parser(text, file, has_places=True)
    return parser.document()


def parse_value(text: str, file: str) -> Any:
    """Parse a text that is one value. Raises JobError for others."""
    parser = _Parser(text, file, has_places=False)
    return parser.single_value()


class _Open(NamedTuple):
    """A bracket that is not closed yet: its line, its contents so far, and its field."""

    bracket: str
    line: int
    items: list[Any]
    name: str = ""
    name_line: int = 0
    only_blocks: bool = False  # a list of a field that has no colon


class _Parser:
    def __init__(self, text: str, file: str, has_places: bool):
        self.file, self.has_places = file, has_places
        self.tokens = Tokens(text)
        self.open: list[_Open] = [_Open("", 1, [])]  # the document, and the brackets within it
        self.values = 0

    def document(self) -> Block:
        tokens = self.tokens
        while tokens.kind != END or len(self.open) > 1:
            if self.open[-1].bracket == "[":
                self.list_item()
            else:
                self.entry()
        return Block(tuple(self.open[0].items))

    def single_value(self) -> Any:
        self.value("", 0)
        while len(self.open) > 1:
            if self.open[-1].bracket == "[":
                self.list_item()
            else:
                self.entry()
        if self.tokens.kind != END:
            raise self.fault("nothing more")
        return self.open[0].items[0].value

    def entry(self) -> None:
        """Read one field, up to the opening bracket of its value, or the block's end."""
        tokens = self.tokens
        if tokens.kind == CLOSING.get(self.open[-1].bracket):
            return self.close()
        if tokens.kind == "[":
            tokens.join_extension()
        if tokens.kind not in ("NAME", "EXTENSION"):
            if tokens.kind in ("}", ">", "]") and len(self.open) == 1:
                raise self.error(f"{tokens.text!r} closes no block")
            if tokens.kind == "NUMBER" and (whole := re.search(r"-?\d+(?=,$)", tokens.source[: tokens.start])):
                raise self.error(f"numbers have a point: write {whole[0]}.{tokens.text}, not {whole[0]},{tokens.text}")
            raise self.fault("a field name")
        try:
            spelled = name(tokens.text)
        except BadToken as error:
            raise self.error(str(error)) from None
        if tokens.kind == "EXTENSION":
            spelled = f"[{spelled[1:-1].strip()}]"
        line = tokens.line()
        tokens.advance()
        if tokens.kind == ":":
            tokens.advance()
            return self.value(spelled, line)
        if tokens.kind in CLOSING:
            return self.begin(spelled, line, only_blocks=True)
        raise self.fault(f"':' or '{{' after the name {quoted(spelled)}")

    def value(self, spelled: str, line: int) -> None:
        """Read a field's value, or its opening bracket."""
        if self.tokens.kind in CLOSING:
            return self.begin(spelled, line)
        return self.add(spelled, line, self.scalar())

    def list_item(self) -> None:
        """Read one list item, and the comma or bracket after it."""
        tokens, list_ = self.tokens, self.open[-1]
        if tokens.kind == "]" and not list_.items:
            return self.close()
        if tokens.kind in ("{", "<"):
            return self.begin("", 0)
        if list_.only_blocks:
            raise self.fault("a value")
        list_.items.append(self.scalar())
        return self.after_item()

    def after_item(self) -> None:
        if self.tokens.kind == "]":
            return self.close()
        if self.tokens.kind != ",":
            raise self.fault("',' or ']'")
        self.tokens.advance()
        if self.tokens.kind in ("]", "["):
            raise self.fault("a value")
        return None

    def begin(self, spelled: str, line: int, only_blocks: bool = False) -> None:
        """Open the block or list at the current token."""
        if len(self.open) > DEEPEST:
            raise self.error(f"blocks are nested more than {DEEPEST} deep")
        bracket = self.tokens.kind
        self.open.append(_Open(bracket, self.tokens.line(), [], spelled, line, only_blocks))
        self.tokens.advance()
        if bracket == "[" and self.tokens.kind == "[":
            raise self.fault("a value")

    def close(self) -> None:
        """Close the innermost block or list, and add its value to the enclosing one."""
        closed = self.open.pop()
        self.tokens.advance()
        value = closed.items if closed.bracket == "[" else Block(tuple(closed.items))
        if self.open[-1].bracket == "[":
            self.open[-1].items.append(value)
            self.count()
            return self.after_item()
        return self.add(closed.name, closed.name_line, value)

    def add(self, spelled: str, line: int, value: Any) -> None:
        """Add a field to the innermost block, and skip the separator."""
        self.open[-1].items.append(Entry(spelled, value, line))
        self.count()
        if self.tokens.kind in (",", ";"):
            self.tokens.advance()

    def count(self) -> None:
        self.values += 1
        if self.values > MOST_VALUES:
            raise self.error(f"a job has at most {MOST_VALUES:,} values")

    def scalar(self) -> Any:
        """Read a number, a string or a word."""
        tokens = self.tokens
        kind, text = tokens.kind, tokens.text
        try:
            if kind == "STRING":
                return self.string()
            if kind == "-":
                tokens.advance()
                if tokens.kind not in ("NUMBER", "NAME"):
                    raise self.fault("a value")
                value: Any = -number(tokens.text) if tokens.kind == "NUMBER" else minus_word(tokens.text)
            elif kind == "NUMBER":
                value = number(text)
            elif kind == "NAME":
                value = BareWord(name(text))
            else:
                raise self.fault("a value")
        except BadToken as error:
            raise self.error(str(error)) from None
        self.count()
        tokens.advance()
        return value

    def string(self) -> str:
        """Read adjacent strings as one."""
        parts = []
        while self.tokens.kind == "STRING":
            parts.append(unquote(self.tokens.text))
            self.count()
            self.tokens.advance()
        return "".join(parts)

    def fault(self, expected: str) -> JobError:
        """Return the error that the text lacks ``expected`` at the current token."""
        tokens, innermost = self.tokens, self.open[-1]
        if tokens.kind == "OTHER":
            if tokens.text in "\"'":
                return self.error(f"the string that begins with {tokens.text} is not closed on its line")
            remedy = "; comments begin with #" if tokens.text == "/" else ""
            return self.error(f"{tokens.text!r} has no meaning here; expected {expected}{remedy}")
        if tokens.kind != END:
            return self.error(f"expected {expected}, found {quoted(tokens.text)}")
        after_bracket = expected == "a field name" or innermost.bracket == "["
        if innermost.bracket and after_bracket:
            text = f"the text ends, but the {innermost.bracket!r} of line {innermost.line} is never closed"
            closing = "".join(CLOSING[open_.bracket] for open_ in reversed(self.open[1:]))
            return UnclosedError(f"{self.place()}: {text}", closing)
        return self.error(f"expected {expected}, found the end of the text")

    def error(self, message: str) -> JobError:
        return JobError(f"{self.place()}: {message}")

    def place(self) -> str:
        line, column = self.tokens.place()
        return f"{self.file}:{line}:{column}" if self.has_places else self.file
