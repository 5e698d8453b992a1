"""A host whose network is cut during a run: nothing is closed, nothing arrives; the run goes on elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga.api import train
from dsinga.extensions import AtEnd, Extension, LoopView
from tests.chaos.hosts import Hosts, can_make_hosts, hosts
from tests.chaos.topologies import PLAN, TOPOLOGIES, job_of

pytestmark = [pytest.mark.slow, pytest.mark.process]


class CutAtRow(Extension):
    """Cuts the network of a host when the first row of metrics comes."""

    pauses = False

    def __init__(self, cluster: Hosts, number: int):
        self.trigger = AtEnd()
        self._cluster, self._number = cluster, number
        self._is_cut = False

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        if not self._is_cut and row["step"] > 0:
            self._is_cut = True
            self._cluster.cut(self._number)

    def run(self, loop: LoopView) -> None: ...


@pytest.mark.skipif(not can_make_hosts(), reason="network namespaces need root and ip")
def test_a_run_goes_on_without_a_host_whose_network_is_cut(stores: Path, tmp_path: Path) -> None:
    job = job_of(TOPOLOGIES["data-2"], stores, tmp_path / PLAN, 400)
    with hosts(3, tmp_path) as cluster:
        expected = train(job, cluster.client, progress=False).params
        result = train(job, cluster.client, extensions=[CutAtRow(cluster, 0)], progress=False)
        assert len(result.history.phase("recovery")) == 1
        for name, value in expected.items():
            np.testing.assert_array_equal(result.params[name], value, err_msg=name)
