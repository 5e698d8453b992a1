"""Bandwidths and latencies as users write them."""

import pytest
from dask.utils import parse_bytes, parse_timedelta

from dsinga.addons.planner.link import GIGABIT, parse_bandwidth, parse_latency, parse_network
from tests.support.refusals import refused


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


@pytest.mark.parametrize("text", ["5B", "1e6 kB", "5.4 kB", "100M", "2gi", "3 TiB", "1pb"])
def test_bytes_are_read_as_dask_reads_them(text: str) -> None:
    assert parse_bandwidth(text) == parse_bytes(text)


@pytest.mark.parametrize("text", ["", "fast", "7", "0Gbit", "-1Gbit", "1Gfoo", "1..2Gbit", "nan", "1 Gbit/h", "1e6"])
def test_a_text_that_is_no_bandwidth_is_refused(text: str) -> None:
    refused(lambda: parse_bandwidth(text), "is no bandwidth", "write one such")


@pytest.mark.parametrize(("text", "seconds"), [("0.1ms", 1e-4), ("50us", 5e-5), ("1 s", 1.0), ("0ms", 0.0)])
def test_latencies(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0.1ms", "7 us", "20ns", "2 seconds", "1e-3 MS", "3 milliseconds", "1m", "2 hours"])
def test_times_are_read_as_dask_reads_them(text: str) -> None:
    assert parse_latency(text) == parse_timedelta(text)


@pytest.mark.parametrize("text", ["", "soon", "7", "-1ms", "1 parsec", "1..2ms"])
def test_a_text_that_is_no_latency_is_refused(text: str) -> None:
    refused(lambda: parse_latency(text), "is no latency", "write one such")


def test_a_missing_figure_is_that_of_a_gigabit_network() -> None:
    assert parse_network(None, None) is None
    assert parse_network("10Gbit", None) == (GIGABIT.latency, 1.25e9)
    assert parse_network(None, "1ms") == (1e-3, GIGABIT.bandwidth)
