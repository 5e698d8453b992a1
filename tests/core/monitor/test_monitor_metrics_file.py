"""metrics.jsonl: rows are read as they were written, and after resuming each step occurs once."""

import json
import math

import numpy as np
import pytest

from dsinga.monitor import MetricsFile, read_metrics
from tests.support.refusals import refused
from tests.support.small_disk import files_of_at_most


def rows(*steps, phase="train"):
    return [{"step": step, "phase": phase, "time": step / 10, "loss": 1 / (step + 1)} for step in steps]


def write(path, metrics, **options):
    with MetricsFile(path, **options) as file:
        for row in metrics:
            file.append(row)


def test_rows_are_read_as_they_were_written(tmp_path):
    write(tmp_path / "run" / "metrics.jsonl", rows(0, 10, 20))
    assert list(read_metrics(tmp_path / "run" / "metrics.jsonl")) == rows(0, 10, 20)


def test_a_row_can_be_read_before_the_file_is_closed(tmp_path):
    with MetricsFile(tmp_path / "m.jsonl") as file:
        file.append(rows(0)[0])
        assert json.loads((tmp_path / "m.jsonl").read_text()) == rows(0)[0]


def test_a_new_run_replaces_the_file(tmp_path):
    write(tmp_path / "m.jsonl", rows(0, 10))
    write(tmp_path / "m.jsonl", rows(5))
    assert read_metrics(tmp_path / "m.jsonl")[:, "step"] == [5]


def test_a_resumed_run_keeps_earlier_steps(tmp_path):
    write(tmp_path / "m.jsonl", rows(0, 10, 20, 30))
    write(tmp_path / "m.jsonl", rows(20, 30, 40), resumed_step=10)
    assert read_metrics(tmp_path / "m.jsonl")[:, "step"] == [0, 10, 20, 30, 40]


def test_a_resumed_run_without_a_file_makes_one(tmp_path):
    write(tmp_path / "m.jsonl", rows(20), resumed_step=10)
    assert read_metrics(tmp_path / "m.jsonl")[:, "step"] == [20]


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, rows(0, 10))
    path.write_text(path.read_text() + '{"step": 20, "pha')
    assert read_metrics(path)[:, "step"] == [0, 10]
    write(path, rows(20), resumed_step=15)
    assert read_metrics(path)[:, "step"] == [0, 10, 20]


def test_a_crash_while_resuming_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "m.jsonl"
    write(path, rows(0, 10, 20))
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError("power cut")))
    refused(lambda: MetricsFile(path, resumed_step=10), "power cut", error=OSError)
    assert read_metrics(path)[:, "step"] == [0, 10, 20]


def test_numpy_scalars_are_written_as_numbers(tmp_path):
    write(tmp_path / "m.jsonl", [{"step": np.int64(3), "phase": "val", "loss": np.float32(0.5)}])
    assert list(read_metrics(tmp_path / "m.jsonl")) == [{"step": 3, "phase": "val", "loss": 0.5}]


@pytest.mark.parametrize("loss", [math.nan, math.inf, np.float32("nan")])
def test_a_diverged_loss_is_valid_json(tmp_path, loss):
    write(tmp_path / "m.jsonl", [{"step": 1, "phase": "train", "loss": loss}])
    assert '"loss": null' in (tmp_path / "m.jsonl").read_text()
    assert math.isnan(read_metrics(tmp_path / "m.jsonl")[0, "loss"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("loss 0.5", "m.jsonl:2: not a row of metrics"),
        ("\udcff", "m.jsonl:2: not a row of metrics"),
        ("[" * 100_000, "m.jsonl:2: not a row of metrics"),
        ("[1, 2]", r"m.jsonl:2: a row .* is a JSON object with .*, not '\[1, 2\]'"),
        ("{}", "m.jsonl:2: a row .* with a step, a phase"),
        ('{"step": "x", "phase": "train"}', "m.jsonl:2: a row .* with a step, a phase"),
        ('{"step": 1, "phase": "train", "loss": 1e999}', "m.jsonl:2: a row .* numbers"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1, "phase": "train"}}\n{line}\n', errors="surrogateescape")
    refused(lambda: read_metrics(path), message)


def test_rows_that_find_the_disk_full_are_written_later(tmp_path):
    path = tmp_path / "m.jsonl"
    with MetricsFile(path) as file:
        file.append(rows(0)[0])
        with files_of_at_most(path.stat().st_size + 10):
            for row in rows(10, 20):
                file.append(row)
            assert file.fault == f"{path} cannot be written: File too large"
            assert list(read_metrics(path)) == rows(0)
        file.append(rows(30)[0])
        assert not file.fault
    assert list(read_metrics(path)) == rows(0, 10, 20, 30)


def test_rows_that_are_never_written_leave_the_ones_before(tmp_path):
    path = tmp_path / "m.jsonl"
    file = MetricsFile(path)
    file.append(rows(0)[0])
    with files_of_at_most(path.stat().st_size + 10):
        file.append(rows(10)[0])
        file.close()
    assert "File too large" in file.fault
    assert list(read_metrics(path)) == rows(0)
