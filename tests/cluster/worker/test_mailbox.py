"""Arrays between the workers of a group: delivered once, never blocking the sender, never lost in silence."""

import threading
import uuid
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dsinga import RunError
from dsinga.cluster.transport.endpoints import Endpoint
from dsinga.cluster.transport.interface import DirectTransport
from dsinga.cluster.transport.message import flatten, restore
from dsinga.cluster.transport.shared_memory import connect_to_host
from dsinga.cluster.worker import mailbox as mailbox_module
from dsinga.cluster.worker.exchange_options import Meter
from dsinga.cluster.worker.mailbox import GroupPeers, Mailbox
from tests.support.refusals import refused

ARRAY = np.arange(6, dtype=np.float32)


def to_mailbox(mailbox: Mailbox) -> DirectTransport:
    return DirectTransport(lambda: mailbox, "the mailbox")


def connected(size: int = 2, timeout: float = 20.0, meters: Sequence[Meter] = ()) -> list[GroupPeers]:
    """Return the peers of ``size`` workers in one process, in their first iteration."""
    group = [GroupPeers(timeout, meter) for meter in meters or [Meter() for _ in range(size)]]
    for peers in group:
        peers.connect([to_mailbox(other.mailbox) for other in group])
        peers.begin("step 0")
    return group


@pytest.fixture
def by_socket() -> Iterator[list[GroupPeers]]:
    """The peers of two workers that send each other everything through a socket of the host."""
    name = uuid.uuid4().hex
    group = [GroupPeers(20.0, Meter()) for _ in range(2)]
    endpoints = [Endpoint(f"{name}-{number}", peers.mailbox) for number, peers in enumerate(group)]
    for peers in group:
        transports = [connect_to_host(f"{name}-{number}") for number in range(2)]
        peers.connect([transport for transport in transports if transport])
        peers.begin("step 0")
    yield group
    for endpoint in endpoints:
        endpoint.close("the test is over")


def test_mistakes_are_named_with_their_remedies(by_socket: list[GroupPeers]) -> None:
    first, second = by_socket
    second.mailbox.close("the Dask worker tcp://x was lost")
    first.send(1, "a", ARRAY)
    refused(lambda: first.receive("b"), "'a' was sent to it: the Dask worker tcp://x was", error=RunError)
    _, second = connected(timeout=0.6)
    refused(lambda: second.receive("fc6"), r"waited 0.6 s for 'fc6' in step 0", error=RunError)
    first, _ = connected(timeout=0.6)
    for step in range(3):
        first.send(1, "a", ARRAY)
        first.finish()
        first.begin(f"step {step + 1}")
    refused(lambda: first.finish(), r"waited 0.6 s in step 3: worker 1 is behind and has not taken 'a'", error=RunError)


@pytest.mark.parametrize("then", ["receive", "finish"])
def test_a_lost_peer_is_an_error_at_the_next_receive_or_the_end(by_socket: list[GroupPeers], then: str) -> None:
    first, _ = by_socket
    first.transports[1].close()
    first.send(1, "a", ARRAY)
    refused(lambda: first.receive("b") if then == "receive" else first.finish(), "'a' was sent to it", error=RunError)


def test_an_array_within_a_process_is_not_copied() -> None:
    first, second = connected()
    first.send(1, "a", ARRAY)
    assert second.receive("a") is ARRAY


def test_arrays_are_taken_by_key_in_any_order() -> None:
    first, second, third = connected(3)
    third.send(1, "b", 2 * ARRAY)
    first.send(1, "a", ARRAY)
    np.testing.assert_array_equal(second.receive("a"), ARRAY)
    np.testing.assert_array_equal(second.receive("b"), 2 * ARRAY)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a thread begins to wait for a condition, which polling does not end."""
    monkeypatch.setattr(mailbox_module, "POLL_SECONDS", 60)
    begun = threading.Event()
    wait_for = threading.Condition.wait_for

    def report_begun(condition: threading.Condition, *arguments: Any) -> bool:
        begun.set()  # under the lock, which close() gets when the wait has begun
        return wait_for(condition, *arguments)

    monkeypatch.setattr(threading.Condition, "wait_for", report_begun)
    return begun


def test_a_receive_waits_and_measures_the_wait(begun: threading.Event) -> None:
    meter = Meter()
    first, second = connected(meters=[Meter(), meter])
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(second.receive, "a")
        assert begun.wait(60)
        with pytest.raises(TimeoutError):
            received.result(timeout=0.05)
        first.send(1, "a", ARRAY)
        assert received.result(timeout=60) is ARRAY
    assert meter.waited > 0.04


def test_the_sender_counts_the_bytes() -> None:
    meters = [Meter(), Meter()]
    first, second = connected(meters=meters)
    meters[0].start()
    first.send(1, "a", ARRAY)
    second.receive("a")
    assert [(meter.within, meter.crossing) for meter in meters] == [(ARRAY.nbytes, 0), (0, 0)]


def test_the_same_key_is_used_in_every_iteration() -> None:
    first, second = connected()
    for step in range(3):
        first.send(1, "a", np.full(2, step))
        first.finish()
        first.begin(f"step {step + 1}")
    for step in range(3):
        assert second.receive("a")[0] == step
        second.begin(f"step {step + 1}")


def test_a_repeated_delivery_changes_nothing() -> None:
    mailbox = Mailbox()
    mailbox.put(0, "a", ARRAY)
    mailbox.put(0, "a", 2 * ARRAY)
    assert mailbox.take("a", 1) is ARRAY
    with pytest.raises(TimeoutError):
        mailbox.take("a", 0.01)


def test_arrays_that_were_not_taken_are_dropped_with_their_iteration() -> None:
    mailbox = Mailbox()
    early, late = ARRAY.copy(), ARRAY.copy()
    references = [weakref.ref(early), weakref.ref(late)]
    mailbox.put(0, "a", early)
    mailbox.begin(1)
    mailbox.put(0, "b", late)
    del early, late
    assert [reference() for reference in references] == [None, None]


def test_an_early_array_is_kept_and_acknowledged_when_it_is_due() -> None:
    mailbox = Mailbox()
    assert mailbox.put(1, "a", ARRAY) is None, "one iteration ahead is near"
    acknowledged = mailbox.put(2, "a", 2 * ARRAY)
    assert acknowledged is not None
    assert not acknowledged.done()
    mailbox.begin(1)
    assert acknowledged.done()
    mailbox.begin(2)
    np.testing.assert_array_equal(mailbox.take("a", 1), 2 * ARRAY)


class ReportsBlocking(DirectTransport):
    """A transport that sets ``blocked`` when its sender waits for an acknowledgement."""

    def __init__(self, mailbox: Mailbox, blocked: threading.Event):
        super().__init__(lambda: mailbox, "the mailbox")
        self._blocked = blocked

    def call(self, *arguments: Any, **options: Any) -> Any:
        reply = super().call(*arguments, **options)
        if isinstance(reply, Future):
            wait = reply.result

            def result(timeout: float | None = None) -> Any:
                if not reply.done():
                    self._blocked.set()
                return wait(timeout)

            reply.result = result  # type: ignore[method-assign]
        return reply


def test_a_sender_is_at_most_three_iterations_ahead() -> None:
    first, second = connected()
    blocked = threading.Event()
    first.connect([to_mailbox(first.mailbox), ReportsBlocking(second.mailbox, blocked)])
    steps: list[int] = []

    def run() -> None:
        for step in range(6):
            first.send(1, "a", ARRAY)
            first.finish()
            steps.append(step)
            first.begin(f"step {step + 1}")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        assert blocked.wait(60)
        ahead = len(steps)
        for step in range(6):
            second.receive("a")
            second.begin(f"step {step + 1}")
        running.result(timeout=60)
    assert ahead <= 3
    assert len(first._sent) <= 4, "what has been acknowledged is forgotten"


def test_closing_ends_every_wait_at_once(begun: threading.Event) -> None:
    first, second = connected()
    acknowledged = second.mailbox.put(9, "early", ARRAY)
    assert acknowledged is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.receive, "a")
        assert begun.wait(60)
        second.mailbox.close("the Dask worker tcp://x was lost")
        refused(lambda: waiting.result(timeout=60), "tcp://x was lost", error=RunError)
    refused(lambda: acknowledged.result(timeout=0), "tcp://x was lost", error=RunError)
    refused(lambda: first.send(1, "a", ARRAY), "tcp://x was lost", error=RunError)


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
    ids=["image", "channels last", "some channels", "columns", "labels", "one channel", "one number", "no rows"],
)
def test_arrays_are_sent_with_their_layout(array: np.ndarray) -> None:
    layouts, (packed,) = flatten([array])
    (arrived,) = restore(layouts, iter([packed.tobytes()]))
    np.testing.assert_array_equal(arrived, array)
    assert arrived.dtype == array.dtype
    wide = [axis for axis in range(array.ndim) if array.shape[axis] > 1 and array.strides[axis]]
    assert sorted(wide, key=lambda axis: arrived.strides[axis]) == sorted(wide, key=lambda axis: array.strides[axis])


def test_a_channels_last_image_is_not_copied_to_be_sent() -> None:
    image = np.zeros((2, 4, 5, 3), np.float32).transpose(0, 3, 1, 2)
    assert np.shares_memory(flatten([image])[1][0], image)
