"""Calls that must be refused, each in one line."""

import re
from collections.abc import Callable

import pytest

from dsinga.base.errors import UserError


def refused(call: Callable[[], object], text: str | re.Pattern[str], error: type[Exception] = UserError) -> None:
    """Check that a call raises an error whose message has the text, a regular expression."""
    with pytest.raises(error, match=text):
        call()
