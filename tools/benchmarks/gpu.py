"""Run all checks and benchmarks that need a GPU: ``python -m tools.benchmarks.gpu [TABLE ...]``.

Installs missing packages (unless ``--no-install``) and prints these tables, or those that are named, each within the
seconds of ``SECONDS`` and all within ``--seconds``. Tables that the file of ``--json`` has already are made again only
where they are named, so that a second call goes on where the first one ended:

- ``tests``: the contracts of kernels, of captures, whose replays have eager bits, and of layers, in several processes
  where pytest-xdist is installed;
- ``nets_bf16``, ``nets``: the time of an iteration, eager and as one graph, and PyTorch's on the same card;
  whether losses and params of graphs are those of eager iterations, bit for bit, and params survive a NaN;
- ``compiled``: PyTorch's iterations compiled by TorchInductor.

Each turn is a process of its own. A failure is printed in place of its figures, and the rest goes on. ``--json`` names
a file for the figures: it is written after each of them and keeps those of other tables, so that several calls may make
the tables.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from tools.benchmarks.gpu_tables import TABLES
from tools.benchmarks.gpu_turns import Deadline, Figures

SECONDS = {"tests": 195, "nets_bf16": 105, "nets": 120, "compiled": 70}
"""The bounds of the tables. Those up to "nets", in this order, are for ten minutes of a card.

First comes what no card has run: bfloat16 between layers, and the contracts of later kernels and layers.
"""


def install() -> None:
    """Install the packages that cannot be imported, one by one, and print which ones could not be installed."""
    release = cuda_release()
    needed = {
        "cupy": f"cupy-cuda{release}x[ctk]>=14",
        "cudnn": "nvidia-cudnn-frontend>=1.10",
        "nvidia.cudnn": f"nvidia-cudnn-cu{release}>=9",
        "pytest": "pytest>=9",
        "pytest_timeout": "pytest-timeout>=2.3",
        "xdist": "pytest-xdist>=3.8",
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


def failures(figures: Any) -> int:
    """Count the failures."""
    if not isinstance(figures, dict):
        return 0
    return sum(str(key).endswith("failed") for key in figures) + sum(map(failures, figures.values()))


def missing(figures: Figures) -> list[str]:
    """Return the tables that are not there, or in which something failed."""
    return [name for name in TABLES if name not in figures or failures(figures[name])]


def write(file: Path | None, figures: Figures) -> None:
    """Write the figures so far."""
    if file:
        file.write_text(json.dumps(figures, indent=1), encoding="utf-8")


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)))
@click.option("--install/--no-install", "wants_install", default=True, help="Install missing packages.")
@click.option("--seconds", default=590, show_default=True, help="Bound of all tables; those without time are left.")
@click.option("--steps", default=30, show_default=True, help="Iterations of a measurement, of which there are three.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path), help="File for the figures, which keeps those of other tables."
)
def main(tables: tuple[str, ...], wants_install: bool, seconds: int, steps: int, file: Path | None) -> None:
    """Print the tables, by default all that the file lacks."""
    end = time.monotonic() + seconds
    if wants_install:
        install()
    figures: Figures = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    made: list[str] = []
    for name in tables or missing(figures):
        started = time.monotonic()
        if started >= end:
            click.echo(f"no time is left for the table {name!r}; call this again to go on")
            continue
        Deadline.at = min(started + SECONDS[name], end)
        made.append(name)
        try:
            for table in TABLES[name](figures, steps):
                figures[name] = table
                write(file, figures)
        except Exception as error:  # an error in one table must not stop the others
            figures[name] = {"failed": f"{type(error).__name__}: {error}"}
            click.echo(f"the table {name!r} failed: {figures[name]['failed']}")
            write(file, figures)
        click.echo(f"({name}: {time.monotonic() - started:.0f} s)")
    failed = sum(failures(figures[name]) for name in made)
    if failed:
        raise click.ClickException(f"{failed} of the figures could not be measured")


if __name__ == "__main__":
    main()
