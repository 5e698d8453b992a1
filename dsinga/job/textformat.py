"""Parses the syntax of protobuf's text format into names, values and line numbers, without a schema.

The language is that of https://protobuf.dev/reference/protobuf/textformat-spec/; as in protobuf's C++ parser, octal and
hexadecimal numbers, adjacent strings, ``<`` ``>`` blocks and separators after any field are accepted.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dsinga.job.message import JobError
from dsinga.job.syntax_fault import SyntaxFault, explain

if TYPE_CHECKING:
    from lark import Lark, Token

GRAMMAR = r"""
document: (entry ("," | ";")?)*
value: _any
entry: NAME ":" _any                  -> field
     | NAME (block | blocks)          -> field
     | EXTENSION ":" _any             -> field
     | EXTENSION (block | blocks)     -> field
_any: scalar | block | list
block: "{" document "}" | "<" document ">"
blocks: "[" (block ("," block)*)? "]" -> list
list: "[" (_item ("," _item)*)? "]"
_item: scalar | block
scalar: STRING+                       -> string
      | NUMBER                        -> number
      | "-" NUMBER                    -> minus_number
      | NAME                          -> word
      | "-" NAME                      -> minus_word

NAME: /[A-Za-z_]\w*/
EXTENSION: /\[\s*[A-Za-z_][\w.\/-]*\s*\]/
NUMBER: /\.?[0-9]([eE][+-]|[\w.])*/
STRING: /"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])*'/
%ignore /\s+|#[^\n]*/
"""


class UnclosedError(JobError):
    """The text ends within a block; ``closing`` has the brackets that would close all open blocks."""

    def __init__(self, message: str, closing: str):
        super().__init__(message)
        self.closing = closing


class BareWord(str):
    """A value written without quotes: an enum member, ``true``, ``inf``."""


class Block(NamedTuple):
    """The fields between two braces, in the order of the text."""

    entries: Sequence[Entry]


class Entry(NamedTuple):
    """One field as written: its name (with the brackets if it is an extension), its value, the line of its name.

    The value is a ``str`` (quoted in the text), a :class:`BareWord`, an ``int``, a ``float``, a :class:`Block`, or a
    ``list`` of these.
    """

    name: str
    value: Any
    line: int


def parse(text: str, file: str) -> Block:
    """Return the fields of a whole text; raise JobError with file, line, column and what was expected."""
    return _parse(text, file, "document")


def parse_value(text: str, file: str) -> Any:
    """Return the value in ``text``, of a type as in :class:`Entry`; raise JobError if it is not a single value."""
    return _parse(text, file, "value")


def _parse(text: str, file: str, start: str) -> Any:
    from lark import UnexpectedInput

    try:
        return parser().parse(text, start=start)
    except UnexpectedInput as error:
        fault = explain(error, text)
    except BadToken as error:
        fault = SyntaxFault(error.token.line or 0, error.token.column or 0, error.message)
    place = f"{file}:{fault.line}:{fault.column}" if start == "document" else file
    raise (
        UnclosedError(f"{place}: {fault.message}", fault.closing)
        if fault.closing
        else JobError(f"{place}: {fault.message}")
    )


@functools.cache
def parser() -> Lark:
    """Return the parser; it is made at first use, because making it takes time that not every program needs."""
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", start=["document", "value"], transformer=_actions())


def _actions() -> Any:
    from lark import Transformer, v_args

    @v_args(inline=True)
    class Actions(Transformer):
        def document(self, *entries: Entry) -> Block:
            return Block(entries)

        def value(self, value: Any) -> Any:
            return value

        def block(self, document: Block) -> Block:
            return document

        def field(self, name: Token, value: Any) -> Entry:
            spelled = f"[{name[1:-1].strip()}]" if name.startswith("[") else str(name)
            return Entry(spelled, value, name.line or 0)

        def list(self, *items: Any) -> list[Any]:
            return [*items]

        def string(self, *tokens: Token) -> str:
            return "".join(unquote(token) for token in tokens)

        def number(self, token: Token) -> int | float:
            return number(token)

        def minus_number(self, token: Token) -> int | float:
            return -number(token)

        def word(self, token: Token) -> BareWord:
            return BareWord(token)

        def minus_word(self, token: Token) -> float:
            if token.lower() not in ("inf", "infinity", "nan"):
                raise BadToken(token, f"'-{token}' is not a number")
            return -float(token)

    return Actions()


class BadToken(Exception):
    """A token of the right kind with invalid content."""

    def __init__(self, token: Token, message: str):
        super().__init__(message)
        self.token, self.message = token, message


def number(token: Token) -> int | float:
    """Return the number that a token spells: decimal, hexadecimal (0x), octal (0), or real, with or without f."""
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", token):
        return int(token, 16)
    if re.fullmatch(r"0[0-7]*", token):
        return int(token, 8)
    if re.fullmatch(r"[1-9][0-9]*", token):
        return int(token)
    if re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fF]?", token) and not re.fullmatch("0[0-9]+", token):
        return float(token.rstrip("fF"))
    raise BadToken(token, f"{str(token)!r} is not a number")


ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
PLAIN_ESCAPES = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))


def unquote(token: Token) -> str:
    r"""Return the text of a quoted string. Octal and ``\x`` escapes are bytes of UTF-8, as in protobuf."""

    def replaced(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, plain = match.groups()
        if octal or hexadecimal:
            return bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)])
        if plain:
            return bytes([PLAIN_ESCAPES[plain[0]]])
        return chr(int(short or long, 16)).encode()

    try:
        return ESCAPE.sub(replaced, token[1:-1].encode()).decode()
    except KeyError:
        raise BadToken(token, f"{str(token)} has an unknown escape; write \\\\ for a backslash") from None
    except (ValueError, OverflowError):  # a number beyond Unicode, or bytes that are not UTF-8
        raise BadToken(token, f"{str(token)} is not UTF-8 text") from None
