"""Buckets are full of a server's slices, and servers take turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dsinga.server import Slice, cut_into_pieces, fill_buckets, slice_for_servers


@given(st.integers(1, 5), st.integers(1, 12))
def test_the_pieces_of_a_param_go_to_its_servers_in_turn(servers: int, pieces: int) -> None:
    slices = cut_into_pieces(slice_for_servers({"w": 100 * servers * pieces}, servers), 100, {"w"})
    buckets = fill_buckets({"w": slices}, servers, limit=400)
    assert [bucket.server for bucket in buckets] == [*range(servers)] * pieces
    assert [len(bucket.slices) for bucket in buckets] == [1] * len(slices)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90)), min_size=1), min_size=1), st.integers(1, 500)
)
def test_each_slice_is_in_one_bucket_of_its_server(params: list[list[tuple[int, int]]], limit: int) -> None:
    slices: dict[str, list[Slice]] = {}
    count = 0
    for number, cuts in enumerate(params):
        start, slices[f"w{number}"] = 0, []
        for server, size in cuts:
            slices[f"w{number}"].append(Slice(count, f"w{number}", start, start + size, server))
            start, count = start + size, count + 1
    buckets = fill_buckets(slices, 4, limit)
    everything = [slice_ for cuts in slices.values() for slice_ in cuts]
    assert Counter(slice_ for bucket in buckets for slice_ in bucket.slices) == Counter(everything)
    assert all(slice_.server == bucket.server for bucket in buckets for slice_ in bucket.slices)
    # The backward pass computes the last param first; the slices of a server stay in the order of the param.
    for server in range(4):
        sent = [slice_.id for bucket in buckets if bucket.server == server for slice_ in bucket.slices]
        assert sent == [part.id for cuts in reversed(slices.values()) for part in cuts if part.server == server]
