"""Bandwidths and latencies as people write them: 1Gbit, 10 GB/s, 0.1ms."""

from __future__ import annotations

import math
import re

from dask.utils import parse_bytes, parse_timedelta

from dsinga.errors import UserError

BITS = re.compile(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*([kKMGT]?)(?:bits?(?:/s)?|bps|b/s)\s*")
UNIT = re.compile(r"\d.*[A-Za-z]")  # Dask takes bare numbers, and no number for 1
POWERS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parse_bandwidth(text: str) -> float:
    """Return bytes a second.

    Bits are counted as networks do (``1Gbit`` is 125,000,000 bytes a second; ``/s`` may follow), bytes as Dask does
    (``100MB``, ``1GiB/s``). Raises UserError for what is neither, or not above 0.
    """
    bits = BITS.fullmatch(text)
    try:
        rate = float(bits[1]) * POWERS[bits[2]] / 8 if bits else float(parse_bytes(text.strip().removesuffix("/s")))
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf or not UNIT.search(text):
        raise UserError(f"{text!r} is no bandwidth; write one such as 1Gbit, 200Mbit or 100MB/s")
    return rate


def parse_latency(text: str) -> float:
    """Return seconds. Raises UserError for what is no time span with a unit, such as 0.1ms."""
    try:
        seconds = parse_timedelta(text) if UNIT.search(text) else None
    except (ValueError, KeyError):
        seconds = None
    if seconds is None or not 0 <= seconds < math.inf:
        raise UserError(f"{text!r} is no latency; write one such as 0.1ms or 50us")
    return float(seconds)
