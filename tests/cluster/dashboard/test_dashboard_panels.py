"""From events to the data sources of panels, without a browser."""

import math
import types
from typing import Any

import numpy as np
import pytest

from dsinga.cluster.dashboard.history import RunHistory
from dsinga.cluster.dashboard.line_panel import LinePanel, bokeh_time, loss_curves, metric_names
from dsinga.cluster.dashboard.pages import PANELS
from dsinga.cluster.dashboard.panel import SLOT_COLOURS, DashboardPanel
from dsinga.cluster.dashboard.run_panels import MAX_NAMES, QueuePanel, TimePanel
from tests.support.run_events import GROUP, begin, end, round_of

SCHEDULER = types.SimpleNamespace(plugins={})


def rows(phase: str, **columns: list[float]) -> list[dict[str, Any]]:
    """Return rows of the history, at the steps 10, 20, ...."""
    values = zip(*columns.values(), strict=True)
    return [
        {"step": 10 * (k + 1), "phase": phase, "time": 0.1 * k, **dict(zip(columns, each, strict=True))}
        for k, each in enumerate(values)
    ]


def history_of(*events: Any) -> RunHistory:
    history = RunHistory()
    history.replay(enumerate(events))
    return history


def panel(name: str, history: RunHistory, scheduler: Any = SCHEDULER) -> Any:
    """Return a panel that has been drawn."""
    drawn: DashboardPanel = PANELS[name](history, scheduler)
    drawn.update()
    return drawn


def curves(drawn: LinePanel) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Return the points of each curve, by run and kind."""
    found = {}
    for source in drawn.lines:
        data = source.data
        for run, kind, x, y in zip(data["run"], data["kind"], data["xs"], data["ys"], strict=True):
            found[run, kind] = list(x), list(y)
    return found


def is_logarithmic(drawn: LinePanel) -> bool:
    (scale,) = [scale for scale, chart in drawn.figures.items() if chart.visible]
    return scale == "log"


@pytest.mark.parametrize("name", PANELS)
def test_without_a_run_a_panel_says_so(name: str) -> None:
    drawn = panel(name, RunHistory())
    (shown,) = [child for child in drawn.root.children if child.visible]
    assert "no run of dsinga yet" in shown.text


def test_the_loss_of_two_runs() -> None:
    drawn = panel(
        "loss",
        history_of(
            begin("1111aaaa"),
            begin("2222bbbb", job="lenet"),
            round_of("1111aaaa", rows=rows("train", loss=[2.0, 1.0], accuracy=[0.1, 0.5])),
            round_of("2222bbbb", rows=rows("train", loss=[3.0, 2.5]) + rows("val", loss=[4.0])),
            round_of("1111aaaa", rows=rows("test", loss=[1.5])),
        ),
    )
    assert curves(drawn) == {
        ("mlp", "train"): ([10, 20], [2.0, 1.0]),
        ("mlp", "test"): ([10], [1.5]),
        ("lenet", "train"): ([10, 20], [3.0, 2.5]),
        ("lenet", "val"): ([10], [4.0]),
    }
    legend = drawn.figures["linear"].legend[0]
    assert [item.label.value for item in legend.items if item.visible] == ["mlp", "lenet", "train", "val", "test"]
    glyphs = [item.renderers[0].glyph.line_color for item in legend.items[:2]]
    assert glyphs == list(SLOT_COLOURS[:2])
    assert not drawn.root.children[0].visible


def test_the_loss_of_a_job_without_rows_of_training_is_that_of_batches() -> None:
    history = history_of(begin("a"), round_of("a", step=7, metrics={"loss": 0.5}, rows=rows("test", loss=[1.0])))
    assert loss_curves(history.runs["a"]) == [("train", [7], [0.5]), ("test", [10], [1.0])]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5.0, 0.01], True), ([5.0, 0.5], False), ([5.0, -0.01], False), ([5.0, 0.0], False), ([math.nan, 1.0], False)],
)
def test_the_loss_is_logarithmic_over_two_decades(values: list[float], expected: bool) -> None:
    drawn = panel("loss", history_of(begin("a"), round_of("a", rows=rows("train", loss=values))))
    assert is_logarithmic(drawn) is expected


def test_the_scale_changes_with_the_values() -> None:
    history = history_of(begin("a"), round_of("a", rows=rows("train", loss=[5.0, 4.0])))
    drawn = panel("loss", history)
    assert not is_logarithmic(drawn)
    history.replay([(9.0, round_of("a", rows=rows("test", loss=[0.01])))])
    drawn.update()
    assert is_logarithmic(drawn)
    assert len(drawn.figures) == 2


def test_the_user_chooses_a_metric() -> None:
    columns = {"loss": [2.0], "accuracy": [0.5], "perplexity": [70.0]}
    history = history_of(begin("a"), round_of("a", rows=rows("val", **columns)))
    assert metric_names(list(history.runs.values())) == ["accuracy", "perplexity"]
    drawn = panel("metrics", history)
    assert drawn.metric.visible
    assert curves(drawn) == {("mlp", "val"): ([10], [0.5])}
    drawn.metric.value = "perplexity"
    assert curves(drawn) == {("mlp", "val"): ([10], [70.0])}
    assert drawn.figures["linear"].yaxis[0].axis_label == "perplexity"


def test_speed_bytes_and_staleness_over_the_time() -> None:
    event = round_of("a", samples_per_second=5.0, groups=[GROUP], staleness=[(0, 10, 15, 4), (1, 4, 2, 1)])
    history = history_of(begin("a"), event)
    at = [bokeh_time(1)]
    assert curves(panel("speed", history)) == {("mlp", ""): (at, [5.0])}
    assert curves(panel("bytes", history)) == {
        ("mlp", "between processes"): (at, [60.0]),
        ("mlp", "within one"): (at, [4.0]),
    }
    assert curves(panel("staleness", history)) == {("mlp", "group 0"): (at, [1.5]), ("mlp", "group 1"): (at, [0.5])}


def test_synchronous_runs_have_no_staleness() -> None:
    drawn = panel("staleness", history_of(begin("a"), round_of("a", groups=[GROUP])))
    assert "synchronous runs have no stale gradients" in drawn.root.children[0].text


def test_a_bar_for_each_worker_of_running_runs() -> None:
    history = history_of(
        begin("a", workers=[["tcp://x", "tcp://y"]]),
        begin("b", job="ended"),
        round_of("a", groups=[GROUP]),
        round_of("b", groups=[GROUP, {**GROUP, "group": 1}]),
        end("b"),
    )
    drawn: TimePanel = panel("time", history)
    assert drawn.source.data == {
        "worker": ["mlp w0", "mlp w1"],
        "name": ["mlp: worker 0", "mlp: worker 1"],
        "address": ["tcp://x", "tcp://y"],
        "compute": [100.0, 200.0],
        "exchange": [50.0, 25.0],
        "data": [50.0, 25.0],
    }
    history.replay([(9.0, end("a"))])
    drawn.update()
    assert drawn.source.data["worker"] == [f"ended g{group} w{number}" for group in (0, 1) for number in (0, 1)]


def test_bars_of_many_workers_have_no_room_for_names() -> None:
    seconds = {kind: [1.0] * 40 for kind in ("compute", "exchange", "data", "crossing", "within")}
    drawn = panel("time", history_of(begin("a"), round_of("a", groups=[{"group": 0, "steps": 1, **seconds}])))
    assert len(drawn.source.data["worker"]) == 40 > MAX_NAMES
    assert drawn.root.children[1].yaxis[0].major_label_text_font_size == "0px"


def test_the_table_has_runs_that_run_wait_and_have_ended() -> None:
    history = history_of(begin("a", user="ann", workers=[["x", "y"]]), begin("b", job="lenet"), end("b"))
    waiting = {"run": "c", "job": "rbm", "user": "bob", "state": "waiting", "threads": 4, "since": 0.0}
    queue = types.SimpleNamespace(runs={"c": waiting, "a": {**waiting, "run": "a", "state": "running"}})
    drawn: QueuePanel = panel("queue", history, types.SimpleNamespace(plugins={"dsinga-queue": queue}))
    data = drawn.source.data
    assert data["job"] == ["mlp", "rbm", "lenet"]
    assert data["state"] == ["running", "waiting", "done"]
    assert data["workers"] == [2, 4, ""]
    assert data["step"] == ["0/90", "", "90/90"]
    assert data["user"] == ["ann", "bob", ""]
    drawn.source.selected.indices = [2]
    assert [record.run for record in drawn.selected()] == ["b"]


def test_a_panel_is_drawn_anew_only_when_something_has_changed() -> None:
    history = history_of(begin("a"), begin("b"), round_of("a", rows=rows("train", loss=[2.0])))
    drawn: LinePanel = panel("loss", history)
    before = [source.data for source in drawn.lines]
    drawn.update()
    assert all(source.data is data for source, data in zip(drawn.lines, before, strict=True))
    history.replay([(9.0, round_of("b", rows=rows("train", loss=[1.0])))])
    drawn.update()
    assert [source.data is data for source, data in zip(drawn.lines, before, strict=True)][:3] == [True, False, True]
    np.testing.assert_array_equal(drawn.lines[1].data["ys"], [[1.0]])
