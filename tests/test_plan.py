"""``dsinga plan``: its table, its JSON, its picture, and how it refuses."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from dsinga import models
from dsinga.cli import main
from dsinga.data import write_store
from dsinga.errors import UserError
from dsinga.plan import predict

JOB = """name: "planned"
train_steps: 10
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 64 SHAPE } }
  layer { name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 32 } }
  layer { name: "tanh" type: kSTanh srclayers: "ip1" }
  layer { name: "ip2" type: kInnerProduct srclayers: "tanh" innerproduct_conf { num_output: 10 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip2" srclayers: "data" }
}
"""

Plan = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for what is measured: once for all tests, whose nets have the same layers."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def plan(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Run ``dsinga plan`` in a folder with job.conf and no store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    Path("job.conf").write_text(JOB.replace("SHAPE", "shape: 16"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dsinga", "plan", "job.conf", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_prints_the_alternatives_and_how_they_scale(plan: Plan) -> None:
    status, out, err = plan("--workers", "2")
    assert status == 0, err
    for name in ("data", "feature", "hybrid", "auto", "layers", "one worker"):
        assert f"\n  {name}: " in out
    assert "batch 64, 2 workers" in out
    assert "machines of" in out


def test_prints_json(plan: Plan) -> None:
    status, out, err = plan("--workers", "4", "--bandwidth", "1Gbit", "--latency", "0.1ms", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["batch"] == 64
    assert "1 Gbit/s, 0.1 ms" in found["where"]
    times = [row["ms_per_iteration"] for row in found["alternatives"]]
    assert times == sorted(times)
    by_name = {row["name"]: row for row in found["alternatives"]}
    assert {"data", "hybrid", "feature", "layers", "auto", "one worker"} <= by_name.keys()
    for row in by_name.values():
        assert 0 < row["compute_ms"] <= 1.001 * row["ms_per_iteration"]
        assert row["speedup"] == pytest.approx(row["workers"] * row["efficiency"])
    assert by_name["one worker"]["sent_bytes"] == 0
    assert by_name["one worker"]["efficiency"] == 1
    assert by_name["feature"]["partitioning"] == "rows: data, features: ip1 to ip2, rows: loss"
    together = [row["ms_per_iteration"] for name, row in by_name.items() if name != "one worker"]
    assert by_name["auto"]["ms_per_iteration"] <= 1.1 * min(together)


def test_the_curve_ends_where_the_batch_does(plan: Plan) -> None:
    found = json.loads(plan("--json")[1])
    assert sorted({row["workers"] for row in found["curve"]}) == [1, 2, 4, 8, 16, 32, 64]
    assert {row["name"] for row in found["curve"]} == {"data", "hybrid", "auto"}


def test_draws_a_picture(plan: Plan, tmp_path: Path) -> None:
    status, out, err = plan("--picture", "scaling.svg")
    assert status == 0, err
    assert "drawn to scaling.svg" in out
    root = ElementTree.parse(tmp_path / "scaling.svg").getroot()
    assert root.tag.endswith("svg")
    words = " ".join(root.itertext())
    assert "speedup" in words
    assert "efficiency" in words


def test_a_slow_network_costs_time(plan: Plan) -> None:
    def data_ms(bandwidth: str) -> float:
        rows = json.loads(plan("--workers", "8", "--bandwidth", bandwidth, "--json")[1])["alternatives"]
        return next(row["ms_per_iteration"] for row in rows if row["name"] == "data")

    assert data_ms("1Mbit") > max(data_ms("100Mbit"), data_ms("10Gbit"))


def test_layers_are_measured_once(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = plan("--workers", "2")[1]
    (kept,) = (tmp_path / "cache" / "dsinga").iterdir()
    before = kept.stat().st_mtime_ns
    second = plan("--workers", "2")[1]
    assert first == second
    assert kept.stat().st_mtime_ns == before


def test_many_workers_take_seconds(plan: Plan) -> None:
    plan("--workers", "64")
    started = time.perf_counter()
    assert plan("--workers", "64")[0] == 0
    assert time.perf_counter() - started < 30


def test_the_store_says_the_shape_where_it_is_there(plan: Plan, tmp_path: Path) -> None:
    Path("job.conf").write_text(JOB.replace("SHAPE", ""))
    status, _, err = plan()
    assert status == 2
    assert "train.zarr" in err
    write_store(tmp_path / "train.zarr", [(np.zeros((64, 16), np.uint8), np.arange(64) % 10)])
    assert plan()[0] == 0


def test_auto_leaves_layers_alone_that_say_their_own(plan: Plan) -> None:
    text = JOB.replace("SHAPE", "shape: 16").replace('name: "ip1"', 'name: "ip1" partition_dim: 1')
    Path("job.conf").write_text(text.replace("neuralnet {", "neuralnet { partition: auto"))
    rows = json.loads(plan("--workers", "2", "--json")[1])["alternatives"]
    auto = next(row for row in rows if row["name"] == "auto")
    assert "features: ip1" in auto["partitioning"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "a batch of 64 can be cut over 1 to 64 workers, not 0"),
        (["--workers", "65"], "a batch of 64 can be cut over 1 to 64 workers, not 65"),
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


def test_a_job_of_contrastive_divergence_has_no_plan():
    with pytest.raises(UserError, match="a plan needs a job trained by back-propagation"):
        predict(models.rbm(1), workers=2)
