"""The work of an update: done by the worker that pushes last, by the server's process, or shared by threads."""

from __future__ import annotations

import pytest

from dsinga.planner.machine import Rates
from dsinga.planner.processes import ProcessMap
from dsinga.planner.program import ServerWork, update_work
from dsinga.server import Slice

RATES = Rates(update=2.0, add=1.0, copy=0.0, keep=0.0, update_contended=3.0)
UNSHARED, SHARED = ServerWork(2, 30.0), ServerWork(2, 0.0, share=20.0)  # for 10 numbers


@pytest.mark.parametrize(
    ("workers", "servers", "expected"),
    [
        ((0, 0), (0, 0), [SHARED, SHARED]),
        ((0, 0), (0, 1), [SHARED, UNSHARED]),  # the second server is in a process without workers
        ((0, 0), (1, 1), [UNSHARED, UNSHARED]),
        ((0, 1), (0, 1), [UNSHARED, UNSHARED]),
    ],
)
def test_threads_share_the_updates_of_servers_in_their_own_process(workers, servers, expected):
    slices = [Slice(number, "w", 10 * number, 10 * number + 10, server=number) for number in range(2)]
    work = update_work(slices, {"w": 2}, ProcessMap(workers, servers), RATES)
    assert list(work.values()) == expected


def test_a_slice_with_one_user_is_updated_while_other_workers_update_theirs():
    work = update_work([Slice(0, "w", 0, 10, server=0)], {"w": 1}, ProcessMap((0, 0), (0,)), RATES)
    assert work == {0: ServerWork(1, 30.0)}
