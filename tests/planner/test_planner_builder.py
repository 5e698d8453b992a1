"""Who does the work of an update: the last that pushes, the server's own process, or all threads of one."""

from __future__ import annotations

import pytest

from dsinga.planner.builder import update_pieces
from dsinga.planner.hosts import Hosts
from dsinga.planner.machine import Rates
from dsinga.planner.program import Piece
from dsinga.server import Slice

RATES = Rates(update=2.0, add=1.0, copy=0.0, keep=0.0, crowded=3.0)
ALONE, SHARED = Piece(2, 30.0), Piece(2, 0.0, share=20.0)  # of 10 numbers


@pytest.mark.parametrize(
    ("workers", "servers", "wanted"),
    [
        ((0, 0), (0, 0), [SHARED, SHARED]),
        ((0, 0), (0, 1), [SHARED, ALONE]),  # a server in a process without a worker has the work for itself
        ((0, 0), (1, 1), [ALONE, ALONE]),
        ((0, 1), (0, 1), [ALONE, ALONE]),
    ],
)
def test_threads_share_the_updates_of_servers_in_their_own_process(workers, servers, wanted):
    slices = [Slice(number, "w", 10 * number, 10 * number + 10, server=number) for number in range(2)]
    pieces = update_pieces(slices, {"w": 2}, Hosts(workers, servers), RATES)
    assert list(pieces.values()) == wanted


def test_what_one_worker_uses_it_updates_while_others_update_theirs():
    pieces = update_pieces([Slice(0, "w", 0, 10, server=0)], {"w": 1}, Hosts((0, 0), (0,)), RATES)
    assert pieces == {0: Piece(1, 30.0)}
