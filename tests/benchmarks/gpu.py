"""Run all checks and benchmarks that need a GPU: ``python -m tests.benchmarks.gpu [TABLE ...]``.

Installs missing packages (unless ``--no-install``) and prints these tables, or those that are named:

- ``tests``: the contracts of kernels and of layers;
- ``limits``: the rates of products and copies on the card;
- ``nets``: the time of an iteration, that of PyTorch in eager mode on the same card, and the limit by those rates;
- ``copies``: iterations with no copies, synchronous and overlapped ones (figure 20a of the paper);
- ``precision``: errors of each precision against float64;
- ``workers``: two workers that share the card against one.

Each turn is a process of its own. A failure is printed in place of its figures, and the rest goes on. ``--json`` names
a file for the figures: it is written after each table and keeps those of other tables, so that several calls may make
the tables.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tests.benchmarks.cases import GPU_CASES

PRECISIONS = ("float32", "tf32", "bf16")
COPIED = ("cifar10", "alexnet")
TIMEOUT_SECONDS = 240  # for a turn
Figures = dict[str, Any]


def install() -> None:
    """Install the packages that cannot be imported, one by one, and print which ones could not be installed."""
    release = cuda_release()
    needed = {
        "cupy": f"cupy-cuda{release}x[ctk]>=14",
        "cudnn": "nvidia-cudnn-frontend>=1.10",
        "nvidia.cudnn": f"nvidia-cudnn-cu{release}>=9",
        "pytest": "pytest>=9",
        "pytest_timeout": "pytest-timeout>=2.3",
        "hypothesis": "hypothesis>=6.120",
        "torch": "torch",
    }
    for module, package in needed.items():
        if not is_installed(module):
            ended = subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=False)
            click.echo(f"{package}: {'installed' if not ended.returncode else 'MISSING, and pip could not install it'}")


def is_installed(module: str) -> bool:
    """Whether a module can be found; its parent packages are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def cuda_release() -> int:
    """Return 12 or 13: the newest release of CUDA that both this driver and CuPy support."""
    try:
        output = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 12
    version = re.search(r"CUDA Version: (\d+)", output)
    return min(13, int(version[1])) if version else 12


def turn(module: str, *arguments: str) -> Figures:
    """Run a module in a process of its own; return the figures that it prints, or the error as ``failed``."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {TIMEOUT_SECONDS} s"}
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["ended without a message"]
        return {"failed": lines[-1], "errors": ended.stderr}
    return json.loads(ended.stdout.splitlines()[-1])


def cell(figures: Figures, key: str = "ms") -> str:
    """Return a figure for a table, or the reason why it is missing."""
    return f"{figures[key]:.2f}" if key in figures else f"failed: {figures.get('failed', 'not measured')}"


def head(*columns: str) -> None:
    """Print the first two lines of a table."""
    click.echo("\n| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")


def row(*cells: str) -> None:
    """Print a line of a table."""
    click.echo("| " + " | ".join(cells) + " |")


def tests(previous: Figures, steps: int) -> Figures:
    """Run the contracts of kernels and of layers over the device; print pytest's last lines."""
    results = {}
    for arguments in (["-m", "gpu", "tests/ops"], ["tests/layers/test_layers_contract.py", "-k", "CuPy"]):
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_SECONDS, check=False)
        last = "\n".join((ended.stdout + ended.stderr).strip().splitlines()[-40:])
        click.echo(last)
        results[" ".join(arguments)] = {"ms": 0.0, "last": last} if not ended.returncode else {"failed": last}
    return results


def limits(previous: Figures, steps: int) -> Figures:
    """Print rates of products, in operations a second, and of copies, in bytes a second."""
    rates = turn("gpu_limits")
    click.echo(f"\nrates: {json.dumps({key: rates[key] for key in ('matrix', 'copy', 'failed') if key in rates})}")
    return rates


def nets(previous: Figures, steps: int) -> Figures:
    """Print the iteration times of the nets, those of PyTorch, and the limits."""
    head("net, batch", "precision", "dsinga ms", "PyTorch ms", "ratio", "goal", "limit ms")
    rows = {}
    for name, case in GPU_CASES.items():
        for precision in PRECISIONS:
            ours, theirs = (turn(module, name, precision, str(steps)) for module in ("gpu_loop", "gpu_torch"))
            ratio = ours["ms"] / theirs["ms"] if "ms" in ours and "ms" in theirs else None
            goal = f"{case.goal:.2f}" if precision == "float32" else ""
            bound = previous.get("limits", {}).get("limits", {}).get(name, {}).get(precision)
            figures = cell(ours), cell(theirs), f"{ratio:.2f}" if ratio else "-", goal, f"{bound:.2f}" if bound else "-"
            row(f"{name}, {case.batch}", precision, *figures)
            rows[f"{name} {precision}"] = {"dsinga": ours, "pytorch": theirs, "ratio": ratio}
    runs = [
        figures["runs"] for pair in rows.values() for figures in (pair["dsinga"], pair["pytorch"]) if "runs" in figures
    ]
    click.echo("\n" + ("; ".join(dict.fromkeys(runs)) or "nothing ran"))
    return rows


def copies(previous: Figures, steps: int) -> Figures:
    """Print the cost of copies to and from servers in host memory."""
    ways = "no copy", "synchronous", "overlapped"
    head("net", *(f"{way} ms" for way in ways))
    rows = {}
    for name in COPIED:
        rows[name] = figures = turn("gpu_copies", name, str(steps))
        row(name, *(cell(figures, way) for way in ways))
    return rows


def precision(previous: Figures, steps: int) -> Figures:
    """Print the errors of each precision against float64."""
    figures = turn("gpu_precision")
    click.echo("\nerrors against float64, relative to the result's root mean square: root mean square (largest)")
    if "failed" in figures:
        click.echo(f"failed: {figures['failed']}")
        return figures
    head("kernel", *PRECISIONS)
    for kernel in figures[PRECISIONS[0]]:
        errors = [figures[precision][kernel] for precision in PRECISIONS]
        row(kernel, *(f"{error['rms']:.1e} ({error['max']:.1e})" for error in errors))
    return figures


def workers(previous: Figures, steps: int) -> Figures:
    """Print the difference of the params of two workers on the card from those of one worker."""
    figures = turn("gpu_workers", "cifar10")
    text = json.dumps({key: value for key, value in figures.items() if key != "errors"})
    click.echo(f"\nlargest difference of a param to one worker on the GPU (at most 1e-4): {text}")
    return figures


TABLES: dict[str, Callable[[Figures, int], Figures]] = {
    table.__name__: table for table in (tests, limits, nets, copies, precision, workers)
}


def failures(figures: Any) -> int:
    """Count the failures."""
    if not isinstance(figures, dict):
        return 0
    return int("failed" in figures) + sum(map(failures, figures.values()))


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)))
@click.option("--install/--no-install", "wants_install", default=True, help="Install missing packages.")
@click.option("--steps", default=50, show_default=True, help="Iterations of a measurement, of which there are three.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path), help="File for the figures, which keeps those of other tables."
)
def main(tables: tuple[str, ...], wants_install: bool, steps: int, file: Path | None) -> None:
    """Print the tables, all of them by default."""
    if wants_install:
        install()
    figures: Figures = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    for name in tables or TABLES:
        started = time.perf_counter()
        try:
            figures[name] = TABLES[name](figures, steps)
        except Exception as error:  # an error in one table must not stop the others
            figures[name] = {"failed": f"{type(error).__name__}: {error}"}
            click.echo(f"the table {name!r} failed: {figures[name]['failed']}")
        click.echo(f"({name}: {time.perf_counter() - started:.0f} s)")
        if file:
            file.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    failed = sum(failures(figures[name]) for name in tables or TABLES)
    if failed:
        raise click.ClickException(f"{failed} of the figures could not be measured")


if __name__ == "__main__":
    main()
