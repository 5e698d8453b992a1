"""The benchmark of large tables: its table, its pictures, and a run on a cluster that is watched."""

import json

import pytest
from click.testing import CliRunner

from tools.benchmarks import large_tables, made_table
from tools.benchmarks.watched_cluster import Run

pq = pytest.importorskip("pyarrow.parquet")


def test_a_table_is_made_of_its_seed(tmp_path):
    for seed in (0, 0, 1):
        made_table.write_file(tmp_path, seed, 3, 200, 90)
        (tmp_path / "part-0003.parquet").rename(tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet")
    first, again, other = (pq.read_table(tmp_path / f"{number}.parquet") for number in (1, 2, 3))
    assert first.equals(again)
    assert not first.equals(other)
    assert (first.num_rows, first["late"].type) == (200, "int8")
    assert 10 < first["x04"].null_count < 30
    assert pq.ParquetFile(tmp_path / "1.parquet").metadata.num_row_groups == 3


def test_runs_are_drawn(tmp_path):
    long = [(float(second), 300.0 + second % 7) for second in range(900)]
    memory = [[(0.0, 200.0), (1.0, 900.0)], long, [(1.5, 190.0), (9.0, 950.0)]]
    run = Run("xgboost", 9.4, "KilledWorker: x", None, memory)
    assert str(run) == "xgboost: KilledWorker: x, 9 s, at most 950 MiB, 1 worker processes killed"
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(json.dumps(each._asdict()) for each in (run, run._replace(name="dsinga"))))
    assert large_tables.read(file)[0] == run
    svg = large_tables.draw(large_tables.read(file), 1024)
    assert svg.count("<polyline") + svg.count("<path") >= 7
    assert "xgboost: MiB" in svg


@pytest.mark.process
@pytest.mark.slow
def test_a_net_trains_on_a_watched_cluster(tmp_path):
    """Its workers stay below their limit, and a killed one changes no bit."""
    file = tmp_path / "runs.jsonl"
    arguments = [str(tmp_path), "--gigabytes", "0.01"]
    run = CliRunner().invoke(large_tables.main, ["memory", *arguments, "--with", "dsinga", "--json", str(file)])
    assert "dsinga: trained to the end" in run.output
    (found,) = large_tables.read(file)
    assert found.killed == 0
    assert "params are equal" in CliRunner().invoke(large_tables.main, ["kill", *arguments]).output
