"""Cutting rows into parts, uneven ones included."""

from __future__ import annotations

from dsinga.layers.context import Rows


def cut_rows(total: int, parts: int) -> list[Rows]:
    """Cut ``total`` rows into ``parts`` neighbouring ranges: the first ``total % parts`` are one row longer.

    The rule of ``numpy.array_split``: sizes differ by one at most, and parts beyond the rows are empty.
    """
    assert total >= 0, total
    assert parts >= 1, parts
    short, longer = divmod(total, parts)
    bounds = [part * short + min(part, longer) for part in range(parts + 1)]
    return [Rows(start, stop, total) for start, stop in zip(bounds, bounds[1:], strict=False)]
