"""Joins recorded calls of C functions, which one compiled loop then calls, without Python between them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any

import numpy as np

from dsinga.ops.compiled.call_records import LENGTH, MOVES, OPERANDS, STEPS, TIMES, WORDS, CallRecord, records_of
from dsinga.ops.compiled.code_files import runs_code
from dsinga.ops.compiled.compiler import is_available, load_loop

JOINED_AFTER = 64  # repetitions: to describe a call takes as long as to make it some 50 times
Call = Callable[[], Any]

_LOOP = f"""
def loop(records, count, done):
    for k in range(count):
        r = {WORDS} * k
        kind = records[r]
        if kind == 0:
            if call_record(records, r):
                return
        elif kind == 1:
            for _ in range(records[r + {TIMES}]):
                call_record(records, r)
                for j in range(r + {OPERANDS}, r + {STEPS}):
                    records[j] += records[j + {MOVES - OPERANDS}]
            for j in range(r + {OPERANDS}, r + {STEPS}):
                records[j] -= records[r + {TIMES}] * records[j + {MOVES - OPERANDS}]
        elif kind == 2:
            source, places, result = floats(records[r + 2]), integers(records[r + 3]), floats(records[r + 4])
            for j in range(records[r + 5]):
                place = places[j] if places[j] >= 0 else 0
                result[j] = source[place if place < records[r + 6] else records[r + 6] - 1]
        elif kind == 3 or kind == 4:
            table, numbers, width = floats(records[r + 2]), floats(records[r + 5]), records[r + 8]
            rows, columns = integers(records[r + 3]), integers(records[r + 4])
            for j in range(records[r + 6]):
                if rows[j] < 0 or rows[j] >= records[r + 7] or columns[j] < 0 or columns[j] >= width:
                    return
                place = rows[j] * records[r + 9] + columns[j] * records[r + 10]
                if kind == 3:
                    table[place] = numbers[j]
                else:
                    numbers[j] = table[place]
        elif kind == 5:
            table, result, width = floats(records[r + 2]), integers(records[r + 3]), records[r + 5]
            if width < 1:  # else LLVM calls memset for it, and code that calls others is not kept
                return
            for j in range(records[r + 4]):
                best = 0
                for i in range(width):
                    largest, number = table[j * width + best], table[j * width + i]
                    if largest == largest and not number <= largest:
                        best = i
                result[j] = best
        elif kind == 6:
            narrow, wide = floats(records[r + 2]), doubles(records[r + 3])
            for j in range(records[r + 4]):
                wide[j] = narrow[j]
        elif kind == 7:
            flags, wide = bytes_at(records[r + 2]), integers(records[r + 3])
            for j in range(records[r + 4]):
                wide[j] = flags[j]
        else:
            numbers, lost = floats(records[r + 2]), 0
            for j in range(records[r + 3]):
                lost += numbers[j] - numbers[j] != 0.0
            if lost > 0:
                return
        done[0] = k + 1
"""


@cache
def _loop() -> Callable[..., None] | None:
    return load_loop(_LOOP, "qnq", keeps_lock=True)


class JoinedCalls:
    """Calls recorded functions in order, by one call of a compiled loop."""

    def __init__(self, loop: Any, calls: Sequence[tuple[Call, list[CallRecord]]]):
        self._calls = [call for call, _ in calls]
        self._callers = [k for k, (_, records) in enumerate(calls) for _ in records]
        self._memory = [record for _, records in calls for record in records]
        self._done = ctypes.c_ssize_t()
        words = np.zeros((len(self._memory), WORDS), np.int64)
        for row, record in zip(words, self._memory, strict=True):
            row[0] = record.kind
            for place, word in record.words.items():
                row[place] = word
            if OPERANDS in record.words:
                row[2:5] = [row[place:].ctypes.data for place in (OPERANDS, LENGTH, STEPS)]
        self._words = words
        arguments = words.ctypes.data, len(words), ctypes.addressof(self._done)
        self._run = partial(loop, *map(ctypes.c_ssize_t, arguments))  # converted once

    def __call__(self) -> None:
        """Call all functions; from one that fails on in Python, which raises its error."""
        self._done.value = 0
        self._run()
        if (done := self._done.value) < len(self._callers):
            for call in self._calls[self._callers[done] :]:
                call()


class RepeatedCalls:
    """Calls functions in order; if that is repeated often, those in a row that need no Python are joined."""

    def __init__(self, calls: Iterable[Call]):
        self._calls, self._left = list(calls), JOINED_AFTER

    def __call__(self) -> None:
        """Call all functions."""
        if self._left >= 0:
            self._left -= 1
            if self._left < 0:
                self._calls = join_calls(self._calls)
        for call in self._calls:
            call()


def join_calls(calls: list[Call]) -> list[Call]:
    """Return calls with the same effects, some of them joined; without numba or the interpreter's lock the same."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()  # which joined calls keep
    if not (has_lock and is_available() and runs_code()) or (loop := _loop()) is None:
        return calls
    described = [(call, records_of(call)) for call in calls]
    joined: list[Call] = []
    for is_native, group in groupby(described, lambda each: each[1] is not None):
        run: Any = list(group)
        is_long = is_native and sum(len(records) for _, records in run) > 1
        joined += [JoinedCalls(loop, run)] if is_long else [call for call, _ in run]
    return joined
