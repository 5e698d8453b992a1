"""The notebook about fields runs in a fresh kernel of a checkout, and beats simple forecasts in few epochs."""

import nbformat
import pytest

from tests.support.notebook_cells import ROOT, execute, shown, streams, value


def check_errors(book):
    errors = value(book, "errors")
    assert errors["net"] < errors["regression at each point"] < errors["persistence"]
    errors = value(book, "sea-errors")
    assert errors["net"] < errors["persistence"] < errors["climatology"]


def check_pictures(book):
    assert shown(book, "text/html", "open")
    assert shown(book, "image/png", "net maps sea-map")
    assert {name for name, _ in streams(book)} == {"windows"}


def test_the_saved_outputs_are_those_of_a_long_run():
    book = nbformat.read(ROOT / "notebooks" / "fields.ipynb", as_version=4)
    check_errors(book)
    check_pictures(book)


@pytest.mark.ci
def test_it_runs_in_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("DSINGA_EPOCHS", "1")
    parts = {  # of the stores of the checkout, so that it takes seconds
        "open": ('era5.zarr")', 'era5.zarr").isel(latitude=slice(12), longitude=slice(12))'),
        "sea": ("compute()", "isel(lat=slice(15, 30), lon=slice(None, None, 3)).compute()"),
    }
    changed = {name: lambda source, pair=pair: source.replace(*pair) for name, pair in parts.items()}
    check_pictures(execute("fields", tmp_path, changed=changed))


@pytest.mark.slow
def test_the_nets_forecast_better_than_persistence_regression_and_climatology(tmp_path, monkeypatch):
    monkeypatch.setenv("DSINGA_EPOCHS", "10")
    check_errors(execute("fields", tmp_path, timeout=110))
