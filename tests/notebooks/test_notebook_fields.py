"""The notebook about fields runs in a fresh kernel, on the real data, and beats simple forecasts in few epochs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.notebook_cells import ROOT, execute, shown, streams, value

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run, with stores in a folder of their own."""
    folder, stores = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("stores")
    raw = Path(os.environ["DSINGA_DATA"]) / "climate"
    command = [sys.executable, ROOT / "datasets" / "climate" / "make_stores.py", raw, stores]
    subprocess.run(command, check=True, timeout=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSINGA_EPOCHS", "10")
        here = {name: lambda source: source.replace("../datasets/climate", str(stores)) for name in ("open", "sea")}
        return execute("fields", folder, timeout=300, changed=here)


def test_the_net_forecasts_better_than_persistence_and_a_regression(executed):
    errors = value(executed, "errors")
    assert errors["net"] < errors["regression at each point"] < errors["persistence"]


def test_the_net_forecasts_the_sea_better_than_persistence_and_climatology(executed):
    errors = value(executed, "sea-errors")
    assert errors["net"] < errors["persistence"] < errors["climatology"]


def test_it_shows_the_dataset_and_maps(executed):
    assert shown(executed, "text/html", "open")
    assert shown(executed, "image/png", "maps sea-map")


def test_only_the_cell_of_windows_prints(executed):
    assert {name for name, _ in streams(executed)} == {"windows"}
