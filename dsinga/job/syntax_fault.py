"""Explains a parser error in plain words, with line and column."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lark import UnexpectedInput

BRACKETS = {"{": "}", "<": ">", "[": "]"}


class SyntaxFault(NamedTuple):
    """A syntax error: its line and column, from 1, a message, and the brackets that would close all open blocks."""

    line: int
    column: int
    message: str
    closing: str = ""


def explain(error: UnexpectedInput, text: str) -> SyntaxFault:
    """Return where ``error`` is in ``text``, with a message about what was expected and what the text has."""
    from lark import Token, UnexpectedCharacters, UnexpectedToken

    if isinstance(error, UnexpectedCharacters):
        character = text[error.pos_in_stream or 0]
        message = f"{character!r} has no meaning here; expected {expected(error.allowed or set())}"
        if character in "\"'":
            message = f"the string that begins with {character} is not closed on its line"
        return SyntaxFault(error.line, error.column, message)

    assert isinstance(error, UnexpectedToken)
    assert error.interactive_parser is not None
    pending = [item for item in error.interactive_parser.parser_state.value_stack if isinstance(item, Token)]
    expectation = expected(error.accepts)
    if "COLON" in error.accepts:
        expectation += f" after the name {str(pending[-1])!r}"
    if error.token in BRACKETS.values() and not pending:
        return SyntaxFault(error.line, error.column, f"{str(error.token)!r} closes no block")
    if error.token.type != "$END":
        return SyntaxFault(error.line, error.column, f"expected {expectation}, found {str(error.token)!r}")

    line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    if pending and pending[-1] in BRACKETS:
        message = f"the text ends, but the {str(pending[-1])!r} of line {pending[-1].line} is never closed"
        closing = "".join(BRACKETS[token] for token in reversed(pending) if token in BRACKETS)
        return SyntaxFault(line, column, message, closing)
    return SyntaxFault(line, column, f"expected {expectation}, found the end of the text")


def expected(terminals: set[str]) -> str:
    """Return words for the tokens that the parser accepts next."""
    if "NUMBER" in terminals:
        return "a value"
    if "EXTENSION" in terminals:
        return "a field name"
    signs = {"COLON": ":", "LBRACE": "{", "COMMA": ",", "RSQB": "]"}
    return " or ".join(repr(sign) for name, sign in signs.items() if name in terminals) or "nothing more"
