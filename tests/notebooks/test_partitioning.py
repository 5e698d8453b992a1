"""The notebook about partitioning, run as a person would: from a fresh kernel, beside the data sets."""

import pytest

from tests.support.notebook_cells import execute, outputs, value


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run with a cache of its own."""
    return execute("partitioning", tmp_path_factory.mktemp("checkout"), environment=["DASK_DSINGA__CACHE"])


def test_the_cut_net_trains_as_one_worker(executed):
    assert max(value(executed, "compare").values()) < 1e-2  # a pooling may choose another maximum
    one, three = value(executed, "accuracy")
    assert one > 0.9
    assert three == pytest.approx(one, abs=0.01)


def test_each_way_to_cut_sends_what_the_text_says(executed):
    traffic = value(executed, "ways")
    assert traffic["all by rows"]["over bridges"] == 0
    assert traffic["all by features"]["gradients"] == 0
    assert traffic["ip by features"]["gradients"] == traffic["ip on worker 1"]["gradients"] > 0


def test_one_worker_is_among_the_best_for_so_small_a_net(executed):
    (text,) = [output.text for output in outputs(executed, "plan")]
    assert {"one worker", "auto"} & {line[:16].strip() for line in text.splitlines()[:2]}


@pytest.mark.parametrize("name", ["job", "cluster", "train", "plan-picture"])
def test_objects_show_themselves(executed, name):
    assert [output.data["text/html"] for output in outputs(executed, name)][0]


def test_the_task_stream_is_drawn(executed):
    assert [output.data["image/png"] for output in outputs(executed, "stream")][0]


def test_no_cell_complains(executed):
    for cell in executed.cells:
        said = [output for output in cell.get("outputs", ()) if output.output_type == "stream"]
        assert [output.name for output in said] == (["stdout"] if cell.id == "plan" else []), said
