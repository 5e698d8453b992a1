"""What sites that average their params send, by arithmetic, and the bytes that their servers send indeed."""

import numpy as np
import pytest

from dsinga.addons.planner.link import Link
from dsinga.addons.planner.plan import price_sites
from dsinga.cluster.server import Slice, SliceSpec
from tests.support.mean_groups import MeanGroups, rate
from tests.support.refusals import refused


def test_an_outer_step_of_four_sites_at_50_mbit():
    """Llama's 150 million weights, as in DiLoCo: 600 MB to each of the others."""
    plan = price_sites(4, 150_000_000, 1.5, Link(0.04, 50e6 / 8))
    full, rounded, _, small = plan.outer
    assert full.size == 3 * 4 * 150_000_000
    assert full.seconds == pytest.approx(0.04 + full.size / 6.25e6)
    assert (full.sync_freq - 1) * 1.5 < 19 * full.seconds <= full.sync_freq * 1.5
    assert (full.delay - 1) * 1.5 < full.seconds <= full.delay * 1.5
    assert (rounded.size, small.size) == (full.size / 2, full.size / 32 * 4.25)
    assert plan.synchronous_size == 2 * 3 / 4 * 600e6
    # 500 steps between two outer steps in 4 bits send less than a hundredth of synchronous training.
    assert small.size / 500 < plan.synchronous_size / 100
    refused(lambda: price_sites(1, 10, 1.0, Link(0.0)), "sites must be at least 2", "not 1")


@pytest.mark.parametrize("number", range(4))
def test_servers_send_as_many_bytes_as_are_priced(number):
    spec = SliceSpec(Slice(0, "w", 0, 1280, 0))
    priced = price_sites(3, 1280, 1.0, Link(0.0)).outer[number]
    start = [({0: np.ones(1280, np.float32)}, None) for _ in range(3)]
    groups = MeanGroups(3, 2, rate("kSGD", 0.1), specs=[spec], states=start, compression=priced.compression)
    for _ in range(2):
        for group in range(3):
            groups.train(group, compute=lambda group, step, value: value)
    assert groups.sent_bytes == 3 * priced.size
