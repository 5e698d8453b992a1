"""All that is to be run on a GPU: ``python -m tests.benchmarks.gpu [TABLE ...]``, in the root of the checkout.

Installs what is missing (unless ``--no-install``) and prints one table after the other, or those that are named:

- ``tests``: the contracts of kernels and of layers;
- ``limits``: what the card can do: products, copies;
- ``nets``: an iteration beside PyTorch in eager mode on the same card, and beside those limits;
- ``copies``: none, synchronous and overlapped (figure 20a of the paper);
- ``precision``: errors of each precision against float64;
- ``workers``: two workers that share the card against one.

Each turn is a process of its own. What fails is said where its figures would stand, and the rest goes on. ``--json``
keeps the figures: the file is written after each table, and those of other tables stay in it, so that the tables may be
made by several calls.
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
PATIENCE = 240  # seconds for a turn
Figures = dict[str, Any]


def install() -> None:
    """Install the packages that cannot be imported, each by itself, and say what could not be installed."""
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
        if not there(module):
            done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=False)
            click.echo(f"{package}: {'installed' if not done.returncode else 'MISSING, and pip could not install it'}")


def there(module: str) -> bool:
    """Whether a module can be found; the rooms above it are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def cuda_release() -> int:
    """Return 12 or 13: the newest release of CUDA that the driver here and CuPy know."""
    try:
        told = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 12
    found = re.search(r"CUDA Version: (\d+)", told)
    return min(13, int(found[1])) if found else 12


def turn(module: str, *arguments: str) -> Figures:
    """Run one module in a process of its own; return what it prints, or why it prints nothing as ``failed``."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {PATIENCE} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["ended without a word"])[-1], "errors": done.stderr}
    return json.loads(done.stdout.splitlines()[-1])


def cell(found: Figures, key: str = "ms") -> str:
    """Return a figure for a table, or why there is none."""
    return f"{found[key]:.2f}" if key in found else f"failed: {found.get('failed', 'not measured')}"


def head(*columns: str) -> None:
    """Print the first two lines of a table."""
    click.echo("\n| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")


def row(*cells: str) -> None:
    """Print a line of a table."""
    click.echo("| " + " | ".join(cells) + " |")


def tests(found: Figures, steps: int) -> Figures:
    """Run the contracts of kernels and of layers over the device; print pytest's last lines."""
    results = {}
    for wanted in (["-m", "gpu", "tests/ops"], ["tests/layers/test_layers_contract.py", "-k", "CuPy"]):
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *wanted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-40:])
        click.echo(last)
        results[" ".join(wanted)] = {"ms": 0.0, "last": last} if not done.returncode else {"failed": last}
    return results


def limits(found: Figures, steps: int) -> Figures:
    """Print rates of products, in operations, and of copies, in bytes a second."""
    own = turn("gpu_limits")
    click.echo(f"\nrates: {json.dumps({key: own[key] for key in ('matrix', 'copy', 'failed') if key in own})}")
    return own


def nets(found: Figures, steps: int) -> Figures:
    """Print the nets beside PyTorch and their limits."""
    head("net, batch", "precision", "dsinga ms", "PyTorch ms", "ratio", "goal", "limit ms")
    rows = {}
    for name, case in GPU_CASES.items():
        for precision in PRECISIONS:
            ours, theirs = (turn(module, name, precision, str(steps)) for module in ("gpu_loop", "gpu_torch"))
            ratio = ours["ms"] / theirs["ms"] if "ms" in ours and "ms" in theirs else None
            goal = f"{case.goal:.2f}" if precision == "float32" else ""
            bound = found.get("limits", {}).get("limits", {}).get(name, {}).get(precision)
            figures = cell(ours), cell(theirs), f"{ratio:.2f}" if ratio else "-", goal, f"{bound:.2f}" if bound else "-"
            row(f"{name}, {case.batch}", precision, *figures)
            rows[f"{name} {precision}"] = {"dsinga": ours, "pytorch": theirs, "ratio": ratio}
    runs = [own["runs"] for one in rows.values() for own in (one["dsinga"], one["pytorch"]) if "runs" in own]
    click.echo("\n" + ("; ".join(dict.fromkeys(runs)) or "nothing ran"))
    return rows


def copies(found: Figures, steps: int) -> Figures:
    """Print what copies to and from servers in host memory cost."""
    ways = "no copy", "synchronous", "overlapped"
    head("net", *(f"{way} ms" for way in ways))
    rows = {}
    for name in COPIED:
        rows[name] = own = turn("gpu_copies", name, str(steps))
        row(name, *(cell(own, way) for way in ways))
    return rows


def precision(found: Figures, steps: int) -> Figures:
    """Print the errors of each precision against float64."""
    own = turn("gpu_precision")
    click.echo("\nerrors against float64, relative to the result's root mean square: root mean square (largest)")
    if "failed" in own:
        click.echo(f"failed: {own['failed']}")
        return own
    head("kernel", *PRECISIONS)
    for kernel in own[PRECISIONS[0]]:
        errors = [own[precision][kernel] for precision in PRECISIONS]
        row(kernel, *(f"{one['rms']:.1e} ({one['max']:.1e})" for one in errors))
    return own


def workers(found: Figures, steps: int) -> Figures:
    """Print how far the params of two workers on the card are from those of one."""
    own = turn("gpu_workers", "cifar10")
    told = json.dumps({key: value for key, value in own.items() if key != "errors"})
    click.echo(f"\nlargest difference of a param to one worker on the GPU (at most 1e-4): {told}")
    return own


TABLES: dict[str, Callable[[Figures, int], Figures]] = {
    table.__name__: table for table in (tests, limits, nets, copies, precision, workers)
}


def failures(figures: Any) -> int:
    """Count what failed."""
    if not isinstance(figures, dict):
        return 0
    return int("failed" in figures) + sum(map(failures, figures.values()))


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)))
@click.option("--install/--no-install", "wants_install", default=True, help="Install what is missing.")
@click.option("--steps", default=50, show_default=True, help="Measured iterations of a stretch; three are measured.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Keep the figures there, beside those it has.")
def main(tables: tuple[str, ...], wants_install: bool, steps: int, file: Path | None) -> None:
    """Print the tables, all of them by default."""
    if wants_install:
        install()
    found: Figures = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    for name in tables or TABLES:
        started = time.perf_counter()
        try:
            found[name] = TABLES[name](found, steps)
        except Exception as error:  # what one table meets is not to cost the others
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
            click.echo(f"the table {name!r} failed: {found[name]['failed']}")
        click.echo(f"({name}: {time.perf_counter() - started:.0f} s)")
        if file:
            file.write_text(json.dumps(found, indent=1), encoding="utf-8")
    failed = sum(failures(found[name]) for name in tables or TABLES)
    if failed:
        raise click.ClickException(f"{failed} of the figures could not be had")


if __name__ == "__main__":
    main()
