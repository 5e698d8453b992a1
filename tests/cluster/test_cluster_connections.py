"""Connections between the processes of Dask workers."""

from __future__ import annotations

import pytest

from dsinga.cluster.connections import connection_to
from dsinga.errors import RunError


def test_a_service_that_has_left_this_process_is_missed_at_once() -> None:
    """Else a worker that begins when its run has ended already would hold its thread until Dask's time limit."""
    connect = connection_to("inproc://192.0.2.1/1/2", "server 0", node=object())
    with pytest.raises(RunError, match="server 0 is not on the Dask worker inproc://192.0.2.1/1/2: the run has ended"):
        connect()
