"""The benchmarks for GPUs, on an emulated device: every table is printed, and a failure stops no other table.

The figures mean nothing; the nets are small, and the batches have few records.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dsinga.ops
from dsinga.cluster import connect
from tests.benchmarks import gpu, gpu_copies, gpu_limits, gpu_loop, gpu_precision, gpu_workers
from tests.benchmarks.cases import Case
from tests.benchmarks.ours import job
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn

CASES = {"cifar10": Case("cifar10", 2, 0.7)}


def call_turn(module: str, *arguments: str) -> dict[str, Any]:
    """Run a turn in this process."""
    try:
        return importlib.import_module(f"tests.benchmarks.{module}").turn(*arguments)
    except (RuntimeError, AssertionError) as error:
        return {"failed": str(error).splitlines()[-1]}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulated GPU in this process, and nets that it can train."""
    monkeypatch.delenv("DSINGA_OPS", raising=False)
    monkeypatch.setitem(dsinga.ops._loaded, "cupy", emulated_cupy.load(FakeCudnn()))
    monkeypatch.setattr(gpu, "turn", call_turn)
    for module in (gpu, gpu_limits, gpu_loop, gpu_copies, gpu_workers):
        if hasattr(module, "GPU_CASES"):
            monkeypatch.setattr(module, "GPU_CASES", CASES)
        if hasattr(module, "WARM_UP"):
            monkeypatch.setattr(module, "WARM_UP", 1)
    monkeypatch.setattr(gpu_limits, "SIDE", 64)
    monkeypatch.setattr(gpu_limits, "BYTES", 2**12)
    monkeypatch.setattr(gpu_precision, "SHRINK", 16)
    monkeypatch.setattr(gpu_workers, "BATCH", 4)
    monkeypatch.setattr(gpu_workers, "STEPS", 2)
    monkeypatch.setattr(gpu, "COPIED", ("cifar10",))
    monkeypatch.setattr(gpu_workers, "connect", lambda workers, separate_processes: connect(workers=workers))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(gpu.main, ["--no-install", *arguments])


@pytest.mark.slow
def test_launches_of_an_iteration():
    """The convnet of CIFAR-10 is bound by what launches take on the host: docs/dev/gpu.md says how many there are."""
    ops = emulated_cupy.load(FakeCudnn()).for_worker(0)
    loop = gpu_loop.Loop(job("cifar10", 2), ops)
    loop.iterate()
    emulated_cupy.log.clear()
    loop.iterate()
    kinds = [what for _, what, _ in emulated_cupy.log]
    assert (kinds.count("kernel"), kinds.count("copy")) == (57, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_table_is_printed(device: None, tmp_path: Path):
    file = tmp_path / "gpu.json"
    printed = run("limits", "nets", "copies", "precision", "workers", "--steps", "1", "--json", str(file))
    figures = r"\| \d+\.\d\d \| \d+\.\d\d \| \d+\.\d\d \|"
    assert re.search(r'rates: \{"matrix": \{"float32": .*"copy": \{"device": ', printed.output), printed.output
    for precision in gpu.PRECISIONS:  # only PyTorch needs a real GPU
        assert re.search(rf"\| cifar10, 2 \| {precision} \| \d+\.\d\d \| failed: .* \| - \|", printed.output)
    assert re.search(rf"\| cifar10 {figures}", printed.output), printed.output
    assert re.search(r"\| GRU of \d+, \d+ steps (\| \d\.\de[+-]\d\d \(.*\) ){3}\|", printed.output), printed.output
    assert re.search(r'"two workers on the GPU": [\d.e-]+, "one worker on CPU cores": [\d.e-]+\}', printed.output)
    figures = json.loads(file.read_text())
    assert list(figures) == ["limits", "nets", "copies", "precision", "workers"]
    assert max(figures["workers"].values()) < 1e-4
    assert printed.exit_code == 1  # because PyTorch fails


def test_a_failing_table_stops_no_other_and_others_stay_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def broken(*_: Any) -> Any:
        raise KeyError("rows")

    monkeypatch.setattr(gpu, "turn", lambda *_: {"two workers on the GPU": 0.0})
    monkeypatch.setitem(gpu.TABLES, "precision", broken)
    file = tmp_path / "gpu.json"
    file.write_text('{"limits": {"matrix": {}}}')
    printed = run("precision", "workers", "--json", str(file))
    assert "the table 'precision' failed: KeyError: 'rows'" in printed.output
    assert '(at most 1e-4): {"two workers on the GPU": 0.0}' in printed.output
    assert printed.exit_code == 1
    assert "1 of the figures could not be measured" in printed.output
    assert list(json.loads(file.read_text())) == ["limits", "precision", "workers"]


def test_a_failing_turn_returns_its_error():
    assert "No module named" in gpu.turn("no_such_turn")["failed"]


def test_a_turn_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "TIMEOUT_SECONDS", 0.01)
    assert gpu.turn("gpu_limits") == {"failed": "took more than 0.01 s"}
