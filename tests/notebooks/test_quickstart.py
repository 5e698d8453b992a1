"""The quickstart notebook runs in a fresh kernel."""

import pytest

from tests.support.notebook_cells import execute, outputs, value


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run."""
    return execute("quickstart", tmp_path_factory.mktemp("checkout"))


def test_no_cell_prints_or_warns(executed):
    streams = [
        output for cell in executed.cells for output in cell.get("outputs", ()) if output.output_type == "stream"
    ]
    assert streams == []


def test_the_net_classifies_digits(executed):
    assert value(executed, "evaluate")["accuracy"] >= 0.97


def test_history_and_checkpoint_agree_with_the_result(executed):
    last = value(executed, "history")
    assert (last["step"], last["phase"]) == (600, "test")
    assert last["accuracy"] == pytest.approx(value(executed, "evaluate")["accuracy"])
    assert value(executed, "history-columns")[-1] == (600, last["accuracy"])
    assert value(executed, "checkpoint") == value(executed, "evaluate")


@pytest.mark.parametrize("name", ["job", "picture", "cluster", "train", "resume"])
def test_objects_are_displayed_as_html(executed, name):
    assert [output.data["text/html"] for output in outputs(executed, name)][0]


@pytest.mark.parametrize("name", ["look", "confusion", "mistakes", "filters", "features"])
def test_figures_are_drawn(executed, name):
    assert [output.data["image/png"] for output in outputs(executed, name)][0]


def test_the_progress_display_ends_with_the_last_step(executed):
    (picture,) = outputs(executed, "train")
    assert "step 600/600" in picture.data["text/plain"]
    (resumed,) = outputs(executed, "resume")
    assert "step 700/700" in resumed.data["text/plain"]
