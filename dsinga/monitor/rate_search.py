"""The outcome of a search for a learning rate: a loss for each rate, a suggestion, and a picture."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsinga.monitor.panels import Line, Panel, draw_panels

# Weight of the losses before in the running mean of the losses: with 100 rates, about ten of them count.
SMOOTHING = 0.9
# The suggestion is this part of the rate with the lowest loss.
PART_OF_LOWEST = 0.1
# A loss of this many times the lowest one has diverged.
DIVERGED = 4.0
LOSS_COLOUR, SMOOTHED_COLOUR, SUGGESTION_COLOUR = "#999999", "#0072b2", "#d55e00"


@dataclass(frozen=True)
class RateSearch:
    """Losses of a run whose learning rate grew from step to step, and the rate that they suggest.

    The search is Smith's range test (Cyclical Learning Rates for Training Neural Networks, WACV 2017, section 3.3);
    the suggestion is the rule of Howard and Gugger (Deep Learning for Coders, 2020, chapter 5): a tenth of the rate at
    which the smoothed loss is lowest.

    Attributes:
        rates: the learning rate of each step, rising.
        losses: the loss of each step, before its update; as many as there are rates.
        end: why the search ended, a sentence.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    end: str = ""

    @functools.cached_property
    def smoothed(self) -> list[float]:
        """The running mean of the losses, weighted exponentially and corrected for its start."""
        return smooth(self.losses)

    @functools.cached_property
    def lowest(self) -> int:
        """The index of the lowest smoothed loss."""
        return min(range(len(self.smoothed)), key=lambda i: self.smoothed[i])

    @property
    def suggestion(self) -> float | None:
        """The suggested learning rate, None where the loss was lowest in the first tenth of the search."""
        return PART_OF_LOWEST * self.rates[self.lowest] if self.lowest > len(self.rates) // 10 else None

    def __repr__(self) -> str:
        return f"<RateSearch of {len(self.rates)} rates: {self.sentence()}>"

    def sentence(self) -> str:
        """Return the suggestion with its reason, or why there is none."""
        span = f"from {self.rates[0]:.3g} to {self.rates[-1]:.3g}"
        if self.suggestion is None:
            return f"no learning rate {span} lowered the loss; begin with a lower one, or look at data and net"
        reason = f"a tenth of {self.rates[self.lowest]:.3g}, where the loss was lowest"
        if self.lowest == len(self.rates) - 1:
            reason += "; it was still falling, try higher rates, too"
        return f"the suggested learning rate is {self.suggestion:.2g}, {reason}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.sentence())}</p>{self.draw()}"

    def draw(self) -> str:
        """Return an SVG element with the losses by learning rate, smoothed and as they were, and the suggestion.

        Losses so high that the others could not be told apart are left out.
        """
        start, lowest = self.smoothed[0], self.smoothed[self.lowest]
        most = max(start + (start - lowest), start + 0.1 * abs(start))
        lines = {
            "loss": Line(self._points(self.losses, most), LOSS_COLOUR, "loss"),
            "smoothed": Line(self._points(self.smoothed, most), SMOOTHED_COLOUR, "smoothed"),
        }
        if self.suggestion is not None:
            values = [y for line in lines.values() for _, y in line.points]
            ends = [(self.suggestion, min(values)), (self.suggestion, max(values))]
            lines["suggestion"] = Line(ends, SUGGESTION_COLOUR, f"suggestion {self.suggestion:.2g}")
        panel = Panel("loss", lines, "learning rate", logarithmic=True)
        return draw_panels([panel], "loss by learning rate")

    def _points(self, losses: Sequence[float], most: float) -> list[tuple[float, float]]:
        return [(rate, loss) for rate, loss in zip(self.rates, losses, strict=True) if loss <= most]


def smooth(losses: Sequence[float]) -> list[float]:
    """Return the running mean of losses, weighted exponentially and corrected for its start as in Adam."""
    mean, means = 0.0, []
    for count, loss in enumerate(losses, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        means.append(mean / (1 - SMOOTHING**count))
    return means


def has_diverged(losses: Sequence[float]) -> bool:
    """Return whether the smoothed loss has left its lowest value far behind, or is not finite."""
    smoothed = smooth(losses)
    if not smoothed:
        return False
    lowest = min(smoothed)
    return not math.isfinite(smoothed[-1]) or smoothed[-1] - lowest > (DIVERGED - 1) * abs(lowest)
