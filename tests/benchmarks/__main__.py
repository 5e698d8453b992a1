"""dsinga compared with its peers: ``python -m tests.benchmarks [CASE ...]``, in the root of the checkout.

They run in turn, each turn in a process of its own with a thread a worker, on as many cores as there are workers.
Figures are medians of iterations, then of turns; the ratio is to the fastest peer. A peer that is not installed is left
out, with the reason; ``--python tensorflow=/path/to/python`` runs one that lives in another environment. With
``--bf16`` dsinga in kBF16 and PyTorch under autocast take part, too.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from tests.benchmarks.cases import CASES, Case

MODULES = {"dsinga": "ours", "pytorch": "torch_peer", "tensorflow": "tensorflow_peer"}
BF16 = {"dsinga in bf16": "ours", "pytorch in bf16": "torch_peer"}
PACKAGES = {"dsinga": "numpy", "pytorch": "torch", "tensorflow": "tensorflow"}
TURN_SECONDS = 600  # at most, for a turn


def take_turn(
    framework: str, python: str, name: str, case: Case, steps: int, root: Path | None = None
) -> dict[str, float]:
    """Run one turn in a process of its own, of the checkout ``root`` (by default of the working directory).

    Raises RuntimeError with the last line that the process has printed, where it fails.
    """
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: case.workers]))
    command = ["taskset", "-c", cores, python, "-m", f"tests.benchmarks.{(MODULES | BF16)[framework]}"]
    command += [name, str(steps)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env |= {"BENCHMARK_BF16": "1"} if framework in BF16 else {}
    if root:
        env["PYTHONPATH"] = str(root)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TURN_SECONDS, env=env, cwd=root, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "ended without a message")
    return json.loads(done.stdout.splitlines()[-1])


def compare(name: str, pythons: dict[str, str], turns: int, steps: int, bf16: bool = False) -> dict[str, Any]:
    """Return the figures of a case: medians by framework, the ratios to the best peer, and the peers left out."""
    case = CASES[name]
    figures: dict[str, list[dict[str, float]]] = {}
    left_out: dict[str, str] = {}
    for _ in range(turns):
        for framework in ("dsinga", *case.peers, *(BF16 if bf16 else ())):
            if framework in left_out:
                continue
            try:
                figures.setdefault(framework, []).append(take_turn(framework, pythons[framework], name, case, steps))
            except RuntimeError as error:
                left_out[framework] = str(error)
                figures.pop(framework, None)
    medians = {
        framework: {key: statistics.median(turn[key] for turn in turns_of) for key in turns_of[0]}
        for framework, turns_of in figures.items()
    }
    best = {
        key: min((medians[framework][key] for framework in medians if "dsinga" not in framework), default=None)
        for key in ("ms", "mb")
    }
    ours = medians.get("dsinga")
    ratios = {key: ours[key] / best[key] if ours and best[key] else None for key in ("ms", "mb")}
    row = {"case": name, "goal": case.goal, "figures": medians, "ratio": ratios, "left out": left_out}
    if ours and "dsinga in bf16" in medians:
        milliseconds = medians["dsinga in bf16"]["ms"]
        row["bf16"] = {"own float32": milliseconds / ours["ms"], "best peer": best["ms"] and milliseconds / best["ms"]}
    return row


def line(row: dict[str, Any]) -> str:
    """Return a case as a row of the table."""
    cells = [
        f"{row['figures'][framework]['ms']:.1f} ({row['figures'][framework]['mb']:.0f} MB)"
        if framework in row["figures"]
        else "-"
        for framework in MODULES
    ]
    time, memory = (f"{row['ratio'][key]:.2f}" if row["ratio"][key] else "-" for key in ("ms", "mb"))
    return "| " + " | ".join([row["case"], *cells, time, f"{row['goal']:.2f}", memory]) + " |"


def bf16_line(row: dict[str, Any]) -> str:
    """Return what a case takes in bf16, and the ratios to dsinga in float32 and to the best peer in any precision."""
    times = [f"{name} {row['figures'][name]['ms']:.1f} ms" for name in BF16 if name in row["figures"]]
    ratios = [f"{ratio:.2f} of {what}" for what, ratio in row.get("bf16", {}).items() if ratio]
    return f"{row['case']}: {', '.join(times + ratios)}"


def versions(pythons: dict[str, str]) -> dict[str, str]:
    """Return the versions of Python and, where it is installed here, of the package that a framework computes with."""
    installed = {"python": platform.python_version()}
    for framework, package in PACKAGES.items():
        if pythons[framework] == sys.executable:
            try:
                installed[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
    return installed


def processor() -> str:
    """Return the name of the processor, and how many cores of it there are."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    flags = next((text for text in lines if text.startswith("flags")), "")
    width = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, {width}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--turns", default=3, show_default=True)
@click.option("--steps", default=40, show_default=True, help="Measured iterations of a turn.")
@click.option("--python", "interpreters", multiple=True, metavar="PEER=PATH", help="The interpreter for a peer.")
@click.option("--bf16", is_flag=True, help="Also dsinga in kBF16 and PyTorch under autocast.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(
    names: Sequence[str], turns: int, steps: int, interpreters: tuple[str, ...], bf16: bool, file: Path | None
) -> None:
    """Print milliseconds of an iteration and peak memory of a worker, and the ratios to the best peer."""
    pythons = dict.fromkeys(MODULES | BF16, sys.executable) | dict(option.split("=", 1) for option in interpreters)
    about = {"date": f"{datetime.date.today()}", "machine": processor(), "versions": versions(pythons)}
    click.echo(f"{about['date']}, {about['machine']}, {about['versions']}, load {os.getloadavg()[0]:.1f}\n")
    click.echo("| case | dsinga ms | PyTorch ms | TensorFlow ms | ratio | goal | memory |\n| " + "--- | " * 7)
    rows = []
    for name in names or CASES:
        rows.append(compare(name, pythons, turns, steps, bf16))
        click.echo(line(rows[-1]))
        if bf16:
            click.echo(bf16_line(rows[-1]))
        for framework, reason in rows[-1]["left out"].items():
            click.echo(f"{framework} left out of {name}: {reason}", err=True)
    if file:
        file.write_text(json.dumps({**about, "cases": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
