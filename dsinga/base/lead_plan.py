"""LeadPlan: what the record of each lead consists of, where a net is trained on several leads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Shape = tuple[int, ...]


class LeadChannels(NamedTuple):
    """The channels of the record of one lead, in their order.

    Attributes:
        source: where each comes from: 0 the record that is read, n the prediction of n leads before.
        channel: the number of the channel there.
        mask: the channel of the record that is read with 0 where a point is masked, -1 for no mask.
        fill: the number at masked points.
    """

    source: tuple[int, ...]
    channel: tuple[int, ...]
    mask: tuple[int, ...]
    fill: tuple[float, ...]


@dataclass(frozen=True)
class LeadPlan:
    """How records of several leads are made of a record that is read, which has the inputs that are known in advance.

    Attributes:
        shape: the shape (C, *space) of the record of a lead.
        label_shape: the shape (C', *space) of the labels of a lead, with a last channel of weights if ``weighted``.
        records: the channels of each lead.
        before: points of context before a prediction, along each axis of space.
        after: those after it.
        modes: what context beyond a prediction has, along each axis of space: "zero", "edge", "reflect", "periodic".
        weighted: whether labels have a channel of weights, which is the same for all leads.
        weights: the weight of each lead in the loss.
        starts: the step of training from which each lead is trained.
    """

    shape: Shape
    label_shape: Shape
    records: tuple[LeadChannels, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    modes: tuple[str, ...]
    weighted: bool
    weights: tuple[float, ...]
    starts: tuple[int, ...]

    @property
    def leads(self) -> int:
        """The number of leads."""
        return len(self.records)

    @property
    def channels(self) -> int:
        """The channels of a prediction."""
        return self.label_shape[0] - self.weighted

    @property
    def is_padded(self) -> bool:
        """Whether records have context that predictions lack."""
        return any((*self.before, *self.after))

    def shares(self, leads: int) -> tuple[float, ...]:
        """Return the share of each of the first leads in the loss; they add up to 1."""
        total = sum(self.weights[:leads])
        return tuple(weight / total for weight in self.weights[:leads])

    def changes(self) -> tuple[tuple[int, int], ...]:
        """Return (step, leads): how many leads are trained from a step of training on, in the order of the steps."""
        return tuple((step, sum(start <= step for start in self.starts)) for step in sorted(set(self.starts)))
