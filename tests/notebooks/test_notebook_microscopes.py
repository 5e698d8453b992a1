"""The notebook about microscopes runs in a fresh kernel, and its net finds more cells than a threshold."""

import pytest
import zarr

from tests.support.notebook_cells import execute, shown, streams, value

pytestmark = pytest.mark.ci


def test_a_net_finds_more_cells_than_a_threshold(tmp_path):
    book = execute("microscopes", tmp_path, environment=["TMPDIR"])
    scores = value(book, "scores")
    assert scores["flows"][0] > 0.9
    assert scores["flows"][1] > 0.8
    assert scores["threshold"][0] < 0.8
    assert shown(book, "text/html", "cells written")
    assert shown(book, "image/png", "windows net maps")
    assert not streams(book)
    (folder,) = tmp_path.glob("*/cells.ome.zarr/labels")
    labels = zarr.open_group(folder, mode="r")
    assert labels.attrs["ome"]["labels"] == ["cells", "found"]
