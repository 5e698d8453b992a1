"""Trains a job while processes of its cluster are killed, stopped and retired, and measures that.

``python -m tools.chaos.job job.conf --mtbf 30``: faults.py has the kinds of faults, causes them at random moments and
starts a cluster for them, trials.py trains with faults and without and takes the times of recoveries, report.py adds
them up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from dsinga import api
from dsinga.commands.cli import CONTEXT_SETTINGS, plain_messages
from dsinga.commands.options import cluster_options, job_and_connection, job_options
from tools.chaos.faults import DEADLY, KINDS, check_kinds, process_cluster
from tools.chaos.report import is_good, report
from tools.chaos.trials import Chaos

PROGRAM = ("python", "-m", "tools.chaos.job")
DEFAULT_KINDS = ",".join((*DEADLY, "pause"))


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option(
    "--mtbf", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True, metavar="SECONDS",
    help="Mean time between two faults in the cluster.",
)  # fmt: skip
@click.option(
    "--kinds", default=DEFAULT_KINDS, show_default=True, metavar="KIND,...",
    help=f"Kinds of faults: {', '.join(KINDS)}.",
)  # fmt: skip
@click.option(
    "--minutes", type=click.FloatRange(min=0), default=0.0, metavar="M",
    help="Train with faults for so long in all [default: the steps of the job, once].",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of the moments, kinds and victims.")
@click.option(
    "--processes", type=click.IntRange(min=1), metavar="N",
    help="Worker processes of the cluster that is started here, without --scheduler [default: one for each worker].",
)  # fmt: skip
@click.option("--compare/--no-compare", default=True, help="Train without faults, too, and compare bits and speed.")
@job_options
@cluster_options
def chaos(
    conf: Path, mtbf: float, kinds: str, minutes: float, seed: int, processes: int | None, compare: bool,
    data_root: str | None, **options: Any,
) -> None:  # fmt: skip
    """Train the job file CONF while faults happen to the processes of its cluster, and say what came of it.

    Faults happen to Dask workers at random moments. Without a scheduler, worker processes are started on this machine.
    Workers of a cluster of yours need nannies, which start lost processes again. The exit status is 1 where a run ends
    by an error, or its params are not those of a run without faults.
    """
    plan = Chaos(check_kinds(kinds), mtbf, seed, minutes, compare, data_root)
    job, connection = job_and_connection(conf, options)
    if not (options["scheduler"] or options["scheduler_file"]):
        connection = process_cluster(processes or max(2, api.wanted_workers(job)))
    with connection as client:
        pairs = [*plan.run(job, client)]
    click.echo("\n".join(report(job, pairs)))
    if not is_good(job, pairs):
        sys.exit(1)


def main() -> None:
    """Run the command line."""
    with plain_messages(sys.argv[1:], PROGRAM):
        chaos(prog_name=" ".join(PROGRAM))


if __name__ == "__main__":
    main()
