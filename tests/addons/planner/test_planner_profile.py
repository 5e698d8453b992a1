"""Measuring an iteration and its parts on synthetic records."""

import io
import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
import rich.console
from distributed import Client

from dsinga.addons.planner import profile as profiling
from dsinga.addons.planner.benchmark import measure
from dsinga.addons.planner.profile import print_precisions, print_profile
from dsinga.base.registry import register
from dsinga.job import AlgConf, Job, loads
from dsinga.models import char_rnn, rbm
from dsinga.training import bp, forward

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
    names = [
        {layer for layer, _ in rows_of(profile_of(variant, threads, steps=1))} - {""} for variant in (job, unfused)
    ]
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
