"""Curves are well-formed SVG, inside their panel, and have the values of the rows."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.addons.pictures.curves_svg import draw_curves, ticks
from dsinga.addons.pictures.panels import COLOURS, Line, Panel, draw_panels, panels_figure, thin

SVG = "{http://www.w3.org/2000/svg}"
finite = st.floats(-1e9, 1e9, allow_subnormal=False).map(lambda x: float(f"{x:.6g}"))


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def lines(svg):
    """Return the vertices (x, y) in pixels of each stretch of each line; a line with a gap has several stretches."""
    root = ElementTree.fromstring(svg)
    paths = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "1.6"]
    return [
        [[tuple(map(float, vertex.split())) for vertex in stretch.split("L")] for stretch in path.split("M")[1:]]
        for path in paths
    ]


def test_a_panel_for_loss_and_one_for_accuracy():
    svg = draw_curves([{"step": s, "phase": "train", "loss": 1.0 / (s + 1), "accuracy": s / 10} for s in range(10)])
    assert {"loss", "accuracy", "step", "train 0.1", "train 0.9"} <= set(texts(svg))
    assert len(lines(svg)) == 2


def test_a_line_for_each_phase_in_the_order_train_val_test():
    rows = [
        {"step": s, "phase": phase, "loss": s + i} for i, phase in enumerate(["test", "train", "val"]) for s in (0, 1)
    ]
    legend = [text for text in texts(draw_curves(rows)) if text.split()[0] in ("train", "val", "test")]
    assert sorted(legend, key=legend.index, reverse=True) == ["train 2", "val 3", "test 1"]


def test_without_values_the_picture_says_so():
    assert texts(draw_curves([])) == ["no rows yet"]
    assert texts(draw_curves([{"step": 0, "phase": "train", "loss": math.nan}])) == ["no rows yet"]


def test_the_lowest_value_is_lowest():
    (((_, high), (_, low)),) = lines(draw_curves([{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}]))[0]
    assert low > high  # SVG counts downwards


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_leaves_a_gap(bad):
    rows = [{"step": s, "phase": "train", "loss": bad if s == 5 else 1.0 + s} for s in range(10)]
    (line,) = lines(draw_curves(rows))
    assert [len(stretch) for stretch in line] == [5, 4]


def test_names_are_escaped():
    svg = draw_curves([{"step": 0, "phase": "<&>", "a<b": 1.0}], names=["a<b"])
    assert "a<b" in texts(svg)
    assert "<&> 1" in texts(svg)


@given(st.lists(st.tuples(st.integers(0, 10**6), finite), min_size=1, max_size=30))
def test_everything_lies_inside_its_panel(points):
    svg = draw_curves([{"step": step, "phase": "train", "loss": y} for step, y in sorted(points)])
    assert "nan" not in svg.replace("dominant", "")
    for line in lines(svg):
        for stretch in line:
            for x, y in stretch:
                assert 55 <= x <= 367
                assert 39 <= y <= 223


@given(finite, st.floats(1e-6, 1e9), st.integers(2, 10))
def test_ticks_are_round_few_and_inside(low, extent, max_intervals):
    high = low + max(extent, abs(low) * 1e-3)
    values = ticks(low, high, max_intervals)
    assert len(values) <= max_intervals + 1
    slack = (high - low) * 1e-6
    assert all(low - slack <= tick <= high + slack for tick in values)
    first_digits = {f"{b - a:.3e}"[0] for a, b in zip(values, values[1:], strict=False)}
    assert first_digits <= {"1", "2", "5"}


@given(st.lists(finite, min_size=30, max_size=300))
def test_thinning_keeps_ends_and_extremes(values):
    points = list(enumerate(values))
    selection = thin(points, max_points=20)
    assert len(selection) <= 20
    assert selection == sorted(selection)
    assert (selection[0], selection[-1]) == (points[0], points[-1])
    assert {min(values), max(values)} <= {y for _, y in selection}


def test_a_long_run_makes_a_small_picture():
    rows = [{"step": s, "phase": "train", "loss": 1 / (s + 1), "accuracy": 0.5} for s in range(50_000)]
    assert len(draw_curves(rows)) < 20_000
    assert re.search(r">40k<", draw_curves(rows))


def test_the_legend_of_many_lines_is_above_the_panel_and_below_its_title():
    lines = {f"framework {n}": Line([(0.5, n), (1.5, n + 0.25)], COLOURS[n]) for n in range(5)}
    panel = Panel("accuracy", lines, x_label="seconds", integer_ticks=False)
    words = texts(draw_panels([panel], "accuracy by time"))
    assert {"seconds", "accuracy", *(f"framework {n} {n + 0.25:.4g}" for n in range(5))} <= set(words)
    assert "0.6" in words or "0.8" in words  # an axis of seconds has ticks between integers
    figure = panels_figure([panel], "accuracy by time")
    figure.draw_without_rendering()
    (axis,) = figure.axes
    legend, title = axis.get_legend().get_window_extent(), axis._left_title.get_window_extent()
    assert axis.get_window_extent().y1 <= legend.y0
    assert legend.y1 <= title.y0
    assert figure.bbox.contains(title.x0, title.y1)
    assert figure.bbox.x1 >= legend.x1


def test_an_axis_of_values_in_powers_of_ten():
    line = Line([(1, 0.4), (4, 40.0), (16, 4000.0)], COLOURS[0])
    axes = {"logarithmic": True, "x_ticks": (1, 4, 16), "y_axis": "log"}
    panel = Panel("ms", {"time": line}, "workers", **axes)
    assert {"1", "4", "16", "10", "100", "1000", "time 4000"} <= set(texts(draw_panels([panel], "time by workers")))
    (axis,) = panels_figure([panel], "time by workers").axes
    (x0, y0), (x1, y1), (x2, y2) = axis.transData.transform(line.points)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)
    assert y2 > y0


@given(st.floats(1e-5, 1e5), st.floats(1.3, 1e8))
@settings(max_examples=25, deadline=None)
def test_a_logarithmic_axis_has_some_round_numbers(low, ratio):
    line = Line([(0, low), (1, low * ratio)], COLOURS[0])
    figure = panels_figure([Panel("ms", {"time": line}, y_axis="log")], "time")
    (axis,) = figure.axes
    bottom, top = axis.get_ylim()
    shown = [tick for tick in axis.get_yticks() if bottom <= tick <= top]
    assert 1 <= len(shown) <= 10
    if ratio > 10:
        assert {f"{tick:e}"[0] for tick in shown} <= {"1", "2", "5"}


def test_a_gap_an_empty_picture_and_a_line_without_a_name():
    lines = {
        "train": Line([(0, 1.0), (1, math.nan), (2, 3.0)], COLOURS[0]),
        "": Line([(0, 2), (2, 2)], COLOURS[1], None),
    }
    assert [text for text in texts(draw_panels([Panel("loss", lines)], "loss")) if text.startswith("train")] == [
        "train 3"
    ]
    assert texts(draw_panels([], "nothing <yet>")) == ["nothing <yet>"]


def test_a_picture_in_a_page_has_no_rule_for_other_pictures():
    picture = draw_panels([Panel("loss", {"train": Line([(0, 1.0), (1, 2.0)], COLOURS[0])})], 'loss "by" step')
    assert "<style" not in picture
    assert ElementTree.fromstring(picture).get("aria-label") == 'loss "by" step'


def test_an_axis_of_shares_in_percent():
    line = Line([(1, 0.25), (2, 0.5)], COLOURS[0])
    picture = draw_panels([Panel("share", {"a": line}, y_axis="percent", includes=(0, 1))], "share")
    assert {"0%", "20%", "100%"} <= set(texts(picture))
