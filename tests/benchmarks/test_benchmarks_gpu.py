"""The benchmarks for GPUs, on an emulated device: every table is printed, and a failure stops no other table.

The figures mean nothing; the nets are small, and the batches have few records.
"""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dsinga.ops
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn
from tools.benchmarks import gpu, gpu_capture, gpu_loop, gpu_smoke, gpu_tables, gpu_turns
from tools.benchmarks.cases import Case
from tools.benchmarks.ours import job

CASES = {"cifar10": Case("cifar10", 2, 0.7)}


def call_turn(module: str, *arguments: str) -> dict[str, Any]:
    """Run a turn in this process."""
    try:
        return importlib.import_module(f"tools.benchmarks.{module}").turn(*arguments)
    except (RuntimeError, AssertionError) as error:
        return {"failed": str(error).splitlines()[-1]}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulated GPU in this process, and nets that it can train."""
    monkeypatch.delenv("DSINGA_OPS", raising=False)
    ops = emulated_cupy.load(FakeCudnn())
    monkeypatch.setitem(dsinga.ops._loaded, "cupy", ops)
    for name, module in ops.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(gpu_turns, "turn", call_turn)
    for module in (gpu_tables, gpu_loop, gpu_capture):
        if hasattr(module, "GPU_CASES"):
            monkeypatch.setattr(module, "GPU_CASES", CASES)
        if hasattr(module, "WARM_UP"):
            monkeypatch.setattr(module, "WARM_UP", 1)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(gpu.main, ["--no-install", *arguments])


@pytest.mark.slow
def test_launches_of_an_iteration():
    """The convnet of CIFAR-10 is bound by the launches of the host."""
    ops = emulated_cupy.load(FakeCudnn()).for_worker(0)
    loop = gpu_loop.Loop(job("cifar10", 2), ops)
    loop.iterate()
    emulated_cupy.log.clear()
    loop.iterate()
    kinds = [what for _, what, _ in emulated_cupy.log]
    assert (kinds.count("kernel"), kinds.count("copy")) == (58, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_table_is_printed(device: None, tmp_path: Path):
    file = tmp_path / "gpu.json"
    printed = run(*("smoke", "nets", "nets_bf16", "--steps", "1", "--json", str(file)))
    number = r"\d+\.\d\d"
    for piece in gpu_smoke.PIECES:
        assert re.search(rf'{piece}: \{{"equal": true, ', printed.output), printed.output
    for precision in ("float32", "bf16"):  # only PyTorch needs a real GPU
        ours = rf"({number} \| ){{4}}T T T"
        assert re.search(rf"\| cifar10, 2 \| {precision} \| {ours} \| failed: .* \| - \|", printed.output), (
            printed.output
        )
    figures = json.loads(file.read_text())
    assert list(figures) == ["smoke", "nets", "nets_bf16"]
    assert printed.exit_code == 1  # because PyTorch fails


def test_a_failing_table_stops_no_other_and_others_stay_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def broken(*_: Any) -> Any:
        yield {"rows": 1}
        raise KeyError("rows")

    monkeypatch.setattr(gpu_turns, "turn", lambda *_: {"gemm": 1})
    monkeypatch.setitem(gpu.TABLES, "nets", broken)
    file = tmp_path / "gpu.json"
    file.write_text('{"contracts": {"runs": {}}}')
    printed = run("nets", "smoke", "--json", str(file))
    assert "the table 'nets' failed: KeyError: 'rows'" in printed.output
    assert "gemm: 1" in printed.output
    assert printed.exit_code == 1
    assert "1 of the figures could not be measured" in printed.output
    assert list(json.loads(file.read_text())) == ["contracts", "nets", "smoke"]


def test_a_turn_ends_with_the_time_of_its_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_turns.Deadline, "left", lambda: 1.01)
    assert gpu_turns.json_of("sleep", "60") == {"failed": "took more than 1 s"}
    monkeypatch.setattr(gpu_turns.Deadline, "left", lambda: 0.5)
    assert gpu_turns.turn("gpu_smoke") == {"failed": "no time was left for it"}


def test_a_call_goes_on_with_what_the_file_lacks_while_there_is_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Tables that failed are made again; those for which there is no time are left to the next call."""
    made: list[str] = []

    def table(name: str) -> Any:
        def figures(*_: Any) -> Any:
            made.append(name)
            yield {"rows": 1}

        return figures

    monkeypatch.setattr(gpu, "TABLES", {name: table(name) for name in gpu.TABLES})
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({"smoke": {"gemm": 1}, "nets": {"failed": "took more than 1 s"}}))
    assert "no time is left for the table 'nets_bf16'" in run("--seconds", "0", "--json", str(file)).output
    assert made == []
    assert run("--json", str(file)).exit_code == 0
    assert made == [name for name in gpu.TABLES if name != "smoke"]
    assert set(json.loads(file.read_text())) == set(gpu.TABLES)


def test_the_first_tables_fit_into_ten_minutes():
    names = list(gpu.TABLES)
    assert list(gpu.SECONDS) == names
    assert sum(gpu.SECONDS[name] for name in names[: names.index("nets") + 1]) <= 590
