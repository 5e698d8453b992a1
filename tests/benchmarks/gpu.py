"""All that is to be run on a GPU, in one go: ``python -m tests.benchmarks.gpu``, in the root of the checkout.

Installs what is missing (unless ``--no-install``), runs the contracts of kernels and layers, and prints one table after
the other: the nets beside PyTorch in eager mode on the same card, and beside what the card could do; copies; errors of
each precision; two workers that share the card. Each turn is a process of its own: what fails is said where its figures
would stand, and the rest goes on. ``--json`` keeps all figures.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from tests.benchmarks.cases import GPU_CASES

PRECISIONS = ("float32", "tf32", "bf16")
PATIENCE = 900  # seconds for a turn
NEEDED = {
    "cupy-cuda12x": "cupy-cuda12x[ctk]>=14",
    "nvidia-cudnn-frontend": "nvidia-cudnn-frontend>=1.10",
    "nvidia-cudnn-cu12": "nvidia-cudnn-cu12>=9",
    "pytest": "pytest>=9",
    "pytest-timeout": "pytest-timeout>=2.3",
    "hypothesis": "hypothesis>=6.120",
    "torch": "torch",
}


def install() -> None:
    """Install the packages that are missing, each by itself, and say what could not be."""
    for name, wanted in NEEDED.items():
        try:
            click.echo(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", wanted], check=False)
            click.echo(f"{name}: {'installed' if not done.returncode else 'MISSING, and pip could not install it'}")


def contracts() -> str:
    """Run the contracts of kernels and of layers over the device; return pytest's last lines."""
    last = []
    for wanted in (["-m", "gpu", "tests/ops"], ["tests/layers/test_layers_contract.py", "-k", "CuPy"]):
        command = [sys.executable, "-m", "pytest", "-q", "-rs", *wanted, "--timeout", "600"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
        last += (done.stdout + done.stderr).strip().splitlines()[-40:]
    return "\n".join(last)


def turn(module: str, *arguments: str) -> dict[str, Any]:
    """Run one module in a process of its own; return what it prints, or why it prints nothing as ``failed``."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {PATIENCE} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["ended without a word"])[-1], "errors": done.stderr}
    return json.loads(done.stdout.splitlines()[-1])


def best_of(module: str, arguments: tuple[str, ...], turns: int) -> dict[str, Any]:
    """Return the turn whose time is the median one."""
    found = [turn(module, *arguments) for _ in range(turns)]
    good = [one for one in found if "failed" not in one]
    middle = statistics.median_low(one["ms"] for one in good) if good else None
    return next((one for one in good if one["ms"] == middle), found[0])


def cell(found: dict[str, Any], key: str = "ms") -> str:
    """Return a figure for a table, or why there is none."""
    return f"{found[key]:.2f}" if key in found else f"failed: {found.get('failed', 'not measured')}"


def nets(turns: int, steps: int, limits: dict[str, Any]) -> list[dict[str, Any]]:
    """Print the nets beside PyTorch and their limits; return the figures."""
    click.echo("\n| net, batch | precision | dsinga ms | PyTorch ms | ratio | goal | limit ms |\n" + "| --- " * 7 + "|")
    rows = []
    for name, case in GPU_CASES.items():
        for precision in PRECISIONS:
            arguments = name, precision, str(steps)
            ours, theirs = (best_of(module, arguments, turns) for module in ("gpu_loop", "gpu_torch"))
            ratio = ours["ms"] / theirs["ms"] if "ms" in ours and "ms" in theirs else None
            goal = f"{case.goal:.2f}" if precision == "float32" else ""
            bound = limits.get("limits", {}).get(name, {}).get(precision)
            cells = [f"{name}, {case.batch}", precision, cell(ours), cell(theirs), f"{ratio:.2f}" if ratio else "-"]
            click.echo("| " + " | ".join([*cells, goal, f"{bound:.2f}" if bound else "-"]) + " |")
            rows.append({"net": name, "precision": precision, "dsinga": ours, "pytorch": theirs, "ratio": ratio})
    return rows


def copies(steps: int) -> dict[str, Any]:
    """Print what copies to and from servers in host memory cost (figure 20a); return the figures."""
    click.echo("\n| net | no copy ms | synchronous ms | overlapped ms |\n" + "| --- " * 4 + "|")
    found = {name: turn("gpu_copies", name, str(steps)) for name in ("alexnet", "cifar10")}
    for name, own in found.items():
        click.echo(
            f"| {name} | " + " | ".join(cell(own, key) for key in ("no copy", "synchronous", "overlapped")) + " |"
        )
    return found


def precisions() -> dict[str, Any]:
    """Print the errors of each precision against float64; return them."""
    found = turn("gpu_precision")
    click.echo("\nerrors against float64, relative to the result's root mean square: root mean square (largest)")
    if "failed" in found:
        click.echo(f"failed: {found['failed']}")
        return found
    click.echo("| kernel | " + " | ".join(PRECISIONS) + " |\n" + "| --- " * 4 + "|")
    for kernel in found[PRECISIONS[0]]:
        own = [found[precision][kernel] for precision in PRECISIONS]
        click.echo(f"| {kernel} | " + " | ".join(f"{one['rms']:.1e} ({one['max']:.1e})" for one in own) + " |")
    return found


@click.command()
@click.option("--install/--no-install", "wants_install", default=True, help="Install what is missing.")
@click.option("--tests/--no-tests", "wants_tests", default=True, help="Run the contracts.")
@click.option("--turns", default=3, show_default=True)
@click.option("--steps", default=50, show_default=True, help="Measured iterations of a turn.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(wants_install: bool, wants_tests: bool, turns: int, steps: int, file: Path | None) -> None:
    """Print all tables."""
    started = time.perf_counter()
    if wants_install:
        install()
    found: dict[str, Any] = {}
    if wants_tests:
        found["tests"] = contracts()
        click.echo(found["tests"])
    found["limits"] = limits = turn("gpu_limits")
    click.echo(f"\nrates: {json.dumps({key: limits[key] for key in ('matrix', 'copy', 'failed') if key in limits})}")
    found["nets"] = nets(turns, steps, limits)
    click.echo(f"\n{next((row['dsinga']['runs'] for row in found['nets'] if 'runs' in row['dsinga']), 'nothing ran')}")
    found["copies"] = copies(steps)
    found["precision"] = precisions()
    found["workers"] = turn("gpu_workers", "cifar10", "20")
    click.echo(
        f"\nlargest difference of a param to one worker on the GPU (at most 1e-4): {json.dumps(found['workers'])}"
    )
    click.echo(f"{time.perf_counter() - started:.0f} s")
    if file:
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
