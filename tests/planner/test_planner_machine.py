"""What this machine takes for the layers of a net: together no less than the net as a whole."""

from __future__ import annotations

import pytest
from plannets import small_convnet

from dsinga.job import UpdaterConf
from dsinga.ops import get_ops
from dsinga.planner.machine import measured_machine, work_of
from dsinga.planner.store import Figures, RateStore
from dsinga.training import create_updater


class Told(RateStore):
    """Remembers what it was asked, by the text that tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Figures] = {}

    def get(self, what, measure):
        self.known[what] = super().get(what, measure)
        return self.known[what]


@pytest.mark.parametrize("crowd", [1, 2])
def test_the_layers_of_a_net_take_together_no_less_than_the_net(crowd: int) -> None:
    net, store = small_convnet(), Told()
    machine = measured_machine(net, create_updater(UpdaterConf(type="kSGD")), get_ops(), 1, crowd, store)
    times = [machine.time(work_of(stage, crowd)) for stage in net.stages]
    (whole,) = [figures[0] for what, figures in store.known.items() if ": net " in what]
    assert whole > 0
    assert sum(time.forward + time.backward for time in times) >= whole * (1 - 1e-9)
    assert all(rate > 0 for rate in machine.rates)
