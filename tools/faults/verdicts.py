"""Judges how dsinga took a damaged input: the right bits, one message, or a fault of dsinga."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from tools.faults.forked import Ended

WRONG = 99  # the status of a case that ended well with other bits than it should have
RIGHT, MESSAGE = "right bits", "one message"
FAULTS = ("wrong bits", "traceback", "hang", "crash", "no single message")
LONGEST_MESSAGE = 2000  # characters

# The line with which a case says what it has damaged, before dsinga runs.
_DAMAGE = "damage: "


def say_damage(text: str) -> None:
    """Write what a case has damaged, so that it stands in the report."""
    print(f"{_DAMAGE}{text}", flush=True)


def damage_of(ended: Ended) -> str:
    """Return what the case has damaged."""
    first, _, _ = ended.output.partition("\n")
    return first.removeprefix(_DAMAGE)


def run_dsinga(arguments: Sequence[str]) -> int:
    """Run the command line ``dsinga`` in this process, and return its exit status."""
    from dsinga.commands.cli import main

    sys.argv = ["dsinga", *arguments]
    try:
        main()
    except SystemExit as end:
        return 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    return 0


def verdict(ended: Ended) -> str:
    """Return :data:`RIGHT`, :data:`MESSAGE`, or one of :data:`FAULTS`."""
    if ended.status is None:
        return "hang"
    if "Traceback (most recent call last)" in ended.output:
        return "traceback"
    if ended.status == WRONG:
        return "wrong bits"
    if ended.status == 0:
        return RIGHT
    if ended.status not in (1, 2):
        return "crash"
    messages = messages_of(ended)
    return MESSAGE if len(messages) == 1 and len(messages[0]) <= LONGEST_MESSAGE else "no single message"


def messages_of(ended: Ended) -> list[str]:
    """Return the messages of dsinga in the output of a case."""
    return re.findall(r"^dsinga: .*(?:\n(?!dsinga: ).+)*", ended.output, re.MULTILINE)
