"""What the parser's complaint about a text means, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lark import UnexpectedInput

BRACKETS = {"{": "}", "<": ">", "[": "]"}


class Fault(NamedTuple):
    """A fault of syntax: its line and column, from 1, what to say, and what would close the blocks that are open."""

    line: int
    column: int
    message: str
    closing: str = ""


def explain(error: UnexpectedInput, text: str) -> Fault:
    """Return where ``error`` is in ``text``, what was expected there and what was found."""
    from lark import Token, UnexpectedCharacters, UnexpectedToken

    if isinstance(error, UnexpectedCharacters):
        found = text[error.pos_in_stream or 0]
        message = f"{found!r} has no meaning here; expected {expected(error.allowed or set())}"
        if found in "\"'":
            message = f"the string that begins with {found} is not closed on its line"
        return Fault(error.line, error.column, message)

    assert isinstance(error, UnexpectedToken)
    assert error.interactive_parser is not None
    pending = [one for one in error.interactive_parser.parser_state.value_stack if isinstance(one, Token)]
    wanted = expected(error.accepts)
    if "COLON" in error.accepts:
        wanted += f" after the name {str(pending[-1])!r}"
    if error.token in BRACKETS.values() and not pending:
        return Fault(error.line, error.column, f"this {str(error.token)!r} closes nothing")
    if error.token.type != "$END":
        return Fault(error.line, error.column, f"expected {wanted}, found {str(error.token)!r}")

    line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    if pending and pending[-1] in BRACKETS:
        message = f"the text ends, but the {str(pending[-1])!r} of line {pending[-1].line} is never closed"
        closing = "".join(BRACKETS[one] for one in reversed(pending) if one in BRACKETS)
        return Fault(line, column, message, closing)
    return Fault(line, column, f"expected {wanted}, found the end of the text")


def expected(terminals: set[str]) -> str:
    """Return words for the tokens that the parser would take next."""
    if "NUMBER" in terminals:
        return "a value"
    if "EXTENSION" in terminals:
        return "a field name"
    signs = {"COLON": ":", "LBRACE": "{", "COMMA": ",", "RSQB": "]"}
    return " or ".join(repr(sign) for name, sign in signs.items() if name in terminals) or "nothing more"
