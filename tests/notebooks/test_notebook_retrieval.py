"""The notebook about retrieval runs in a fresh kernel."""

import pytest

from tests.support.notebook_cells import execute, outputs, value


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


@pytest.mark.parametrize("name", ["job", "train"])
def test_objects_are_displayed_as_html(executed, name):
    assert [output.data["text/html"] for output in outputs(executed, name)][0]


@pytest.mark.parametrize("name", ["examples", "curve"])
def test_pictures_are_drawn(executed, name):
    assert [output.data["image/png"] for output in outputs(executed, name)][0]


def test_no_cell_prints_or_warns(executed):
    for cell in executed.cells:
        assert not [output for output in cell.get("outputs", ()) if output.output_type == "stream"]
