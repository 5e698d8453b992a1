"""The planner cuts params into pieces where a run does."""

from __future__ import annotations

import pytest

from dsinga.planner.processes import MOST_PIECES, ParamUse, ProcessMap, process_map
from dsinga.server.slicing import PIECE_BYTES

SHARED, OWN = ParamUse((4, PIECE_BYTES // 4), (0, 1)), ParamUse((4, PIECE_BYTES // 4), (0,))
TWO_HOSTS = process_map(2, 1, 2)._replace(several_hosts=True)


def test_params_of_several_users_go_between_hosts_in_pieces() -> None:
    slices = TWO_HOSTS.slices({"shared": SHARED, "own": OWN})
    assert [slice_.size for slice_ in slices if slice_.param == "shared"] == [PIECE_BYTES // 4] * 4
    assert [slice_.server for slice_ in slices if slice_.param == "own"] == [0]


@pytest.mark.parametrize(
    "processes",
    [process_map(2, 1, 2), TWO_HOSTS._replace(whole=True), TWO_HOSTS._replace(workers=(0, 0), servers=(0,))],
)
def test_others_stay_whole(processes: ProcessMap) -> None:
    assert processes.piece_bytes(1 << 30) is None


def test_a_simulation_has_a_limited_number_of_pieces() -> None:
    assert TWO_HOSTS.piece_bytes(1) == PIECE_BYTES
    assert TWO_HOSTS.piece_bytes(1 << 30) == (4 << 30) // MOST_PIECES
