"""The quickstart notebook runs in a fresh kernel."""

import pytest

import dsinga
from tests.support.notebook_cells import execute, outputs, shown, streams, value

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run."""
    return execute("quickstart", tmp_path_factory.mktemp("checkout"))


def test_no_cell_prints_or_warns_but_the_one_that_prints_the_model(executed):
    printed = dict(streams(executed))
    assert list(printed) == ["print"]
    assert printed["print"].name == "stdout"
    job = dsinga.loads(printed["print"].text)
    assert [layer.name for layer in job.neuralnet.layer if layer.convolution_conf] == ["conv1", "conv2"]


def test_the_net_classifies_digits(executed):
    found = value(executed, "evaluate")
    assert found["test"]["accuracy"] >= 0.97
    assert found["validation"]["accuracy"] >= 0.94


def test_history_and_checkpoint_agree_with_the_result(executed):
    last = value(executed, "history")
    assert (last["step"], last["epoch"], last["phase"]) == (375, 20, "val")
    rows = value(executed, "history-columns")
    assert [epoch for epoch, _ in rows] == [16, 17, 18, 19, 20]
    assert rows[-1] == (20, last["accuracy"])
    assert value(executed, "evaluate")["validation"]["loss"] <= last["loss"] + 1e-6  # that of the best epoch
    assert value(executed, "checkpoint") == value(executed, "evaluate")["test"]


def test_objects_are_displayed_as_html(executed):
    assert shown(executed, "text/html", "job picture cluster train resume")


def test_figures_are_drawn(executed):
    assert shown(executed, "image/png", "look curves confusion mistakes filters features")


def test_the_progress_display_ends_with_the_last_step(executed):
    (picture,) = outputs(executed, "train")
    assert "step 375/375" in picture.data["text/plain"]
    (resumed,) = outputs(executed, "resume")
    assert "step 469/469" in resumed.data["text/plain"]
