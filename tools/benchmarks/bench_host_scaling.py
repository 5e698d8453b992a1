"""Weak and strong scaling over hosts, measured and predicted by the planner.

    python -m tools.benchmarks.bench_host_scaling --json FILE [--case mlp ...] [--scaling weak] [--hosts 8 ...]
    python -m tools.benchmarks.bench_host_scaling --json FILE --table --picture scaling.svg
    python -m tools.benchmarks.bench_host_scaling --json PAPER --case cifar10 --scaling strong --batch 512

As root: hosts are network namespaces of this machine, joined by a switch, each by a link of ``RATE`` (by default
1gbit); they share the machine's cores. With weak scaling each host has so many records of a batch, with strong scaling
all hosts together have. Figures are medians of the iterations of one run. Each is added to the file as soon as it is
measured, and what the file has is not measured again, so that a command that was ended early can be repeated.
``--table`` measures nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
from distributed import Client

from dsinga.addons.pictures.panels import COLOURS, Line, Panel, draw_panels
from dsinga.addons.planner import cost_model
from dsinga.addons.planner.benchmark import measure
from dsinga.api import with_workers
from dsinga.job import ClusterConf, Job
from tools.benchmarks.bench_plan import NETS, build, predict_on_cluster, with_cuts

BATCHES = {  # records of a batch: of each host, and of all together
    "cifar10": {"weak": 64, "strong": 128},
    "mlp": {"weak": 64, "strong": 128},
    "alexnet-fc": {"weak": 16, "strong": 32},
}
SCALINGS = ("weak", "strong")
STRATEGIES = ("data", "hybrid")
HOSTS = (1, 2, 4, 8)
LINE_COLOURS = {  # by strategy: of the measured and of the predicted times
    "data": (COLOURS[0], COLOURS[5]),
    "hybrid": (COLOURS[1], COLOURS[4]),
}


class Row(NamedTuple):
    """Milliseconds of an iteration of a net whose batch of ``batch`` records is divided among ``hosts`` hosts."""

    scaling: str
    case: str
    hosts: int
    strategy: str
    batch: int
    predicted: float
    measured: float

    def line(self) -> str:
        """Return the figures as a row of the table."""
        times = f"{self.predicted:.0f} | {self.measured:.0f} | {self.predicted / self.measured - 1:+.0%}"
        return f"| {self.case}, {self.scaling} | {self.hosts} | {self.batch} | {self.strategy} | {times} |"


HEAD = "| | hosts | batch | strategy | predicted ms | measured ms | |\n|" + " --- |" * 7


def job_of(case: str, batch: int, hosts: int) -> Job:
    """Return the job of a case for so many workers, with a server beside each."""
    job = with_workers(NETS[case](batch), hosts)
    return job.replace(cluster=(job.cluster or ClusterConf()).replace(nservers_per_group=hosts))


def run(client: Client, scaling: str, case: str, hosts: int, steps: int, batch: int | None, file: Path) -> None:
    """Measure the strategies of a case whose figures the file lacks, and add them to it."""
    present = read(file)
    batch = (batch or BATCHES[case][scaling]) * (hosts if scaling == "weak" else 1)
    names = missing(present, scaling, case, hosts)
    if not names:
        return
    job = job_of(case, batch, hosts)
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        net = build(job, folder)
    cuts = cost_model.named_strategies(net, hosts, names=names)
    for name, expected in predict_on_cluster(job, client, cuts).items():
        figures = measure(with_cuts(job, cuts[name]), client, steps=steps, synthetic=True)
        milliseconds = 1e3 * expected.prediction.seconds, figures["ms_per_iteration"]
        row = Row(scaling, case, hosts, name, batch, *milliseconds)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row._asdict()) + "\n")
        click.echo(row.line(), err=True)


def missing(rows: Sequence[Row], scaling: str, case: str, hosts: int) -> list[str]:
    """Return the strategies of a case that the rows lack."""
    strategies = STRATEGIES if hosts > 1 else STRATEGIES[:1]  # one worker has nothing to cut
    return [name for name in strategies if (scaling, case, hosts, name) not in {row[:4] for row in rows}]


def read(file: Path) -> list[Row]:
    """Return the figures of a file, which may be missing."""
    return [Row(**json.loads(line)) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def draw(rows: Sequence[Row]) -> str:
    """Return an SVG element with a panel for each case and scaling: measured and predicted times by hosts."""
    cases = [case for case in BATCHES if any(row.case == case for row in rows)]
    scalings = [scaling for scaling in SCALINGS if any(row.scaling == scaling for row in rows)]
    shown = [[row for row in rows if (row.scaling, row.case) == pair] for pair in itertools.product(scalings, cases)]
    label = "milliseconds of an iteration by the number of hosts, measured and predicted"
    return draw_panels([_panel(of_pair) for of_pair in shown if of_pair], label, len(cases))


def _panel(rows: Sequence[Row]) -> Panel:
    lines = {}
    for strategy, (measured, predicted) in LINE_COLOURS.items():
        points = sorted(row for row in rows if row.strategy == strategy or row.hosts == 1)
        if any(row.strategy == strategy for row in points):
            name = f"{strategy}, predicted"
            lines[name] = Line([(row.hosts, row.predicted) for row in points], predicted, name)
            lines[strategy] = Line([(row.hosts, row.measured) for row in points], measured, strategy)
    title = f"{rows[0].case}, {rows[0].scaling}: ms"
    return Panel(title, lines, "hosts", logarithmic=True, x_ticks=HOSTS, y_axis="log")


@click.command()
@click.option("--json", "file", type=click.Path(path_type=Path), required=True, help="File of figures, a line each.")
@click.option("--case", "cases", multiple=True, type=click.Choice(list(BATCHES)), default=list(BATCHES))
@click.option("--scaling", "scalings", multiple=True, type=click.Choice(SCALINGS), default=SCALINGS)
@click.option("--hosts", "counts", multiple=True, type=int, default=HOSTS, show_default=True)
@click.option("--batch", type=int, help="Records of a batch in place of the usual number.")
@click.option("--steps", default=6, show_default=True, help="Measured iterations.")
@click.option("--table", "table_only", is_flag=True, help="Measure nothing; print the table of the file.")
@click.option("--picture", type=click.Path(path_type=Path), help="SVG file to draw the figures of the file to.")
def main(
    file: Path, cases: tuple[str, ...], scalings: tuple[str, ...], counts: tuple[int, ...], batch: int | None,
    steps: int, table_only: bool, picture: Path | None,
) -> None:  # fmt: skip
    """Measure what the file lacks, and print all of its figures as a table."""
    if "SCHEDULER" in os.environ:
        with Client(os.environ["SCHEDULER"]) as client:
            for scaling in scalings:
                for case in cases:
                    run(client, scaling, case, counts[0], steps, batch, file)
        return
    for hosts in () if table_only else counts:
        present = read(file)
        if not any(missing(present, scaling, case, hosts) for scaling in scalings for case in cases):
            continue
        chosen = [f"--case={case}" for case in cases] + [f"--scaling={scaling}" for scaling in scalings]
        command = [sys.executable, "-m", "tools.benchmarks.bench_host_scaling", f"--hosts={hosts}", *chosen]
        command += [f"--steps={steps}", f"--json={file}", *([f"--batch={batch}"] if batch else [])]
        subprocess.run([Path(__file__).with_name("hosts.sh"), str(hosts), *command], check=True)
    rows = sorted(read(file), key=lambda row: (SCALINGS.index(row.scaling), [*BATCHES].index(row.case), *row[2:]))
    click.echo("\n".join([HEAD, *(row.line() for row in rows)]))
    if picture:
        picture.write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
