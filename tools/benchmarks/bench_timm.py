"""Nets of timm compared with PyTorch: ``python -m tools.benchmarks.bench_timm [NET ...]``, in the root of the checkout.

A training step of each net of :mod:`tools.benchmarks.timm_steps`, on one core with one thread, in float32 and bfloat16:
dsinga, and PyTorch in the channels-last format, eager and compiled. Each has a process of its own; they take turns.
PyTorch compiles only if there is a C++ compiler. Figures are medians of turns, ratios those to the fastest of PyTorch.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from tools.benchmarks.__main__ import processor, version
from tools.benchmarks.cases import Case
from tools.benchmarks.form_process import FormProcess, take_turns
from tools.benchmarks.peers import PEERS
from tools.benchmarks.table import Figures, rounded, row_of

NETS = (
    *("resnet50", "resnet18", "densenet121", "mobilenetv3", "regnety-008", "mixer-s", "efficientnet-b0"),
    *("convnext-tiny", "vit-tiny-197", "vit-tiny-577", "unet", "gpt"),
)
FORMS = [form for form, peer in PEERS.items() if peer.library in ("dsinga", "pytorch")]


def compare(name: str, forms: Sequence[str], turns: int, steps: int) -> tuple[Figures, dict[str, str]]:
    """Return the medians of a net by form, and why a form is left out."""
    figures: dict[str, list[dict[str, float]]] = {}
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        processes = {}
        for form in forms:
            net = f"{PEERS[form].library}/{name}"
            process = FormProcess(form, sys.executable, net, Case(name, 1, 0.9), steps, module="timm_steps")
            processes[form] = stack.enter_context(process)
        for _ in range(turns):
            take_turns(processes, figures, left_out)
    medians = {
        form: {key: statistics.median(turn[key] for turn in done) for key in ("ms", "mb")}
        for form, done in figures.items()
    }
    return medians, left_out


def ratios(figures: Figures, bf16: bool) -> tuple[float, float] | None:
    """Return dsinga's time and memory in a precision divided by the least of PyTorch; None without both."""
    own = [form for form in figures if PEERS[form].library == "dsinga" and PEERS[form].bf16 == bf16]
    others = [form for form in figures if PEERS[form].library == "pytorch" and PEERS[form].bf16 == bf16]
    if not own or not others:
        return None
    time, memory = (figures[own[0]][key] / min(figures[form][key] for form in others) for key in ("ms", "mb"))
    return time, memory


def table(nets: Mapping[str, Figures], forms: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table, and of the geometric means of the ratios."""
    yield row_of(["ms, MB", *forms, "float32", "bf16", "memory", "memory, bf16"])
    yield row_of(["---"] * (len(forms) + 5))
    for name, figures in nets.items():
        cells = (f"{figures[form]['ms']:.0f}, {figures[form]['mb']:.0f}" if form in figures else "-" for form in forms)
        of_time, of_memory = zip(*(ratios(figures, bf16) or (None, None) for bf16 in (False, True)), strict=True)
        yield row_of([name, *cells, *map(rounded, of_time), *map(rounded, of_memory)])
    for bf16, precision in ((False, "float32"), (True, "bf16")):
        if known := [found for figures in nets.values() if (found := ratios(figures, bf16))]:
            time, memory = map(statistics.geometric_mean, zip(*known, strict=True))
            yield f"\nGeometric means of {len(known)} ratios in {precision}: time {time:.2f}, memory {memory:.2f}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NETS))
@click.option("--turns", default=3, show_default=True, type=click.IntRange(1), help="Turns of each form.")
@click.option("--steps", default=3, show_default=True, type=click.IntRange(1), help="Measured steps of a turn.")
@click.option("--form", "chosen", multiple=True, type=click.Choice(FORMS), help="Only these forms take part.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(names: Sequence[str], turns: int, steps: int, chosen: Sequence[str], file: Path | None) -> None:
    """Print milliseconds of processor time of a step, peak memory, and ratios to the fastest form of PyTorch."""
    versions = {package: version(sys.executable, package) for package in ("torch", "timm", "numba")}
    about = {"date": f"{datetime.date.today()}", "machine": processor(), "versions": versions}
    click.echo(
        f"{', '.join(map(str, about.values()))}, {turns} turns of {steps} steps, load {os.getloadavg()[0]:.1f}\n"
    )
    nets: dict[str, Any] = {}
    for name in names or NETS:
        nets[name], left_out = compare(name, chosen or FORMS, turns, steps)
        for form, message in left_out.items():
            click.echo(f"{form} left out of {name}: {message}", err=True)
        if file:
            file.write_text(json.dumps({**about, "nets": nets}, indent=1), encoding="utf-8")
    click.echo("\n".join(table(nets, chosen or FORMS)))


if __name__ == "__main__":
    main()
