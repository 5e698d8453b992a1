"""Tables of calls that must be refused, each with the name of what is wrong and the remedy."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from dsinga.base.errors import UserError


def refused(call: Callable[[], object], *texts: str | re.Pattern[str], error: type[Exception] = UserError) -> None:
    """Check that a call raises an error whose message has each text, a regular expression: the name, the remedy."""
    with pytest.raises(error, match=texts[0]) as raised:
        call()
    for text in texts[1:]:
        raised.match(text)


def refused_with(call: Callable[[], object], *words: str, error: type[Exception] = UserError) -> None:
    """Check that a call raises an error whose message has all the words, as they stand."""
    refused(call, *map(re.escape, words), error=error)


def refusal(call: Callable[..., object], *words: str, error: type[Exception] = UserError) -> Any:
    """Return a row of a table: a call whose arguments are fixtures, and the words that its error must have."""
    return pytest.param(call, words, error, id=", ".join(words))


def check_refusal(
    call: Callable[..., object], words: tuple[str, ...], error: type[Exception], request: pytest.FixtureRequest
) -> None:
    """Check a row of a table: the call raises this error, and its message has all the words."""
    given = {name: request.getfixturevalue(name) for name in inspect.signature(call).parameters}
    refused_with(lambda: call(**given), *words, error=error)
