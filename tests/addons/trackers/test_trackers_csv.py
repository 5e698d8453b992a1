"""The CSV file of a run, read with Python's csv module."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from dsinga.extensions import CSV, CSVLogger
from dsinga.testing import SimulatedLoop
from tests.core.nn.test_nn_loops import X, Y, net
from tests.support.refusals import refused


def metrics_of(phase: str, step: int) -> dict[str, float]:
    """A loss with many digits, an accuracy in validations only, and from step 100 on a metric of its own."""
    metrics = {"loss": 1 / 3 + step / 7}
    if phase == "val":
        metrics["accuracy"] = step / 1000
    return metrics | ({'late, or "quoted"': math.inf if step == 105 else step} if step >= 100 else {})


def lines(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def assert_holds(path: Path, loop: SimulatedLoop) -> None:
    found = lines(path)
    assert len(found) == len(loop.rows) > 50
    for line, row in zip(found, loop.rows, strict=True):
        filled = {name: cell for name, cell in line.items() if cell != ""}
        assert filled.pop("phase") == row["phase"]
        assert {name: float(cell) for name, cell in filled.items()} == {
            name: value for name, value in row.items() if name != "phase"
        }


def test_each_row_is_a_line_whatever_metrics_come_late(tmp_path: Path) -> None:
    loop = SimulatedLoop([CSV(tmp_path / "deep" / "rows.csv")], metrics_of).run()
    assert_holds(tmp_path / "deep" / "rows.csv", loop)
    assert not list(tmp_path.glob("deep/*.draft"))


@pytest.mark.parametrize("step", [7, 70, 105, 112, 200])
def test_a_resumed_run_goes_on_with_the_file(tmp_path: Path, step: int) -> None:
    path = tmp_path / "metrics.csv"
    unbroken = SimulatedLoop([CSV(path)], metrics_of).run()
    with open(path, "a", encoding="utf-8") as file:
        file.write("205,tra")  # a process killed while it writes
    resumed = SimulatedLoop([CSV(path)], metrics_of).run(unbroken.checkpoints[step])
    assert_holds(path, resumed)
    assert not list(tmp_path.glob("*.old"))


def test_a_new_run_keeps_the_file_of_an_earlier_one(tmp_path: Path) -> None:
    first = SimulatedLoop([CSV()], metrics_of, workspace=tmp_path).run()
    second = SimulatedLoop([CSV()], lambda phase, step: {"loss": step}, workspace=tmp_path).run()
    assert_holds(tmp_path / "metrics.csv.old", first)
    assert_holds(tmp_path / "metrics.csv", second)


def test_a_file_that_is_none_of_ours_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    checkpoint = SimulatedLoop([], metrics_of).run().checkpoints[70]
    path.write_text("name,price\napple,3\n")
    refused(lambda: SimulatedLoop([CSV(path)], metrics_of).run(checkpoint), r"'step'; name another path")
    assert path.read_text() == "name,price\napple,3\n"


def test_a_csv_of_several_fits_and_of_a_resumed_one(tmp_path: Path):
    path, model = tmp_path / "rows.csv", net()
    for _ in range(2):
        model.fit(X, Y, epochs=2, callbacks=CSVLogger(path, append=True), progress=False)
    run: dict[str, Any] = {"workspace": tmp_path / "run", "checkpoint_freq": 3, "progress": False}
    model.fit(X, Y, epochs=1, callbacks=[CSVLogger(path, append=True)], **run)
    model.fit(X, Y, epochs=2, callbacks=[CSVLogger(path, append=True)], resume=True, **run)
    steps = [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]]
    assert steps == [3, 6, 3, 6, 3, 6]
    model.fit(X, Y, callbacks=CSVLogger(path), progress=False)
    assert len(path.read_text().splitlines()) == 2


def test_a_logger_of_keras_writes_commas_alone_and_outside_of_a_workspace_to_a_path() -> None:
    refused(lambda: SimulatedLoop([CSV()], metrics_of).run(), "extension CSV", "give it path")
    refused(lambda: CSVLogger("a.csv", separator=";"), "CSVLogger writes columns separated by commas, not by ';'")
