"""Tables and curves are written in every kind of run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from tests.cluster.runs.test_loop_products import KINDS, train_kind


def writes_a_table(result: Any, folder: Path) -> None:
    assert len((folder / "metrics.csv").read_text().splitlines()) == 1 + len(result.history)


def writes_curves(result: Any, folder: Path) -> None:
    assert list((folder / "tensorboard").rglob("events.*"))


TRACKERS: dict[str, Callable[[Any, Path], None]] = {"type: kCSV": writes_a_table, "type: kTensorBoard": writes_curves}


@pytest.mark.parametrize("text", TRACKERS, ids=lambda text: text.split()[1])
@pytest.mark.parametrize("kind", KINDS)
def test_trackers_write_in_every_kind_of_run(kind: str, text: str, threads: Client, tmp_path: Path) -> None:
    TRACKERS[text](train_kind(kind, threads, tmp_path, text), tmp_path)
