"""Splits the text of a job file into tokens: names, numbers, strings and signs."""

from __future__ import annotations

import re

LONGEST_NUMBER = 400  # characters; a float has at most 309 digits before its point
LONGEST_NAME = 200
LONGEST_STRING = 4096
SHOWN = 60  # characters of a token in a message

# White space and comments, names, numbers, strings, signs; anything else is a token of one character. Possessive
# quantifiers keep the memory of a match small, however long it is.
_TOKEN = re.compile(
    r"""(?P<SPACE>(?:\s++|\#[^\n]*+))
    |(?P<NAME>[A-Za-z_]\w*+)
    |(?P<NUMBER>\.?[0-9](?:[eE][+-]|[\w.])*+)
    |(?P<STRING>"(?:[^"\\\n]++|\\.)*+"|'(?:[^'\\\n]++|\\.)*+')
    |(?P<SIGN>[][{}<>:,;-])
    |(?P<OTHER>.)""",
    re.VERBOSE,
)
_EXTENSION = re.compile(r"\[\s*+[A-Za-z_][\w./-]*+\s*+\]")
END = "END"


class BadToken(Exception):
    """Raised for a token with invalid content, such as a number that is too large."""


class Tokens:
    """Reads the tokens of a text, one at a time: ``kind``, ``text`` and ``start``.

    ``kind`` is NAME, NUMBER, STRING, EXTENSION, OTHER, END, or the sign itself.
    """

    def __init__(self, text: str):
        self.source = text
        self.kind, self.text, self.start = "", "", 0
        self._stop = self._counted = 0
        self._line = 1
        self.advance()

    def advance(self) -> None:
        """Go on to the next token."""
        stop = self._stop
        while (match := _TOKEN.match(self.source, stop)) is not None:
            kind = match.lastgroup
            if kind != "SPACE":
                self.start, self._stop, self.text = match.start(), match.end(), match[0]
                self.kind = self.text if kind == "SIGN" else kind or ""
                return
            stop = match.end()
        self.kind, self.text, self.start, self._stop = END, "", len(self.source), len(self.source)

    def join_extension(self) -> None:
        """Join a name in brackets into one token."""
        match = _EXTENSION.match(self.source, self.start)
        if match is not None:
            self.kind, self.text, self._stop = "EXTENSION", match[0], match.end()

    def place(self) -> tuple[int, int]:
        """Return line and column of the current token, counted from 1."""
        return self.line(), self.start - self.source.rfind("\n", 0, self.start)

    def line(self) -> int:
        """Return the line of the current token."""
        self._line += self.source.count("\n", self._counted, self.start)
        self._counted = self.start
        return self._line


def quoted(text: str) -> str:
    """Put a token into quotes for errors, shortened."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}... ({len(text)} characters)"


def name(text: str) -> str:
    """Return a name, unless it is too long for a job file (BadToken)."""
    if len(text) > LONGEST_NAME:
        raise BadToken(f"the name {quoted(text)} is too long; names have at most {LONGEST_NAME}")
    return text


def number(text: str) -> int | float:
    """Return the number that a token spells: decimal, hexadecimal (0x), octal (0) or real, perhaps with f."""
    if len(text) > LONGEST_NUMBER:
        raise BadToken(f"the number {quoted(text)} is too long; numbers have at most {LONGEST_NUMBER}")
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", text):
        return int(text, 16)
    if re.fullmatch(r"0[0-7]*", text):
        return int(text, 8)
    if re.fullmatch(r"[1-9][0-9]*", text):
        return int(text)
    if re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fF]?", text) and not re.fullmatch("0[0-9]+", text):
        return float(text.rstrip("fF"))
    raise BadToken(f"{quoted(text)} is not a number")


def minus_word(text: str) -> float:
    """Return the number that a word after a minus spells: negative infinity, or NaN."""
    if text.lower() not in ("inf", "infinity", "nan"):
        raise BadToken(f"{quoted(f'-{text}')} is not a number")
    return -float(text)


ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
PLAIN_ESCAPES = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))


def unquote(token: str) -> str:
    r"""Return the text that a quoted string spells, with its escapes resolved."""
    if len(token) > LONGEST_STRING:
        raise BadToken(f"the string {quoted(token)} is too long; strings have at most {LONGEST_STRING}")

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
        raise BadToken(f"{cut(token)} has an unknown escape; write \\\\ for a backslash") from None
    except (ValueError, OverflowError):  # a number beyond Unicode, or bytes that are not UTF-8
        raise BadToken(f"{cut(token)} is not UTF-8 text") from None


def cut(text: str) -> str:
    """Shorten a token for errors."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
