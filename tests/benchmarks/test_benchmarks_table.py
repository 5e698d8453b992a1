"""The tables of the benchmarks name the winner in each precision, and the ratios to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.benchmarks import __main__ as benchmarks
from tools.benchmarks import bench_small_net, table
from tools.benchmarks.cases import CASES
from tools.benchmarks.form_process import FormProcess, reason
from tools.benchmarks.peers import PEERS

MLP = {
    "dsinga": {"ms": 50.0, "mb": 300.0},
    "dsinga bf16": {"ms": 30.0, "mb": 310.0},
    "PyTorch": {"ms": 45.0, "mb": 400.0, "first_s": 0.2},
    "PyTorch bf16": {"ms": 36.0, "mb": 460.0, "first_s": 0.2},
    "TensorFlow XLA": {"ms": 40.0, "mb": 770.0, "first_s": 3.0},
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
        "| mnist-mlp | 50.0 | 40.0 TensorFlow XLA | 1.25 | 0.65 | 30.0 | 36.0 PyTorch bf16 | 0.83 "
        "| 300, 310 | 400 PyTorch | 0.75, 0.78 |",
        "| resnet | 80.0 | 100.0 PyTorch | 0.80 | 0.90 | - | 100.0 PyTorch | - | 200 | 400 PyTorch | 0.50 |",
        "| mnist-mlp-two | 80.0 | 100.0 PyTorch | 0.80 | 0.70 | - | 100.0 PyTorch | - | 200 | 400 PyTorch | 0.50 |",
        "",
        "Geometric mean of 2 ratios of a process to the best peer in float32: 1.00",
        "",
        "Geometric mean of 1 ratios of a process to the best peer in any precision: 0.83",
        "",
        "| ms, MB | dsinga | dsinga bf16 | PyTorch | PyTorch bf16 | TensorFlow XLA |",
        "| --- | --- | --- | --- | --- | --- |",
        "| mnist-mlp | 50.0, 300 | 30.0, 310 | 45.0, 400 | 36.0, 460 | 40.0, 770 |",
        "| resnet | 80.0, 200 | - | 100.0, 400 | - | - |",
        "| mnist-mlp-two | 80.0, 200 | - | 100.0, 400 | - | - |",
        "",
        "First iteration of mnist-mlp, which compiles: TensorFlow XLA 3 s.",
    ]  # fmt: skip


def test_a_case_without_peers_has_no_ratio() -> None:
    assert list(table.summary({"rbm": {"dsinga": {"ms": 2.0, "mb": 150.0}}}))[2:] == [
        "| rbm | 2.0 | - | - | 1.00 | - | - | - | 150 | - | - |"
    ]


def test_forms_that_fail_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second turn of a form that failed in the first is not tried; an allocator is preloaded for peers alone."""
    preloaded = []

    class Process:
        def __init__(self, form: str, python: str, *_: object, preload: str):
            preloaded.append((form, python, preload))
            self.form, self.turns = form, 0

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *_: object) -> None:
            closed.append(self.form)

        def turn(self) -> dict[str, float]:
            self.turns += 1
            if self.form == "JAX":
                raise RuntimeError("No module named 'jax'")
            return {"ms": float(self.turns), "mb": 1.0, "first_s": float(self.turns)}

    closed: list[str] = []
    monkeypatch.setattr(benchmarks, "FormProcess", Process)
    pythons = dict.fromkeys(("dsinga", "pytorch", "tensorflow", "jax"), "python") | {"pytorch": "other"}
    row = benchmarks.compare("mnist-mlp", ["dsinga", "PyTorch", "JAX"], pythons, 2, 5, 1, "alloc.so")
    assert row["left out"] == {"JAX": "No module named 'jax'"}
    assert preloaded == [("dsinga", "python", ""), ("PyTorch", "other", "alloc.so"), ("JAX", "python", "alloc.so")]
    assert sorted(closed) == ["JAX", "PyTorch", "dsinga"]
    assert row["figures"]["PyTorch"] == {"ms": 1.5, "mb": 1.0, "first_s": 2.0}
    assert (row["state"]["turns"], row["state"]["spread"]) == (2, 0.0)
    assert next(table.states([row])).startswith("mnist-mlp: 2 turns, interquartile range of the ratio 0%; load ")


def test_the_table_of_small_nets_has_medians_by_turn_and_calls() -> None:
    """In one of three turns the machine is slow; a whole run is in milliseconds, beside scikit-learn alone."""
    ours = [{"us": us, "calls": 41.6, "own_calls": 30.0} for us in (100.0, 400.0, 110.0)]
    theirs = [{"us": us} for us in (200.0, 800.0, 200.0)]
    cases = {
        "gru": {"dsinga": ours, "PyTorch": theirs},
        "classifier-fit": {"dsinga": [{"us": 3e6}], "scikit-learn": [{"us": 4e6}]},
    }
    assert [line for line in bench_small_net.tables(cases, ["dsinga", *bench_small_net.OTHERS]) if "0" in line] == [
        "| gru | 110 | 200 | - | - | 0.50 | - | - | 42, 30 |",
        "\nGeometric mean of 1 ratios to PyTorch: 0.50",
        "| classifier-fit | 3000 | 4000 | 0.75 | - |",
        "\nGeometric mean of 1 ratios to scikit-learn: 0.75",
    ]


def test_a_ratio_that_is_not_steady_is_said() -> None:
    turns = {"dsinga": [{"ms": 1.0}, {"ms": 2.0}, {"ms": 3.0}], "PyTorch": [{"ms": 2.0}] * 3}
    assert benchmarks.spread_of(turns) == pytest.approx(1.0)
    state = {"turns": 3, "spread": 1.0, "load": 9.0, "mhz": 2000.0, "steal": 0.1}
    line = "mnist-mlp: 3 turns, interquartile range of the ratio 100% (not below 5%); load 9.0, 2000 MHz, 10.0% stolen"
    assert list(table.states([{"case": "mnist-mlp", "state": state}])) == [line]


@pytest.mark.ci
def test_a_process_that_fails_gives_the_reason() -> None:
    with FormProcess("JAX", sys.executable, "nothing", CASES["mnist-mlp"], 1) as process:
        with pytest.raises(RuntimeError, match="No module named 'jax'|nothing"):
            process.turn()


def test_the_reason_is_the_message_of_the_exception() -> None:
    compiler = "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found"
    assert reason(f"Traceback\n  raise\n{compiler}\n\nSet TORCHDYNAMO_VERBOSE=1 for the stack\n") == compiler
    assert reason("Killed\n") == "Killed"
    assert reason("") == "ended without a message"


def test_every_library_of_a_case_has_forms() -> None:
    libraries = {peer.library for peer in PEERS.values()}
    assert all(set(case.peers) <= libraries for case in CASES.values())
