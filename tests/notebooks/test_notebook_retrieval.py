"""The notebook about retrieval runs in a fresh kernel."""

import pytest

from tests.support.notebook_cells import execute, shown, streams, value

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run."""
    return execute("retrieval", tmp_path_factory.mktemp("checkout"), environment=["TMPDIR"])


def test_half_a_digit_is_classified_mostly_right(executed):
    assert min(value(executed, "accuracy")) > 0.75


def test_codes_rank_better_than_pixels(executed):
    precision = value(executed, "map")
    assert min(precision["lower halves for upper"], precision["upper halves for lower"]) > 0.6
    assert max(precision["by pixels, lower for upper"], precision["chance"]) < 0.3


def test_objects_are_displayed_as_html(executed):
    assert shown(executed, "text/html", "job train")


def test_pictures_are_drawn(executed):
    assert shown(executed, "image/png", "examples curve")


def test_no_cell_prints_or_warns(executed):
    assert not streams(executed)
