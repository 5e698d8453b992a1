"""The tables of the benchmarks name the winner in each precision, and the ratios to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.refusals import refused
from tools.benchmarks import table
from tools.benchmarks.cases import CASES
from tools.benchmarks.form_process import FormProcess

MLP = {
    "dsinga": {"ms": 50.0, "mb": 300.0},
    "dsinga bf16": {"ms": 30.0, "mb": 310.0},
    "PyTorch": {"ms": 45.0, "mb": 400.0, "first_s": 0.2},
    "PyTorch bf16": {"ms": 36.0, "mb": 460.0, "first_s": 0.2},
    "JAX": {"ms": 40.0, "mb": 770.0, "first_s": 3.0},
}
RESNET = {"dsinga": {"ms": 80.0, "mb": 200.0}, "PyTorch": {"ms": 100.0, "mb": 400.0, "first_s": 0.2}}


def test_tables_of_files(tmp_path: Path) -> None:
    """The geometric mean of 50/40 and 80/100 is 1; the case of two processes is not part of it."""
    cases = {"mnist-mlp-two": RESNET, "resnet": RESNET, "mnist-mlp": MLP}
    files = [tmp_path / f"{name}.json" for name in cases]
    for file, (name, figures) in zip(files, cases.items(), strict=True):
        file.write_text(json.dumps({"cases": [{"case": name, "figures": figures}]}))
    printed = CliRunner().invoke(table.main, list(map(str, files))).output.splitlines()
    assert printed[2:] == [
        "| mnist-mlp | 50.0 | 40.0 JAX | 1.25 | 0.65 | 30.0 | 36.0 PyTorch bf16 | 0.83 "
        "| 300, 310 | 400 PyTorch | 0.75, 0.78 |",
        "| resnet | 80.0 | 100.0 PyTorch | 0.80 | 0.90 | - | 100.0 PyTorch | - | 200 | 400 PyTorch | 0.50 |",
        "| mnist-mlp-two | 80.0 | 100.0 PyTorch | 0.80 | 0.70 | - | 100.0 PyTorch | - | 200 | 400 PyTorch | 0.50 |",
        "",
        "Geometric mean of 2 ratios of a process to the best peer in float32: 1.00",
        "",
        "Geometric mean of 1 ratios of a process to the best peer in any precision: 0.83",
        "",
        "| ms, MB | dsinga | dsinga bf16 | PyTorch | PyTorch bf16 | JAX |",
        "| --- | --- | --- | --- | --- | --- |",
        "| mnist-mlp | 50.0, 300 | 30.0, 310 | 45.0, 400 | 36.0, 460 | 40.0, 770 |",
        "| resnet | 80.0, 200 | - | 100.0, 400 | - | - |",
        "| mnist-mlp-two | 80.0, 200 | - | 100.0, 400 | - | - |",
        "",
        "First iteration of mnist-mlp, which compiles: JAX 3 s.",
    ]  # fmt: skip


@pytest.mark.ci
def test_a_process_that_fails_gives_the_reason() -> None:
    with FormProcess("JAX", sys.executable, "nothing", CASES["mnist-mlp"], 1) as process:
        refused(lambda: process.turn(), "No module named 'jax'|nothing", error=RuntimeError)
