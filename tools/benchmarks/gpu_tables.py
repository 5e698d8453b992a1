"""The tables of ``python -m tools.benchmarks.gpu``: each yields its figures so far, to be written at once."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator

import click

from tools.benchmarks import gpu_turns
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.gpu_turns import Deadline, Figures, cell, head, row

OURS = {
    "eager": "eager ms",
    "graph": "graph ms, metrics a step late",
    "graph, metrics read": "graph ms",
    "graph alone": "graph kernels ms",
}
PROCESSES = 6  # which share the card
PEERS = ("eager", "graph", "graph, loss read")
BITS = ("losses equal", "params equal", "a bad step changes nothing")


def tests(previous: Figures, steps: int) -> Iterator[Figures]:
    """Run the contracts of kernels, of captures and of layers over the device."""
    yield from pytest_runs(["-m", "gpu", "tests/addons/gpu", *processes()])


def processes() -> list[str]:
    """Return the options that let pytest run tests in several processes, as far as it can."""
    return ["-n", str(PROCESSES)] if importlib.util.find_spec("xdist") else []


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


def nets(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print the iteration times of the nets in float32."""
    yield from iterations("float32", steps)


def nets_bf16(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print the iteration times of the nets in bfloat16."""
    yield from iterations("bf16", steps)


def iterations(precision: str, steps: int) -> Iterator[Figures]:
    """Print the iteration times of the nets, those of PyTorch, and whether graphs give the bits of eager iterations."""
    head("net, batch", "precision", *OURS, "same bits", *(f"PyTorch {form}" for form in PEERS), "ratio")
    rows: Figures = {}
    for name, case in GPU_CASES.items():
        ours, theirs = gpu_turns.turn("gpu_capture", name, precision, str(steps)), peer(name, precision, steps)
        ratio = ratio_of(ours, theirs)
        bits = " ".join(str(ours[key])[:1] for key in BITS if key in ours) or "-"
        figures = *(cell(ours, key) for key in OURS.values()), bits, *(cell(theirs, form) for form in PEERS)
        row(f"{name}, {case.batch}", precision, *figures, f"{ratio:.2f}" if ratio else "-")
        if ours.get("not captured because"):
            click.echo(f"not captured: {ours['not captured because']}")
        rows[f"{name} {precision}"] = {"dsinga": ours, "pytorch": theirs, "ratio": ratio}
        yield rows
    runs = [each["runs"] for pair in rows.values() for each in (pair["dsinga"], pair["pytorch"]) if "runs" in each]
    click.echo("\n" + ("; ".join(dict.fromkeys(runs)) or "nothing ran"))


def peer(name: str, precision: str, steps: int) -> Figures:
    """Return the figures of PyTorch."""
    return gpu_turns.turn("gpu_torch", name, precision, str(steps), *PEERS)


def ratio_of(ours: Figures, theirs: Figures) -> float | None:
    """Return the time of an iteration that reads its metrics, by that of PyTorch's fastest form, which may not."""
    keys = ("graph ms, metrics a step late", "graph ms", "eager ms")
    own = min((ours[key] for key in keys if ours.get(key)), default=None)
    best = min((theirs[form] for form in PEERS if form in theirs), default=None)
    return own / best if own and best else None


def compiled(previous: Figures, steps: int) -> Iterator[Figures]:
    """Print PyTorch's iterations compiled by TorchInductor, whose compilation takes half a minute each."""
    head("net", "precision", "PyTorch, compiled")
    rows: Figures = {}
    for name in GPU_CASES:
        rows[name] = gpu_turns.turn("gpu_torch", name, "float32", str(steps), "compiled")
        row(name, "float32", cell(rows[name], "compiled"))
        yield rows


TABLES: dict[str, Callable[[Figures, int], Iterator[Figures]]] = {
    table.__name__: table for table in (tests, nets_bf16, nets, compiled)
}
