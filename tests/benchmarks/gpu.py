"""Run all checks and benchmarks that need a GPU: ``python -m tests.benchmarks.gpu [TABLE ...]``.

Installs missing packages (unless ``--no-install``) and prints these tables, or those that are named, each within the
seconds of ``SECONDS``:

- ``smoke``: whether pieces of an iteration can be captured as CUDA graphs, and whether replays give the eager bits;
- ``pieces``: the host's microseconds for each call of an iteration;
- ``tests``: the contracts of the kernels and layers that a graph or a product depends on;
- ``nets``: the time of an iteration, eager and as one graph, beside that of PyTorch, likewise, on the same card;
- ``curves``: whether the losses of graphs are those of eager iterations, bit for bit, and params survive a NaN;
- ``chooser``: the plans of cuDNN for the convolutions of the nets, in both layouts;
- ``workers``: the first layer whose numbers depend on the sharing of a batch, and two workers against one;
- ``contracts``: all contracts of kernels and of layers;
- ``limits``: the rates of products and copies on the card;
- ``copies``: iterations with no copies, synchronous and overlapped ones (figure 20a of the paper);
- ``precision``: errors of each precision against float64.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from tests.benchmarks.cases import GPU_CASES

PRECISIONS = ("float32", "tf32", "bf16")
NET_PRECISIONS = ("float32", "bf16")
FORMS, PEERS = ("eager", "graph"), ("eager", "graph", "compiled")
COPIED = ("cifar10", "alexnet")
CHOSEN = ("resnet", "cifar10", "alexnet")
SECONDS = {
    "smoke": 40, "pieces": 40, "tests": 90, "nets": 300, "curves": 60, "chooser": 90, "workers": 90,
    "contracts": 300, "limits": 40, "copies": 90, "precision": 40,
}  # fmt: skip
"""The bounds of the tables. Those of one card's lease are the first seven: 10 minutes with some of the nets."""
TOUCHED = "conv or product or norm or dropout or update or recurrent or attention or uniform"  # tests of kernels
Figures = dict[str, Any]


class Deadline:
    """The time at which the table that is being made must end."""

    at = float("inf")

    @classmethod
    def left(cls) -> float:
        """Return the seconds that are left."""
        return cls.at - time.monotonic()


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


def turn(module: str, *arguments: str) -> Any:
    """Run a module in a process of its own; return the figures that it prints, or the error as ``failed``."""
    return json_of(sys.executable, "-m", f"tests.benchmarks.{module}", *arguments)


def json_of(*command: str) -> Any:
    """Return the last line of a command's output, which is JSON, or the error as ``failed``."""
    seconds = Deadline.left()
    if seconds < 1:
        return {"failed": "no time was left for it"}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=min(seconds, 1e6), check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {seconds:.0f} s"}
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["ended without a message"]
        return {"failed": lines[-1], "errors": ended.stderr[-4000:]}
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


def smoke(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print whether each piece can be captured."""
    yield (figures := turn("gpu_smoke"))
    for name, result in figures.items():
        click.echo(f"{name}: {json.dumps(result) if isinstance(result, dict) else result}")


def pieces(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print the host's microseconds for each call."""
    yield (figures := turn("gpu_pieces"))
    head("call", "us")
    for name, result in figures.items():
        row(name, f"{result:.1f}" if isinstance(result, float) else f"failed: {result}")


def tests(previous: Figures, steps: int) -> Iterator[Figures]:
    """Run the contracts that graphs and products depend on."""
    yield from pytest_runs(["-m", "gpu", "tests/ops", "-k", TOUCHED])


def contracts(previous: Figures, steps: int) -> Iterator[Figures]:
    """Run the contracts of kernels and of layers over the device."""
    yield from pytest_runs(["-m", "gpu", "tests/ops"], ["tests/layers/test_layers_contract.py", "-k", "CuPy"])


def pytest_runs(*runs: list[str]) -> Iterator[Figures]:
    """Run pytest with each list of arguments; print its last lines."""
    results: Figures = {}
    for arguments in runs:
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments]
        seconds = max(Deadline.left(), 1)
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=min(seconds, 1e6), check=False)
            last = "\n".join((ended.stdout + ended.stderr).strip().splitlines()[-25:])
        except subprocess.TimeoutExpired as stopped:
            last = f"took more than {seconds:.0f} s; until then:\n{str(stopped.stdout or b'')[-500:]}"
            ended = None
        click.echo(last)
        passed = ended is not None and not ended.returncode
        results[" ".join(arguments)] = {"last": last} if passed else {"failed": last}
        yield results


def limits(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print rates of products, in operations a second, and of copies, in bytes a second."""
    yield (rates := turn("gpu_limits"))
    click.echo(f"\nrates: {json.dumps({key: rates[key] for key in ('matrix', 'copy', 'failed') if key in rates})}")


def nets(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print the iteration times of the nets, those of PyTorch, and the limits."""
    head("net, batch", "precision", *FORMS, *(f"PyTorch {form}" for form in PEERS), "ratio", "limit")
    rows: Figures = {}
    for precision in NET_PRECISIONS:
        for name, case in GPU_CASES.items():
            ours, theirs = (turn(module, name, precision, str(steps)) for module in ("gpu_loop", "gpu_torch"))
            best, peer = (
                min((each[f] for f in forms if f in each), default=None)
                for each, forms in ((ours, FORMS), (theirs, PEERS))
            )
            ratio = best / peer if best and peer else None
            bound = previous.get("limits", {}).get("limits", {}).get(name, {}).get(precision)
            figures = *(cell(ours, form) for form in FORMS), *(cell(theirs, form) for form in PEERS)
            row(
                f"{name}, {case.batch}",
                precision,
                *figures,
                f"{ratio:.2f}" if ratio else "-",
                f"{bound:.2f}" if bound else "-",
            )
            rows[f"{name} {precision}"] = {"dsinga": ours, "pytorch": theirs, "ratio": ratio}
            yield rows
    runs = [each["runs"] for pair in rows.values() for each in (pair["dsinga"], pair["pytorch"]) if "runs" in each]
    click.echo("\n" + ("; ".join(dict.fromkeys(runs)) or "nothing ran"))


def curves(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print whether graphs give the losses of eager iterations."""
    rows: Figures = {}
    for name in GPU_CASES:
        rows[name] = turn("gpu_curves", name)
        click.echo(f"{name}: {json.dumps({key: value for key, value in rows[name].items() if key != 'errors'})}")
        yield rows


def chooser(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print by convolution the plan of the heuristics and the fastest one, in both layouts."""
    rows: Figures = {}
    head("convolution", "last: first plan ms", "fastest", "first: first plan ms", "fastest", "conversions ms", "apart")
    for name in CHOSEN:
        figures = turn("gpu_chooser", name, "float32", f"{max(Deadline.left() / 2, 1):.0f}")
        rows[name] = figures if isinstance(figures, dict) else {"convolutions": figures}
        yield rows
        for line in rows[name].get("convolutions", ()):
            times = [
                f"{line[key][plan][0]:.3f}" if plan in line[key] else "-"
                for key in ("last", "first")
                for plan in ("first", "fastest")
            ]
            conversions = sum(line["conversions"][key] for key in ("left", "right", "result"))
            row(f"{name} {line['problem']}", *times, f"{conversions:.3f}", f"{line.get('apart', -1):.1e}")


def copies(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print the cost of copies to and from servers in host memory."""
    ways = "no copy", "synchronous", "overlapped"
    head("net", *(f"{way} ms" for way in ways))
    rows: Figures = {}
    for name in COPIED:
        rows[name] = figures = turn("gpu_copies", name, str(steps))
        row(name, *(cell(figures, way) for way in ways))
        yield rows


def precision(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print the errors of each precision against float64."""
    yield (figures := turn("gpu_precision"))
    click.echo("\nerrors against float64, relative to the result's root mean square: root mean square (largest)")
    if "failed" in figures:
        click.echo(f"failed: {figures['failed']}")
        return
    head("kernel", *PRECISIONS)
    for kernel in figures[PRECISIONS[0]]:
        errors = [figures[precision][kernel] for precision in PRECISIONS]
        row(kernel, *(f"{error['rms']:.1e} ({error['max']:.1e})" for error in errors))


def workers(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print the errors of layers by the sharing of a batch, and the differences of params of two workers from one."""
    shares = turn("gpu_shares", "cifar10")
    yield {"shares": shares}
    if "failed" in shares:
        click.echo(f"shares failed: {shares['failed']}")
    else:
        head("array", "one worker", "two workers", "apart")
        for name, errors in shares.items():
            row(name, *(f"{errors[key]:.1e}" for key in ("one", "two", "apart")))
    figures = turn("gpu_workers", "cifar10")
    yield {"shares": shares, "params": figures}
    text = json.dumps({key: value for key, value in figures.items() if key != "errors"})
    click.echo(f"\nlargest difference of a param to one worker on the GPU (after 5 steps at most 1e-4): {text}")


TABLES: dict[str, Callable[[Figures, int], Iterator[Figures]]] = {
    table.__name__: table
    for table in (
        *(smoke, pieces, tests, nets, curves, chooser, workers),
        *(contracts, limits, copies, precision),
    )
}


def failures(figures: Any) -> int:
    """Count the failures."""
    if not isinstance(figures, dict):
        return 0
    return int("failed" in figures) + sum(map(failures, figures.values()))


def write(file: Path | None, figures: Figures) -> None:
    """Write the figures so far."""
    if file:
        file.write_text(json.dumps(figures, indent=1), encoding="utf-8")


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
        started = time.monotonic()
        Deadline.at = started + SECONDS[name]
        try:
            for table in TABLES[name](figures, steps):
                figures[name] = table
                write(file, figures)
        except Exception as error:  # an error in one table must not stop the others
            figures[name] = {"failed": f"{type(error).__name__}: {error}"}
            click.echo(f"the table {name!r} failed: {figures[name]['failed']}")
            write(file, figures)
        click.echo(f"({name}: {time.monotonic() - started:.0f} s)")
    failed = sum(failures(figures[name]) for name in tables or TABLES)
    if failed:
        raise click.ClickException(f"{failed} of the figures could not be measured")


if __name__ == "__main__":
    main()
