"""Bandwidths and latencies as people write them."""

from __future__ import annotations

import pytest

from dsinga.cluster.units import parse_bandwidth, parse_latency
from dsinga.errors import UserError


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1Gbit", 125e6),
        ("1 Gbit/s", 125e6),
        ("100Mbps", 12.5e6),
        ("2.5 Gb/s", 312.5e6),
        ("800kbit", 1e5),
        ("8bit", 1),
        ("100MB", 100e6),
        ("100 MB/s", 100e6),
        ("1GiB/s", 2**30),
    ],
)
def test_bandwidths(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "7", "0Gbit", "-1Gbit", "1Gfoo", "1..2Gbit", "nan", "1 Gbit/h"])
def test_no_bandwidths(text: str) -> None:
    with pytest.raises(UserError, match="is no bandwidth; write one such as 1Gbit"):
        parse_bandwidth(text)


@pytest.mark.parametrize(("text", "seconds"), [("0.1ms", 1e-4), ("50us", 5e-5), ("1 s", 1.0), ("0ms", 0.0)])
def test_latencies(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "7", "-1ms", "1 parsec"])
def test_no_latencies(text: str) -> None:
    with pytest.raises(UserError, match="is no latency; write one such as 0.1ms"):
        parse_latency(text)
