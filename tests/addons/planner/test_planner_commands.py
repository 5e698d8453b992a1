"""The command bench: what it prints."""

import json
from pathlib import Path

from tests.support.command_line import JOB, Dsinga, check_hosts_and_resources


def test_bench_runs_on_synthetic_records(dsinga: Dsinga, folder: Path) -> None:
    job = JOB.replace("train.zarr", "nowhere.zarr")
    (folder / "job.conf").write_text(job)
    measured = dsinga("bench", "job.conf", "--workers", "2", "--steps", "5", "--synthetic", "--profile", "--json")
    assert measured.returncode == 0, measured.stderr
    figures = json.loads(measured.stdout)
    assert figures.keys() == {
        "ms_per_iteration", "samples_per_second", "compute_ms", "exchange_ms", "data_ms", "crossing_mb", "peak_rss_mb",
        "profile",
    }  # fmt: skip
    assert [row["layer"] for row in figures["profile"]["rows"]] == ["data", "ip1", "loss", "loss", "ip1", "", ""]


def test_it_takes_hosts_and_resources(dsinga: Dsinga) -> None:
    check_hosts_and_resources(dsinga, "bench")
