"""The base class of dashboard panels: shows a figure, or a sentence while there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bokeh.models import Column, Div
from bokeh.plotting import figure

from dsinga.cluster.dashboard.history import SLOTS, RunHistory
from dsinga.cluster.dashboard.records import RunRecord

NO_RUN = "no run of dsinga yet"
SLOT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#777777")
assert len(SLOT_COLOURS) == SLOTS

# Returns the runs that a page shows.
Choice = Callable[[], Sequence[RunRecord]]

SENTENCE_STYLE = {"color": "#666", "font-size": "14px", "text-align": "center", "padding-top": "18%"}


class DashboardPanel:
    """A part of a dashboard page that draws itself again after changes; ``root`` is its Bokeh model.

    ``choose`` returns the runs to show, by default the newest run of each colour.
    """

    def __init__(self, history: RunHistory, title: str, choose: Choice | None = None):
        self.history = history
        self.title = title
        self.choose = choose or history.shown
        self._drawn: Any = None
        self._sentence = Div(text=NO_RUN, styles=SENTENCE_STYLE, sizing_mode="stretch_width")
        self.root = Column(self._sentence, sizing_mode="stretch_both", name=title)

    def update(self) -> None:
        """Draw the panel if the history, the runs or the settings have changed."""
        records = list(self.choose())
        state = self.history.version, [record.run for record in records], self.settings()
        if state != self._drawn:
            self.draw(records)
            self._drawn = state

    def settings(self) -> Any:
        """Return what the user has chosen on the panel; a change draws it again."""

    def draw(self, records: Sequence[RunRecord]) -> None:
        """Draw some runs."""
        raise NotImplementedError

    def say(self, sentence: str) -> None:
        """Show a sentence instead of the figure, or nothing for ""."""
        self._sentence.text = f"<b>{self.title}</b><br><br>{sentence}"
        self._sentence.visible = bool(sentence)


def new_figure(title: str, **options: Any) -> Any:
    """Return an empty figure in the look of Dask's panels."""
    chart = figure(
        title=title,
        sizing_mode="stretch_both",
        toolbar_location="above",
        tools="pan,box_zoom,xwheel_zoom,reset",
        min_border_right=15,
        **options,
    )
    chart.title.text_font_size = "13px"
    for axis in chart.axis:
        axis.axis_label_text_font_size = "11px"
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_standoff = 3
    chart.xgrid.grid_line_color = None
    return chart
