"""``dsinga plan``: its table, its JSON, its picture, and its errors. Rates are fixed but for one test."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import dsinga
from dsinga import models
from dsinga.addons.planner import cost_model, pricing
from dsinga.addons.planner.commands import format_bytes
from dsinga.addons.planner.link import FREE_BARRIER, Link
from dsinga.addons.planner.plan import price_sites
from dsinga.addons.planner.plan_picture import draw_plan
from dsinga.cluster.server import Slice, SliceSpec
from dsinga.commands.cli import main
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.cutting.worker_memory import FIXED
from dsinga.data import write_store
from dsinga.net import NeuralNet
from dsinga.ops import get_ops
from tests.support.executed_pages import ROOT, blocks
from tests.support.mean_groups import MeanGroups, rate
from tests.support.planner_nets import MACHINE
from tests.support.refusals import refused

JOB = """name: "planned"
train_steps: 10
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 4 SHAPE } }
  layer { name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 32 } }
  layer { name: "tanh" type: kSTanh srclayers: "ip1" }
  layer { name: "ip2" type: kInnerProduct srclayers: "tanh" innerproduct_conf { num_output: 10 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip2" srclayers: "data" }
}
"""

Plan = Callable[..., tuple[int, str, str]]


@pytest.fixture
def measured_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Run ``dsinga plan`` in a folder with job.conf and no store, with measured rates and a cache in that folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("job.conf").write_text(JOB.replace("SHAPE", "shape: 16"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dsinga", "plan", "job.conf", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def plan(measured_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run ``dsinga plan`` in a folder with job.conf and no store, with fixed rates."""
    monkeypatch.setattr(pricing, "measure_machine", lambda *_: MACHINE)
    monkeypatch.setattr(pricing, "measure_barrier", lambda: FREE_BARRIER)
    return measured_plan


def test_prints_the_alternatives_and_how_they_scale(plan: Plan) -> None:
    status, out, err = plan("--workers", "2")
    assert status == 0, err
    for name in ("data", "feature", "hybrid", "auto", "layers", "one worker"):
        assert f"\n  {name}: " in out
    assert "batch 4, 2 workers" in out
    assert "machines of" in out


def test_prices_both_precisions_where_the_processor_has_them(plan: Plan) -> None:
    out = plan("--workers", "2")[1]
    times = json.loads(plan("--workers", "2", "--json")[1])["precisions"]
    if get_ops().lacks_bf16():
        assert not times
        assert "precision:" not in out
    else:
        assert times.keys() == {"kFloat32", "kBF16"}
        assert f"precision: kFloat32 {times['kFloat32']:,.2f} ms, kBF16 {times['kBF16']:,.2f} ms for auto" in out


def test_marks_strategies_that_need_more_memory_than_there_is(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "(!)" not in plan("--workers", "2")[1]
    rows = json.loads(plan("--workers", "2", "--json")[1])["alternatives"]
    most = max(row["memory_bytes"] for row in rows if row["workers"] == 2)
    both = 2 * most - FIXED  # two threads of a process share its libraries
    monkeypatch.setattr("dsinga.addons.planner.planning.MEMORY_LIMIT", both)
    assert "(!)" not in plan("--workers", "2")[1]
    monkeypatch.setattr("dsinga.addons.planner.planning.MEMORY_LIMIT", both - 1000)
    limit = format_bytes(both - 1000)
    assert f"(!) needs more memory than a machine like this has, {limit}: use a smaller" in plan("--workers", "2")[1]
    least = 2 * min(row["memory_bytes"] for row in rows) - FIXED
    monkeypatch.setattr("dsinga.addons.planner.planning.MEMORY_LIMIT", least - 1000)
    rows = {row["name"]: row["fits"] for row in json.loads(plan("--workers", "2", "--json")[1])["alternatives"]}
    assert rows["one worker"]
    assert not rows["data"]
    monkeypatch.setattr("dsinga.addons.planner.planning.MEMORY_LIMIT", 1000)
    status, _, err = plan()
    assert status == 2
    assert "the net of phase kTrain needs at least 0.0 GiB of memory, but there are 0.0 GiB; most is for the" in err


def test_compares_a_run_with_its_prediction(plan: Plan, tmp_path: Path) -> None:
    write_store(tmp_path / "train.zarr", [(np.zeros((64, 16), np.uint8), np.arange(64) % 10)])
    dsinga.train("job.conf", workspace="run", progress=False)
    status, out, err = plan("--measured", "run")
    assert status == 0, err
    for part in ("computing layers", "updating params", "exchange and waiting", "reading records", "iteration"):
        assert f"\n  {part} " in out
    assert "the largest miss is " in out
    figures = json.loads(plan("--measured", "run", "--json")[1])
    assert figures["verdict"] in out
    status, _, err = plan("--measured", "run", "--workers", "2")
    assert status == 2
    assert "leave --workers, --memory, --sites and --picture out" in err


def test_prints_json(plan: Plan) -> None:
    status, out, err = plan("--workers", "4", "--bandwidth", "1Gbit", "--latency", "0.1ms", "--json")
    assert status == 0, err
    figures = json.loads(out)
    assert figures["batch"] == 4
    assert "1 Gbit/s, 0.1 ms" in figures["where"]
    times = [row["ms_per_iteration"] for row in figures["alternatives"]]
    assert times == sorted(times)
    by_name = {row["name"]: row for row in figures["alternatives"]}
    assert {"data", "hybrid", "feature", "layers", "auto", "one worker"} <= by_name.keys()
    for row in by_name.values():
        assert 0 < row["compute_ms"] <= 1.001 * row["ms_per_iteration"]
        assert row["speedup"] == pytest.approx(row["workers"] * row["efficiency"])
    assert by_name["one worker"]["sent_bytes"] == 0
    assert by_name["one worker"]["efficiency"] == 1
    assert by_name["feature"]["partitioning"] == "rows: data, features: ip1 to ip2, rows: loss"
    distributed = [row["ms_per_iteration"] for name, row in by_name.items() if name != "one worker"]
    assert by_name["auto"]["ms_per_iteration"] == min(distributed)


def test_the_curve_ends_at_the_rows_of_the_batch(plan: Plan) -> None:
    figures = json.loads(plan("--json")[1])
    assert sorted({row["workers"] for row in figures["curve"]}) == [1, 2, 4]
    assert {row["name"] for row in figures["curve"]} == {"data", "hybrid", "auto"}


def test_bars_of_the_picture_are_as_long_as_their_times(plan: Plan, tmp_path: Path) -> None:
    rows = json.loads(plan("--workers", "4", "--json", "--picture", "plan.svg")[1])["alternatives"]
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    bars = [element for element in root.iter() if len(element) and element[0].tag.endswith("title")]
    lengths: dict[str, list[float]] = {}
    for title, bar in bars:
        edges = [float(number) for number in re.findall(r"[ML] ([-.\d]+) ", bar.get("d", ""))]
        lengths.setdefault(str(title.text), []).append(max(edges) - min(edges))
    totals = [sum(parts) for parts in zip(lengths["computing"], lengths["exchange and waiting"], strict=True)]
    unit = max(totals) / max(row["ms_per_iteration"] for row in rows)
    for row, computing, total in zip(rows, lengths["computing"], totals, strict=True):
        assert computing == pytest.approx(unit * row["compute_ms"], abs=0.2)
        assert total == pytest.approx(unit * row["ms_per_iteration"], abs=0.2)
    largest = max(row["memory_bytes"] for row in rows)
    for row, length in zip(rows, lengths["memory"], strict=True):
        assert length == pytest.approx(max(lengths["memory"]) * row["memory_bytes"] / largest, abs=0.2)


def test_a_picture_of_one_worker_has_no_scaling_to_show(plan: Plan, tmp_path: Path) -> None:
    """A batch of one record can be computed by one worker only."""
    Path("job.conf").write_text(JOB.replace("SHAPE", "shape: 16").replace("batchsize: 4", "batchsize: 1"))
    status, _, err = plan("--workers", "1", "--picture", "plan.svg")
    assert status == 0, err
    words = " ".join(ElementTree.parse(tmp_path / "plan.svg").getroot().itertext())
    assert "batch 1, 1 worker:" in words
    assert "ideal" not in words


def test_the_picture_of_the_documentation_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # what was measured on this machine must not count
    monkeypatch.setattr(pricing, "measure_machine", lambda *_: MACHINE)
    monkeypatch.setattr(pricing, "measure_barrier", lambda: FREE_BARRIER)
    monkeypatch.setattr("dsinga.addons.planner.planning.CPU_COUNT", 2)
    page = (ROOT / "docs" / "design" / "planner.md").read_text(encoding="utf-8")
    path = tmp_path / "job.conf"
    path.write_text(next(block.text for block in blocks(page) if block.file == "job.conf"))
    plan = dsinga.plan(dsinga.load(path), workers=4, bandwidth="1Gbit", latency="0.1ms")
    drawn, kept = tmp_path / "plan.svg", ROOT / "docs" / "images" / "plan-fully-connected.svg"
    drawn.write_text(draw_plan(plan))
    assert texts(kept) == texts(drawn), f"out of date: cp {drawn} {kept}"  # lines depend on Matplotlib's version


def texts(picture: Path) -> list[str]:
    return [text for text in map(str.strip, ElementTree.parse(picture).getroot().itertext()) if text]


def test_layers_are_measured_once(measured_plan: Plan, tmp_path: Path) -> None:
    status, first, err = measured_plan("--workers", "2")
    assert status == 0, err
    assert err.startswith("step 1 of 4, 2 workers, all strategies: measuring ")
    (rates,) = (tmp_path / "cache" / "dsinga").iterdir()
    before = rates.stat().st_mtime_ns
    assert measured_plan("--workers", "2")[1] == first
    assert rates.stat().st_mtime_ns == before


def test_a_net_for_many_workers_is_not_partitioned(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partitioned net grows with the square of the number of workers."""
    counts = []

    def counting(net: NeuralNet, workers: int, **options: Any) -> PartitionedNet:
        counts.append(workers)
        return partition(net, workers, **options)

    monkeypatch.setattr(pricing, "partition", counting)
    monkeypatch.setattr(cost_model, "partition", counting)
    Path("job.conf").write_text(JOB.replace("SHAPE", "shape: 16").replace("batchsize: 4", "batchsize: 16"))
    assert plan("--workers", "16")[0] == 0
    assert set(counts) == {1, 2, 4, 8}


def test_a_store_gives_the_shape_of_its_records(plan: Plan, tmp_path: Path) -> None:
    Path("job.conf").write_text(JOB.replace("SHAPE", ""))
    status, _, err = plan()
    assert status == 2
    assert "train.zarr" in err
    write_store(tmp_path / "train.zarr", [(np.zeros((64, 16), np.uint8), np.arange(64) % 10)])
    assert plan()[0] == 0


def test_auto_keeps_the_partition_dim_of_a_layer(plan: Plan) -> None:
    text = JOB.replace("SHAPE", "shape: 16").replace('name: "ip1"', 'name: "ip1" partition_dim: 1')
    Path("job.conf").write_text(text.replace("neuralnet {", "neuralnet { partition: auto"))
    rows = json.loads(plan("--workers", "2", "--json")[1])["alternatives"]
    cuts = {row["name"]: row["partitioning"] for row in rows}
    assert "features: ip1" in cuts["data"]
    assert "features: ip1" in cuts["auto"] or cuts["auto"] == "one worker computes all layers"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "5"], "a batch of 4 can be cut over 1 to 4 workers, not 5"),
        (["--bandwidth", "fast"], "'fast' is no bandwidth; write one such as 1Gbit"),
        (["--latency", "1 parsec"], "'1 parsec' is no latency; write one such as 0.1ms"),
        (["--set", "updater.type=kNone"], "kNone"),
    ],
)
def test_refuses_bad_input(plan: Plan, arguments: list[str], message: str) -> None:
    status, _, err = plan(*arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


def test_a_job_of_contrastive_divergence_is_refused():
    refused(lambda: dsinga.plan(models.rbm(1), workers=2), "a plan needs a job", "trained by back-propagation")


# What sites that average their params send, by arithmetic, and the bytes that their servers send indeed.
def test_an_outer_step_of_four_sites_at_50_mbit():
    """Llama's 150 million weights, as in DiLoCo: 600 MB to each of the others."""
    plan = price_sites(4, 150_000_000, 1.5, Link(0.04, 50e6 / 8))
    full, rounded, _, small = plan.outer
    assert full.size == 3 * 4 * 150_000_000
    assert full.seconds == pytest.approx(0.04 + full.size / 6.25e6)
    assert (full.sync_freq - 1) * 1.5 < 19 * full.seconds <= full.sync_freq * 1.5
    assert (full.delay - 1) * 1.5 < full.seconds <= full.delay * 1.5
    assert (rounded.size, small.size) == (full.size / 2, full.size / 32 * 4.25)
    assert plan.synchronous_size == 2 * 3 / 4 * 600e6
    # 500 steps between two outer steps in 4 bits send less than a hundredth of synchronous training.
    assert small.size / 500 < plan.synchronous_size / 100
    refused(lambda: price_sites(1, 10, 1.0, Link(0.0)), "sites must be at least 2", "not 1")


@pytest.mark.parametrize("number", range(4))
def test_servers_send_as_many_bytes_as_are_priced(number):
    spec = SliceSpec(Slice(0, "w", 0, 1280, 0))
    priced = price_sites(3, 1280, 1.0, Link(0.0)).outer[number]
    start = [({0: np.ones(1280, np.float32)}, None) for _ in range(3)]
    groups = MeanGroups(3, 2, rate("kSGD", 0.1), specs=[spec], states=start, compression=priced.compression)
    for _ in range(2):
        for group in range(3):
            groups.train(group, compute=lambda group, step, value: value)
    assert groups.sent_bytes == 3 * priced.size
