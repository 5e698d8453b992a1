"""Measuring an iteration and its parts on synthetic records."""

import io
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rich.console
from dask.utils import parse_bytes, parse_timedelta
from distributed import Client

from dsinga.addons.planner import profile as profiling
from dsinga.addons.planner.benchmark import measure
from dsinga.addons.planner.link import (
    BARRIERS,
    BLOCKS,
    FREE_BARRIER,
    GIGABIT,
    BarrierCost,
    Link,
    Links,
    barrier_cost,
    parse_bandwidth,
    parse_latency,
    parse_network,
    time_barriers,
)
from dsinga.addons.planner.profile import print_precisions, print_profile
from dsinga.addons.planner.program import AllToAll, Compute, GroupProgram, Receive, Send, WorkerProgram
from dsinga.addons.planner.simulate import simulate
from dsinga.base.registry import register
from dsinga.job import AlgConf, Job, loads
from dsinga.models import char_rnn, rbm
from dsinga.training import bp, forward
from tests.support.refusals import refused

JOB = """
name: "small"
train_steps: 1
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "nowhere.zarr" batchsize: 32 shape: [3, 16, 16] } }
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 8 kernel: 3 pad: 1 } }
  layer { name: "relu" type: kReLU srclayers: "conv" }
  layer { name: "ip" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 5 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def profile_of(job: Job, client: Client, steps: int) -> dict[str, Any]:
    return json.loads(json.dumps(measure(job, client, steps=steps, synthetic=True, profiled=True)["profile"]))


def rows_of(figures: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    rows = {(row["layer"], row["pass"]): row for row in figures["rows"]}
    assert len(rows) == len(figures["rows"])
    return rows


def test_a_profile_has_each_pass_of_each_layer(threads: Client, monkeypatch: pytest.MonkeyPatch):
    """With a clock that advances by a second at each look, each pass takes a second in every iteration."""
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=itertools.count(0.0).__next__))
    figures = profile_of(loads(JOB, "job.conf"), threads, steps=5)
    rows = rows_of(figures)
    forward = ["data", "conv", "relu", "ip", "loss"]
    passes = [(name, "forward") for name in forward] + [(name, "backward") for name in forward[:0:-1]]
    assert list(rows) == [*passes, ("", "update"), ("", "rest")]
    assert figures["batch"] == 32
    assert {name: rows[name, "forward"]["type"] for name in forward[1:]} == {
        "conv": "kConvolution", "relu": "kReLU", "ip": "kInnerProduct", "loss": "kSoftmaxLoss",
    }  # fmt: skip
    assert all(rows[pass_]["ms"] == 1e3 for pass_ in passes)
    assert rows["", "update"]["ms"] == 4e3  # of two weights and two biases
    assert sum(row["ms"] for row in rows.values()) == figures["ms_per_iteration"]
    for row in rows.values():
        assert row["ms"] > 0
        assert row["share"] == pytest.approx(row["ms"] / figures["ms_per_iteration"])


def test_a_profile_counts_operations_and_bytes(threads: Client):
    rows = rows_of(profile_of(loads(JOB, "job.conf"), threads, steps=1))

    def per_iteration(layer: str, name: str) -> tuple[float, float]:
        row = rows[layer, name]
        rates = (row["gflop_per_second"] or 0, row["gbyte_per_second"])
        return tuple(round(1e6 * rate * row["ms"]) for rate in rates)

    pixels, weights = 32 * 16 * 16, 8 * 3 * 3 * 3
    conv = 2 * pixels * weights
    arrays = 4 * (3 * pixels + weights + 8 + 8 * pixels)
    assert per_iteration("conv", "forward") == (conv, arrays)
    # The records need no gradient; weight and bias are read, and their gradients written.
    assert per_iteration("conv", "backward") == (conv, arrays + 4 * (weights + 8))
    ip = 2 * 32 * 5 * 8 * 256
    assert per_iteration("ip", "forward")[0] == ip
    assert per_iteration("ip", "backward")[0] == 2 * ip
    numbers = weights + 8 + 5 * 8 * 256 + 5
    assert per_iteration("", "update") == (
        0,
        5 * 4 * numbers,
    )  # reads the gradient, reads and writes value and momentum


def test_a_profile_has_a_row_for_computing_outside_of_layers(threads: Client):
    rows = rows_of(profile_of(rbm(1, (20, 10)), threads, steps=1))
    assert rows["", "rest"]["ms"] > 0
    assert {row["gflop_per_second"] for row in rows.values()} == {None}  # the work of kCD is not counted


def test_a_recurrent_net_is_profiled_in_successive_states(threads: Client):
    rows = rows_of(profile_of(char_rnn(7, hidden=8, steps=5, batchsize=4), threads, steps=2))
    assert rows["gru1", "backward"]["gflop_per_second"] > 0


def test_fused_layers_have_one_row_unless_an_algorithm_needs_each(threads: Client):
    @register("algorithm", "NeedsALayer")
    def needs_relu(net, values, records, ctx, push):
        outputs, _ = forward(net, values, records, ctx, keep=["relu"])
        assert (outputs["relu"].feature >= 0).all()
        return bp(net, values, records, ctx, push)

    norm = 'layer { name: "norm" type: kBM srclayers: "conv" } layer { name: "relu" type: kReLU srclayers: "norm" }'
    job = loads(JOB.replace('layer { name: "relu" type: kReLU srclayers: "conv" }', norm), "job.conf")
    unfused = job.replace(train_one_batch=AlgConf(user_alg="NeedsALayer"))
    names = [{layer for layer, _ in rows_of(profile_of(v, threads, steps=1))} - {""} for v in (job, unfused)]
    assert names == [{"data", "conv", "norm", "ip", "loss"}, {"data", "conv", "norm", "relu", "ip", "loss"}]


def test_long_names_of_layers_are_printed_in_full():
    text = io.StringIO()
    name = "a_layer_with_a_name_that_is_longer_than_its_column_of_the_table_could_ever_be"
    row = {"layer": name, "type": "kReLU", "pass": "forward", "ms": 1234.5, "share": 0.5}
    rest = {"layer": "", "type": "", "pass": "rest", "ms": 0.25, "share": 0.5}
    rates = {"gflop_per_second": 12.345, "gbyte_per_second": None}
    figures = {"batch": 32, "ms_per_iteration": 2469.0, "rows": [row | rates, rest | dict.fromkeys(rates)]}
    print_profile(figures, rich.console.Console(file=text, width=80, soft_wrap=True))
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert "".join(line[0] for line in lines[4:] if line and line[0] in name) == name
    assert ["rest", "0.250", "50.0%"] in lines
    assert any(line[1:] == ["kReLU", "forward", "1,234.500", "12.3", "50.0%"] for line in lines)


def test_two_precisions_are_printed_side_by_side():
    row = {"layer": "ip", "type": "kInnerProduct", "pass": "forward"}
    single, half = ({"batch": 32, "ms_per_iteration": 2 * ms, "rows": [{**row, "ms": ms}]} for ms in (4.0, 1.0))
    text = io.StringIO()
    print_precisions(single, half, rich.console.Console(file=text, width=80))
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert ["ip", "kInnerProduct", "forward", "4.000", "1.000", "0.25"] in lines
    assert ["iteration", "8.000", "2.000", "0.25"] in lines


# Bandwidths and latencies as users write them.
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


# The cost of a barrier.
COST = BarrierCost(short=1.0, long=16.0, after_short=0.5, after_long=3.5)


@pytest.mark.parametrize(("computed", "seconds"), [(1.0, 0.5), (4.0, 1.5), (16.0, 3.5), (1000.0, 3.5), (0.25, 0.0)])
def test_cost_grows_with_the_square_root_of_the_computing_time(computed: float, seconds: float) -> None:
    assert COST.seconds(computed) == pytest.approx(seconds)


def test_cost_never_falls_and_is_never_negative() -> None:
    falling = BarrierCost(1.0, 16.0, 2.0, 1.0)
    assert falling.seconds(16.0) == 2.0
    assert FREE_BARRIER.seconds(5.0) == 0.0


def test_the_time_of_messages_is_subtracted() -> None:
    """Two workers, a short and a long interval, 0.1 s for the messages."""
    cost = barrier_cost([[(1.0, 0.3), (4.0, 0.7)], [(3.0, 0.5), (6.0, 0.9)]], message_seconds=0.1)
    assert cost == pytest.approx((2.0, 5.0, 0.3, 0.7))


def test_computing_and_barriers_are_timed_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that a pass of computing advances by 1 s, and a barrier by 0.25 s."""
    seconds = [0.0]

    def advance(by: float) -> None:
        seconds[0] += by

    monkeypatch.setattr("dsinga.addons.planner.link.time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(np, "tanh", lambda numbers, out: advance(1.0))
    assert time_barriers(lambda: advance(0.25)) == [(passes, 0.25) for passes in BARRIERS]


def test_two_threads_wait_at_as_many_barriers() -> None:
    barrier = threading.Barrier(2, timeout=60)
    waits: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(time_barriers, lambda: waits.append(barrier.wait())) for _ in range(2)]
        timings = [future.result() for future in futures]
    assert [len(timing) for timing in timings] == [len(BARRIERS)] * 2
    assert waits.count(0) == waits.count(1) == BLOCKS * sum(barriers + 1 for barriers in BARRIERS.values())


FREE = Link(0.0)


def pair(first: float, all_to_all: bool = False) -> list[WorkerProgram]:
    """Return two workers that wait for each other once an iteration, one after ``first`` seconds, the other after 4."""
    if all_to_all:
        return [WorkerProgram([Compute(seconds), AllToAll("x", 0), Receive("x")]) for seconds in (first, 4.0)]
    return [
        WorkerProgram([Compute(seconds), Send(1 - worker, "x", 0), Receive("x")])
        for worker, seconds in enumerate((first, 4.0))
    ]


@pytest.mark.parametrize("all_to_all", [False, True])
@pytest.mark.parametrize(
    ("first", "processes", "seconds"),
    [
        (4.0, (0, 1), 5.5),  # each worker's message is 1.5 s late
        (4.0, (0, 0), 4.0),  # no cost is given for workers of one process
        (1.0, (0, 1), 4.0),  # the slower worker does not wait, and the faster one waits for it anyway
    ],
)
def test_a_barrier_costs_workers_that_are_equally_fast(
    first: float, processes: tuple[int, int], seconds: float, all_to_all: bool
) -> None:
    links = Links(FREE, FREE, FREE, barrier_between=COST)
    group = GroupProgram(pair(first, all_to_all), processes, (), {})
    assert simulate(group, links).seconds == pytest.approx(seconds)


def test_a_message_that_is_needed_later_costs_nothing() -> None:
    """A message sent after 4 s is 1.5 s late but needed 2 s later only, like a gradient in the backward pass."""
    programs = [WorkerProgram([Compute(4.0), Send(1 - w, "x", 0), Compute(2.0), Receive("x")]) for w in range(2)]
    assert simulate(
        GroupProgram(programs, (0, 1), (), {}), Links(FREE, FREE, FREE, barrier_between=COST)
    ).seconds == pytest.approx(6.0)
