"""Sums over workers that are processes of one host: in the workers' order, with an end when a worker is lost."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsinga.base.errors import RunError, WorkerLost
from dsinga.cluster.transport.interface import wait_for
from dsinga.cluster.worker import group_links
from dsinga.cluster.worker.group_links import MOST_BYTES, GroupLinks, open_links

PARTS = [np.array([1e8, 1.0], np.float32), np.array([-1e8, 2.0], np.float32), np.array([1.0, 3.0], np.float32)]


def opened(processes: Sequence[int], starts: Sequence[int] = (0, 1, 2)) -> list[GroupLinks | None]:
    """Open the links of workers, here in threads, that say they are of these processes."""
    barrier, rows = threading.Barrier(len(processes)), dict[tuple[str, int], np.ndarray]()

    def work(place: int) -> GroupLinks | None:
        def gather(key: str, array: np.ndarray) -> np.ndarray:
            rows[key, place] = array
            barrier.wait(60)
            return np.concatenate([rows[key, other] for other in range(len(processes))])

        return open_links(starts[place], processes[place], gather)

    with ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(work, range(len(processes))))


@pytest.fixture
def links() -> Iterator[list[GroupLinks]]:
    group = [each for each in opened([1, 2, 3]) if each is not None]
    assert len(group) == 3
    yield group
    for each in group:
        each.close()


def test_arrays_are_added_in_the_order_of_the_workers(links: list[GroupLinks]) -> None:
    replies = [links[worker].add("all_reduce", "mean", PARTS[worker]) for worker in (1, 0, 2)]
    for reply in replies:
        (total,) = reply.result(60.0)
        np.testing.assert_array_equal(total, (PARTS[0] + PARTS[1]) + PARTS[2])
        assert not total.flags.writeable


def test_a_worker_may_be_ahead_by_one_largest_array(links: list[GroupLinks]) -> None:
    array = np.arange(MOST_BYTES // 8, dtype=np.float64).reshape(2, -1)
    early = [each.add("all_reduce", "0", array) for each in links]
    np.testing.assert_array_equal(early[0].result(60.0)[0], 3 * array)
    late = links[0].add("all_reduce", "1", array)
    assert not late.done()
    for number in (1, 2):
        np.testing.assert_array_equal(early[number].result(60.0)[0], 3 * array)
        links[number].add("all_reduce", "1", array)
    assert late.done()
    np.testing.assert_array_equal(late.result(0.0)[0], 3 * array)


def test_a_wait_for_a_lost_worker_ends(links: list[GroupLinks]) -> None:
    reply = links[0].add("all_reduce", "mean", PARTS[0])
    links[1].add("all_reduce", "mean", PARTS[1])
    with pytest.raises(TimeoutError):
        reply.result(0.01)
    links[2].close()
    with pytest.raises(WorkerLost, match="the sum of a layer: worker 2 is gone"):
        wait_for(reply, 60.0, "the sum of a layer")
    with pytest.raises(ConnectionError, match="worker 2 is gone"):
        links[0].add("all_reduce", "next", PARTS[0]).result(60.0)


def test_workers_that_add_different_arrays_get_an_error(links: list[GroupLinks]) -> None:
    replies = [each.add("all_reduce", key, PARTS[0]) for each, key in zip(links, "aab", strict=True)]
    for waits in (True, False):
        with pytest.raises(RunError, match=r"worker 2 adds another array than all_reduce of a <f4\(2,\)"):
            replies[0].result(60.0 if waits else 0.0)
        assert replies[0].done()


def test_teams_of_blocks_are_added_in_their_tree() -> None:
    group = [each for each in opened([1, 2], [0, 4]) if each is not None]
    replies = [each.add("tree_reduce", "mean", part) for each, part in zip(group, PARTS[:2], strict=True)]
    for each, reply in zip(group, replies, strict=True):
        np.testing.assert_array_equal(reply.result(60.0)[0], PARTS[0] + PARTS[1])
        each.close()


@pytest.mark.parametrize("processes", [[1, 1], [1, 0], [1]])
def test_servers_add_arrays_of_threads_and_of_workers_without_sockets(processes: list[int]) -> None:
    assert opened(processes) == [None] * len(processes)


def test_servers_add_arrays_where_the_system_keeps_no_messages_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_links, "BUFFER_BYTES", 1 << 30)
    assert opened([1, 2]) == [None, None]
