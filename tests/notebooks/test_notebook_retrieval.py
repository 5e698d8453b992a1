"""The notebook about retrieval, run as a person would: from a fresh kernel, beside the data sets."""

import pytest

from tests.support.notebook_cells import execute, outputs, value


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run."""
    return execute("retrieval", tmp_path_factory.mktemp("checkout"), environment=["TMPDIR"])


def test_half_a_digit_is_enough_to_tell_most(executed):
    assert min(value(executed, "accuracy")) > 0.75


def test_codes_find_what_pixels_do_not(executed):
    found = value(executed, "map")
    assert min(found["upper look for lower"], found["lower look for upper"]) > 0.6
    assert max(found["pixels of upper look for lower"], found["chance"]) < 0.3


@pytest.mark.parametrize("name", ["job", "train"])
def test_objects_show_themselves(executed, name):
    assert [output.data["text/html"] for output in outputs(executed, name)][0]


@pytest.mark.parametrize("name", ["examples", "curve"])
def test_pictures_are_drawn(executed, name):
    assert [output.data["image/png"] for output in outputs(executed, name)][0]


def test_no_cell_complains(executed):
    for cell in executed.cells:
        assert not [output for output in cell.get("outputs", ()) if output.output_type == "stream"]
