"""Slicing gives the figures of SINGA's unit tests and of Paddle's formula; buckets have each slice once."""

import zlib
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsinga.cluster.server import Slice, cut_into_pieces, fill_buckets, slice_for_servers
from dsinga.cluster.server.slicing import paddle_block_size, partition_slices, slice_params
from dsinga.job import SlicingMethod

ALEX = {"a": 14112, "b": 96, "c": 256, "d": 884736, "e": 384}  # the sizes in SINGA's test_paramslicer
CIFAR10 = {"w1": 2400, "b1": 32, "w2": 25600, "b2": 32, "w3": 51200, "b3": 64, "wip": 5760, "bip": 10}
EIGHT = [97984, *[112448] * 6, 112064]


@pytest.mark.parametrize(
    ("num", "cuts"), [(1, [884736]), (2, [435328, 449408]), (4, [210432, 224896, 224896, 224512]), (8, EIGHT)]
)
def test_slice_params_cuts_where_singa_does(num, cuts):
    assert slice_params(ALEX, num) == {name: cuts if name == "d" else [size] for name, size in ALEX.items()}


def test_slice_params_overfills_a_box_by_a_tenth_in_all():
    small = {f"p{i}": 10 for i in range(200)}
    # 110 small params in the first box of 1000, 90 in the second; SINGA would put all 200 into the first.
    assert slice_params({**small, "w": 2000}, 4)["w"] == [100, 1000, 900]


@pytest.mark.parametrize(("num", "boxes"), [(1, "00000000"), (2, "00001111"), (4, "00112233"), (8, "01234567")])
def test_partition_slices_fills_boxes_as_singa_does(num, boxes):
    assert partition_slices(EIGHT, num) == [int(box) for box in boxes]


@pytest.mark.parametrize(
    ("servers", "cuts", "boxes"),
    [
        (1, {}, [0] * 8),
        (2, {"w3": [14485, 36715]}, [0, 0, 0, 0, 0, 1, 1, 1, 1]),
        (3, {"w3": [28366, 22834]}, [0, 0, 0, 0, 1, 2, 2, 2, 2]),
        (4, {"w2": [18844, 6756], "w3": [14488, 21276, 15436]}, [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 3]),
    ],
)
def test_the_cifar10_net_is_distributed_as_by_singa(servers, cuts, boxes):
    slices = slice_for_servers(CIFAR10, servers)
    lengths = {name: [slice_.size for slice_ in slices if slice_.param == name] for name in CIFAR10}
    assert lengths == {name: cuts.get(name, [size]) for name, size in CIFAR10.items()}
    assert [slice_.server for slice_ in slices] == boxes


def test_params_are_not_cut_if_that_fills_boxes_as_evenly():
    mlp = {"fc1": 1_960_000, "fc2": 5_000_000, "fc3": 3_000_000, "fc4": 1_500_000, "fc5": 500_000, "fc6": 5_000}
    slices = slice_for_servers(mlp, 2)
    assert [(slice_.param, slice_.size) for slice_ in slices] == list(mlp.items())
    assert [slice_.server for slice_ in slices] == [1, 0, 1, 1, 0, 0]  # SINGA would cut fc2


@pytest.mark.parametrize(
    ("total", "servers", "block"), [(131071, 1, 1024), (131072, 1, 2048), (11972510, 4, 32768), (60000000, 32, 16384)]
)
def test_block_size_is_that_of_paddle(total, servers, block):
    assert paddle_block_size(total, servers) == block


def test_blocks_go_to_servers_in_turn_from_the_hash_of_the_name():
    slices = slice_for_servers({"w": 5000, "b": 7}, 3, SlicingMethod.kBlock)
    first = zlib.crc32(b"w")
    assert [(slice_.param, slice_.start, slice_.stop) for slice_ in slices] == [
        *[("w", start, min(start + 1024, 5000)) for start in range(0, 5000, 1024)],
        ("b", 0, 7),
    ]
    assert [slice_.server for slice_ in slices] == [*[(first + i) % 3 for i in range(5)], zlib.crc32(b"b") % 3]


def test_sizes_of_blocks_can_be_given():
    sizes, widths = {"w": 5000, "table": 1000}, {"table": 10}
    slices = slice_for_servers(sizes, 3, SlicingMethod.kBlock, widths=widths, block_size=2000, block_rows=40)
    assert [(slice_.param, slice_.size) for slice_ in slices] == [
        *[("w", 2000), ("w", 2000), ("w", 1000)],
        *[("table", 400), ("table", 400), ("table", 200)],
    ]


@given(lengths=st.lists(st.integers(1, 1000), max_size=20), num=st.integers(1, 9))
def test_partition_slices_keeps_the_order_and_the_number_of_boxes(lengths, num):
    boxes = partition_slices(lengths, num)
    assert len(boxes) == len(lengths)
    assert boxes == sorted(boxes)
    assert set(boxes) == set(range(len(set(boxes))))
    assert all(box < num for box in boxes)


@given(sizes=st.lists(st.integers(1, 4_000), min_size=1, max_size=80), servers=st.integers(1, 9))
@example(sizes=[10] * 100, servers=2)  # SINGA puts all of these on the first server
def test_no_server_but_the_last_has_more_than_its_share_and_a_tenth(sizes, servers):
    slices = slice_for_servers({f"p{i}": size for i, size in enumerate(sizes)}, servers)
    share = sum(sizes) // servers + sum(sizes) % servers
    for server in range(servers - 1):
        assert sum(slice_.size for slice_ in slices if slice_.server == server) <= share + share // 10


@pytest.mark.parametrize("method", SlicingMethod)
@given(data=st.data(), sizes=st.lists(st.integers(1, 9_000), max_size=9), servers=st.integers(1, 5))
def test_params_with_a_home_are_not_cut_and_do_not_affect_the_others(data, method, sizes, servers):
    params = {f"p{i}": size for i, size in enumerate(sizes)}
    homes = {name: data.draw(st.integers(0, servers - 1)) for name in params if data.draw(st.booleans())}
    slices = slice_for_servers(params, servers, method, homes)
    assert [slice_.id for slice_ in slices] == list(range(len(slices)))
    assert list(dict.fromkeys(slice_.param for slice_ in slices)) == list(params)
    for name, server in homes.items():
        assert [slice_[1:5] for slice_ in slices if slice_.param == name] == [(name, 0, params[name], server)]
    others = {name: size for name, size in params.items() if name not in homes}
    other_slices = [slice_[1:5] for slice_ in slices if slice_.param in others]
    assert other_slices == [slice_[1:5] for slice_ in slice_for_servers(others, servers, method)]


@pytest.mark.parametrize("method", SlicingMethod)
@given(
    tables=st.lists(st.tuples(st.integers(1, 40_000), st.sampled_from([1, 3, 64])), max_size=12),
    servers=st.integers(1, 9),
)
@example(tables=[(100, 1), (1, 1)], servers=2)  # SINGA's PartitionSlices does not terminate if a slice exceeds a box
@example(tables=[(1, 1), (1, 1), (1, 1), (7, 1)], servers=9)  # boxes of fewer than ten: SINGA cuts empty slices
@example(tables=[(1, 1)], servers=9)  # eight servers get no slice
def test_slices_cover_every_param_once_in_order_and_are_cut_between_rows(method, tables, servers):
    sizes = {f"p{number}": rows * width for number, (rows, width) in enumerate(tables)}
    widths = {f"p{number}": width for number, (_, width) in enumerate(tables) if width > 1}
    slices = slice_for_servers(sizes, servers, method, widths=widths)
    for name, size in sizes.items():
        param_slices = [slice_ for slice_ in slices if slice_.param == name]
        assert [slice_.start for slice_ in param_slices] == [0, *(slice_.stop for slice_ in param_slices[:-1])]
        assert param_slices[-1].stop == size
        assert all(slice_.size > 0 and 0 <= slice_.server < servers for slice_ in param_slices)
        assert all(slice_.start % widths.get(name, 1) == 0 for slice_ in param_slices)
        assert all(slice_.width == widths.get(name, 0) for slice_ in param_slices)
    assert [slice_.id for slice_ in slices] == list(range(len(slices)))
    assert list(dict.fromkeys(slice_.param for slice_ in slices)) == list(sizes)


def test_rows_are_distributed_evenly_and_a_slice_prints_as_in_python():
    slices = slice_for_servers({"table": 12800}, 4, widths={"table": 128})
    assert [str(slice_) for slice_ in slices] == [f"table[{start}:{start + 3200}]" for start in range(0, 12800, 3200)]


@pytest.mark.parametrize("method", list(SlicingMethod))
def test_no_param_is_cut_if_all_must_be_whole(method):
    slices = slice_for_servers(ALEX, 4, method, whole=True)
    assert [(slice_.param, slice_.size) for slice_ in slices] == list(ALEX.items())
    assert all(0 <= slice_.server < 4 for slice_ in slices)


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 700))
def test_pieces_cover_their_slices(sizes: list[int], servers: int, size: int) -> None:
    params = {f"w{number}": count for number, count in enumerate(sizes)}
    slices = slice_for_servers(params, servers)
    pieces = cut_into_pieces(slices, size, params.keys() - {"w0"})
    assert [piece.id for piece in pieces] == list(range(len(pieces)))
    for slice_ in slices:
        parts = [piece for piece in pieces if piece.param == slice_.param and piece.start in range(*slice_[2:4])]
        assert parts[0].start == slice_.start
        assert parts[-1].stop == slice_.stop
        assert all(first.stop == second.start for first, second in pairwise(parts))
        assert {part.server for part in parts} == {slice_.server}
        assert len(parts) == 1 if slice_.param == "w0" else all(part.size <= 1.5 * size + 1 for part in parts)


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
