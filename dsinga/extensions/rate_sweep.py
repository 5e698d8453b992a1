"""The extension of a search for a learning rate: it keeps the losses and ends the run when they diverge."""

from __future__ import annotations

from dsinga.errors import UserError
from dsinga.extensions.extension import Extension, State
from dsinga.extensions.loop_view import LoopView
from dsinga.extensions.triggers import EverySteps
from dsinga.monitor import has_diverged
from dsinga.training import Metrics


class RateSweep(Extension):
    """Keeps the loss of each step in ``losses``, and ends training when the smoothed loss diverges.

    It pauses after each step, so that a run that ends by a loss that is not finite has shown all losses before it.
    """

    def __init__(self) -> None:
        self.trigger = EverySteps(1)
        self.losses: list[float] = []

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Keep the loss."""
        metrics = loop.means("train", sums)
        loss = metrics.get("loss", metrics.get("reconstruction_error"))  # the latter is that of Boltzmann machines
        if loss is None:
            raise UserError("a search for a learning rate needs a net that reports a loss; add a loss layer")
        self.losses.append(loss)

    def start(self, loop: LoopView) -> None:
        """End a resumed run at once if its loss has diverged."""
        self.run(loop)

    def run(self, loop: LoopView) -> None:
        """End training when the loss diverges."""
        if has_diverged(self.losses):
            loop.stop("the loss diverges")

    def state_dict(self) -> State:
        """Return the losses."""
        return {"losses": self.losses}

    def load_state(self, state: State) -> None:
        """Go on from these losses."""
        self.losses = [*state.get("losses", [])]
