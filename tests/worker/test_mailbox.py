"""Mail between the partitions of a group: given once, taken once, never blocking, never lost in silence."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from distributed.protocol import deserialize, serialize

from dsinga import RunError
from dsinga.transport.hostcalls import connect
from dsinga.worker import mailbox
from dsinga.worker.mailbox import Courier, GroupPeers, Mailbox, Neighbour, pack, unpack
from dsinga.worker.meter import Meter

ARRAY = np.arange(6, dtype=np.float32)


def crew(size: int = 2, timeout: float = 20.0) -> list[GroupPeers]:
    """Return the mail of ``size`` partitions in one process that know each other, in their first iteration."""
    mails = [GroupPeers(timeout, Meter()) for _ in range(size)]
    for mail in mails:
        mail.introduce([Neighbour(other.box) for other in mails])
        mail.begin("step 0")
    return mails


@pytest.fixture
def by_courier() -> Iterator[list[GroupPeers]]:
    """The mail of two partitions that send each other everything through a socket of the host."""
    name = uuid.uuid4().hex
    mails = [GroupPeers(20.0, Meter()) for _ in range(2)]
    for number, mail in enumerate(mails):
        mail.listen(f"{name}-{number}")
    for mail in mails:
        found = [connect(f"{name}-{number}") for number in range(2)]
        mail.introduce([Courier(one[0]) for one in found if one])
        mail.begin("step 0")
    yield mails
    for mail in mails:
        mail.close()


def test_large_and_small_mail_arrives_with_its_layout_by_courier(by_courier: list[GroupPeers]) -> None:
    one, two = by_courier
    image = np.random.default_rng(0).random((8, 16, 16, 3), np.float32).transpose(0, 3, 1, 2)
    for step in range(6):
        one.send(1, "image", image * np.float32(step))
        one.send(1, "labels", np.arange(step))
        arrived = two.receive("image")
        np.testing.assert_array_equal(arrived, image * np.float32(step))
        assert arrived.strides == image.strides
        np.testing.assert_array_equal(two.receive("labels"), np.arange(step))
        for mail in by_courier:
            mail.finish()
            mail.begin(f"step {step + 1}")
    assert len(one._sent) <= 4, "what has been acknowledged is forgotten"


def test_early_mail_by_courier_is_acknowledged_when_its_reader_comes_near(by_courier: list[GroupPeers]) -> None:
    one, two = by_courier
    reply = one._peers[1].put(5, "a", ARRAY)
    assert reply is not None
    with pytest.raises(TimeoutError):
        reply.exception(0.1)
    two.box.begin(4)
    assert reply.exception(10) is None


def test_a_closed_mailbox_says_why_by_courier(by_courier: list[GroupPeers]) -> None:
    one, two = by_courier
    two.box.close(RunError("the Dask worker tcp://x was lost"))
    one.send(1, "a", ARRAY)
    with pytest.raises(RunError, match="partition 1 was lost while 'a' was sent to it: the Dask worker tcp://x was"):
        one.receive("b")


def test_a_courier_that_finds_nobody_shows_at_the_next_receive(by_courier: list[GroupPeers]) -> None:
    one, two = by_courier
    two.close()
    while connect_again(one):  # its thread may need a moment
        pass
    one.send(1, "a", ARRAY)
    with pytest.raises(RunError, match="partition 1 was lost while 'a' was sent to it"):
        one.receive("b")


def connect_again(mail: GroupPeers) -> bool:
    """Whether mail to partition 1 is still taken."""
    reply = mail._peers[1].put(0, "again", ARRAY)
    assert reply is not None
    return reply.exception(10) is None


def test_what_is_sent_in_process_arrives_itself() -> None:
    one, two = crew()
    one.send(1, "a", ARRAY)
    assert two.receive("a") is ARRAY


def test_mail_is_taken_by_key_whatever_the_order_it_comes_in() -> None:
    one, two, three = crew(3)
    three.send(1, "b", 2 * ARRAY)
    one.send(1, "a", ARRAY)
    np.testing.assert_array_equal(two.receive("a"), ARRAY)
    np.testing.assert_array_equal(two.receive("b"), 2 * ARRAY)


def test_a_receive_waits_and_counts_the_waiting() -> None:
    one, two = crew()
    two._meter.start()
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(two.receive, "a")
        with pytest.raises(TimeoutError):
            received.result(timeout=0.05)
        one.send(1, "a", ARRAY)
        assert received.result(timeout=10) is ARRAY
    assert two._meter.waited > 0.04


def test_the_sender_counts_the_bytes() -> None:
    one, two = crew()
    one._meter.start()
    one.send(1, "a", ARRAY)
    two.receive("a")
    assert (one._meter.within, one._meter.crossing) == (ARRAY.nbytes, 0)
    assert (two._meter.within, two._meter.crossing) == (0, 0)


def test_one_key_serves_every_iteration() -> None:
    one, two = crew()
    for step in range(3):
        one.send(1, "a", np.full(2, step))
        one.finish()
        one.begin(f"step {step + 1}")
    for step in range(3):
        assert two.receive("a")[0] == step
        two.begin(f"step {step + 1}")


def test_a_receive_ends_and_says_what_it_waited_for() -> None:
    _, two = crew(timeout=0.6)
    with pytest.raises(RunError, match=r"waited 0.6 s for 'fc6' in step 0"):
        two.receive("fc6")


def test_a_repeated_delivery_changes_nothing() -> None:
    box = Mailbox()
    box.put(0, "a", ARRAY)
    box.put(0, "a", 2 * ARRAY)
    assert box.take("a", 1) is ARRAY
    with pytest.raises(TimeoutError):
        box.take("a", 0.01)


def test_what_nobody_took_is_dropped_with_its_iteration() -> None:
    box = Mailbox()
    box.put(0, "a", ARRAY)
    box.begin(1)
    box.put(0, "b", ARRAY)  # late
    assert not box._arrived


def test_early_mail_is_kept_and_acknowledged_when_its_reader_comes_near() -> None:
    box = Mailbox()
    assert box.put(1, "a", ARRAY) is None, "one iteration ahead is near"
    acknowledged = box.put(2, "a", 2 * ARRAY)
    assert acknowledged is not None
    assert not acknowledged.done()
    box.begin(1)
    assert acknowledged.done()
    box.begin(2)
    np.testing.assert_array_equal(box.take("a", 1), 2 * ARRAY)


class BlockingNoted(Neighbour):
    """A peer that sets ``blocked`` when its sender waits for an acknowledgement."""

    def __init__(self, box: Mailbox, blocked: threading.Event):
        super().__init__(box)
        self._box, self._blocked = box, blocked
        self.put = self._put

    def _put(self, turn: int, key: str, array: np.ndarray) -> Future[None] | None:
        acknowledged = self._box.put(turn, key, array)
        if acknowledged is not None:
            wait = acknowledged.exception

            def exception(timeout: float | None = None) -> BaseException | None:
                if not acknowledged.done():
                    self._blocked.set()
                return wait(timeout)

            acknowledged.exception = exception  # type: ignore[method-assign]
        return acknowledged


def test_a_sender_does_not_run_away_from_its_reader() -> None:
    one, two = crew()
    blocked = threading.Event()
    one.introduce([Neighbour(one.box), BlockingNoted(two.box, blocked)])
    steps: list[int] = []

    def run() -> None:
        for step in range(6):
            one.send(1, "a", ARRAY)
            one.finish()
            steps.append(step)
            one.begin(f"step {step + 1}")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        assert blocked.wait(10)
        ahead = len(steps)
        for step in range(6):
            two.receive("a")
            two.begin(f"step {step + 1}")
        running.result(timeout=10)
    assert ahead <= 3


def test_a_sender_ends_its_wait_for_a_reader_that_never_comes() -> None:
    one, _ = crew(timeout=0.6)
    for step in range(3):
        one.send(1, "a", ARRAY)
        one.finish()
        one.begin(f"step {step + 1}")
    with pytest.raises(RunError, match=r"waited 0.6 s for partition 1 to come near to step 3: it has not taken 'a'"):
        one.finish()


def test_closing_ends_every_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "POLL_SECONDS", 60)  # so that no wait ends because it looks now and then
    one, two = crew()
    acknowledged = two.box.put(9, "early", ARRAY)
    assert acknowledged is not None
    begun = threading.Event()
    wait_for = two.box._changed.wait_for

    def noted(*arguments: Any) -> bool:
        begun.set()  # under the lock, which close() gets when the wait has begun
        return wait_for(*arguments)

    monkeypatch.setattr(two.box._changed, "wait_for", noted)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(two.receive, "a")
        assert begun.wait(10)
        two.box.close(RunError("the Dask worker tcp://x was lost"))
        with pytest.raises(RunError, match="tcp://x was lost"):
            waiting.result(timeout=10)
    with pytest.raises(RunError, match="tcp://x was lost"):
        acknowledged.result(timeout=0)
    with pytest.raises(RunError, match="tcp://x was lost"):
        one.send(1, "a", ARRAY)


class Gone:
    """The way to a partition whose worker has died."""

    crosses = True

    def put(self, turn: int, key: str, array: np.ndarray) -> Future[None]:
        failed: Future[None] = Future()
        failed.set_exception(OSError("Unable to contact Actor's worker"))
        return failed


@pytest.mark.parametrize("then", ["receive", "finish"])
def test_a_send_that_fails_shows_at_the_next_receive_or_the_end(then: str) -> None:
    mail = GroupPeers(20.0, Meter())
    mail.introduce([Gone(), Gone()])
    mail.begin("step 0")
    mail.send(1, "fc6", ARRAY)
    with pytest.raises(RunError, match="partition 1 was lost while 'fc6' was sent to it: Unable to contact"):
        mail.receive("back") if then == "receive" else mail.finish()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5),
        np.arange(120, dtype=np.float32).reshape(2, 4, 5, 3).transpose(0, 3, 1, 2),
        np.arange(120, dtype=np.float32).reshape(2, 4, 5, 3).transpose(0, 3, 1, 2)[:, 1:],
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, 1:3],
        np.arange(5, dtype=np.int64),
        np.zeros((2, 1, 4, 5), np.float32).transpose(0, 1, 3, 2),
        np.broadcast_to(np.float32(1), (2, 3)),
        np.zeros((0, 3), np.float32),
    ],
    ids=["image", "channels-last", "some channels", "some columns", "labels", "one channel", "one number", "no rows"],
)
def test_arrays_travel_with_their_layout(array: np.ndarray) -> None:
    packed, order = pack(array)
    header, frames = serialize(packed)
    arrived = unpack(deserialize(header, frames), order)
    np.testing.assert_array_equal(arrived, array)
    assert arrived.dtype == array.dtype
    wide = [axis for axis in range(array.ndim) if array.shape[axis] > 1 and array.strides[axis]]
    assert sorted(wide, key=lambda axis: arrived.strides[axis]) == sorted(wide, key=lambda axis: array.strides[axis])


def test_a_channels_last_image_is_not_copied_to_be_sent() -> None:
    image = np.zeros((2, 4, 5, 3), np.float32).transpose(0, 3, 1, 2)
    assert np.shares_memory(pack(image)[0], image)
