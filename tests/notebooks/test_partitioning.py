"""The notebook about partitioning runs in a fresh kernel."""

import pytest

from tests.support.notebook_cells import execute, outputs, shown, streams, value

pytestmark = pytest.mark.ci

FIXED_RATES = """from dsinga.addons.planner import pricing
from dsinga.addons.planner.link import FREE_BARRIER
from tests.support.planner_nets import MACHINE

pricing.measure_machine = lambda *arguments: MACHINE
pricing.measure_barrier = lambda: FREE_BARRIER
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run with fixed rates in place of this machine's, and with a cache of its own."""
    return execute(
        "partitioning",
        tmp_path_factory.mktemp("checkout"),
        environment=["DASK_DSINGA__CACHE"],
        changed={"plan": lambda source: FIXED_RATES + source},
    )


def test_the_partitioned_net_trains_as_on_one_worker(executed):
    assert max(value(executed, "compare").values()) < 1e-2  # a pooling may choose another maximum
    single, three = value(executed, "accuracy")
    assert single > 0.9
    assert three == pytest.approx(single, abs=0.01)


def test_the_traffic_of_each_partitioning(executed):
    traffic = value(executed, "ways")
    assert traffic["all by rows"]["over bridges"] == 0
    assert traffic["all by features"]["gradients"] == 0
    assert traffic["ip by features"]["gradients"] == traffic["ip on worker 1"]["gradients"] > 0


def test_one_worker_is_the_fastest_for_so_small_a_net(executed):
    (text,) = [output.text for output in outputs(executed, "plan")]
    ms = {line[:16].strip(): float(line[16:25]) for line in text.splitlines()}
    assert list(ms.values()) == sorted(ms.values())
    assert {*list(ms)[:2]} == {"one worker", "auto"}
    assert ms["one worker"] == ms["auto"] < ms["data"]


def test_objects_are_displayed_as_html(executed):
    assert shown(executed, "text/html", "job cluster train plan-picture")


def test_the_task_stream_is_drawn(executed):
    assert shown(executed, "image/png", "stream")


def test_no_cell_prints_or_warns_but_the_one_with_the_plan(executed):
    assert [(name, output.name) for name, output in streams(executed)] == [("plan", "stdout")]
