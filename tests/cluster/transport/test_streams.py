"""Messages between hosts: their order, the memory they arrive in, and what is left when a connection ends."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dsinga import RunError
from dsinga.base import buffers
from dsinga.base.buffers import address
from dsinga.cluster.transport.endpoints import Endpoint
from dsinga.cluster.transport.interface import wait_for
from dsinga.cluster.transport.remote import RemoteTransport
from dsinga.cluster.transport.socket_loop import open_connections
from dsinga.cluster.transport.stream import Stream
from tests.support.echo_service import EchoService
from tests.support.polling import wait_until
from tests.support.refusals import refused
from tests.support.socket_pairs import socket_pair

WAIT = 60.0
LARGE = 1 << 24  # bytes: more than the system takes before the other end reads


class Inbox:
    """A receiver of a stream that keeps all messages, and what became of the stream."""

    def __init__(self) -> None:
        self.messages: list[tuple[Any, Any]] = []
        self.changed = threading.Condition()
        self.error = ""

    def memory(self, values: Any, nbytes: Sequence[int]) -> None: ...

    def received(self, values: Any, items: Any) -> None:
        with self.changed:
            self.messages.append((values, items))
            self.changed.notify_all()

    def lost(self, reason: str) -> None:
        with self.changed:
            self.error = reason
            self.changed.notify_all()

    def wait(self, ready: Callable[[], Any]) -> None:
        with self.changed:
            assert self.changed.wait_for(ready, WAIT)


@pytest.fixture(params=["plain", "tls"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Stream, Inbox, Stream, Inbox]]:
    """Two streams that are connected to each other, each with the messages that it receives."""
    inboxes = Inbox(), Inbox()
    sockets = socket_pair(tls=request.param == "tls", tcp=True)
    first, second = (Stream(*pair) for pair in zip(sockets, inboxes, strict=True))
    first.start()
    second.start()
    yield first, inboxes[0], second, inboxes[1]
    first.close()
    second.close()


def test_large_arrays_cross_each_other(ends: tuple[Stream, Inbox, Stream, Inbox]) -> None:
    """Neither end waits until the other has read: all messages are on their way at once."""
    first, first_inbox, second, second_inbox = ends
    arrays = [np.full(LARGE // 16, number, np.uint8) for number in range(16)]
    for number, array in enumerate(arrays):
        first.send(number, [array])
        second.send(-number, [array])
    for inbox, sign in ((first_inbox, -1), (second_inbox, 1)):
        inbox.wait(lambda inbox=inbox: len(inbox.messages) == 16)
        for number, (values, (array,)) in enumerate(inbox.messages):
            assert values == sign * number
            np.testing.assert_array_equal(array, arrays[number])


@pytest.mark.parametrize("tls", [False, True])
def test_messages_of_a_lower_number_are_sent_first(tls: bool) -> None:
    """But a message that has been begun is sent to its end."""
    inbox, (here, there) = Inbox(), socket_pair(tls, tcp=True)
    sender, receiver = Stream(here, Inbox()), Stream(there, inbox)
    sender.start()
    sender.send(7, [np.zeros(LARGE, np.uint8)], priority=7)
    wait_until(lambda: bool(sender._parts))
    for priority in (5, 1, 9, 1, 3):
        sender.send(priority, [np.zeros(100, np.uint8)], priority=priority)
    receiver.start()
    inbox.wait(lambda: len(inbox.messages) == 6)
    assert [values for values, _ in inbox.messages] == [7, 1, 1, 3, 5, 9]
    sender.close()
    receiver.close()


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\x00" + bytes(1 << 16), b"\x01\x00\x00\x00\xc0", b"GET / HTTP/1.1"])
def test_what_is_no_message_ends_the_connection(garbage: bytes) -> None:
    here, there = socket_pair()
    inbox = Inbox()
    stream = Stream(there, inbox)
    stream.start()
    here.sendall(garbage)
    here.shutdown(1)
    inbox.wait(lambda: inbox.error)
    assert "not a message" in inbox.error or "the other end is gone" in inbox.error
    assert not inbox.messages
    wait_until(lambda: stream.socket.fileno() < 0)
    refused(lambda: stream.send("late"), re.escape(inbox.error), error=OSError)
    here.close()


class TestRemoteTransport:
    @pytest.fixture
    def service(self) -> EchoService:
        return EchoService()

    @pytest.fixture
    def endpoint(self, service: EchoService) -> Iterator[Endpoint]:
        endpoint = Endpoint("streams", service, to_host=False)
        yield endpoint
        endpoint.close("the test is over")

    @pytest.fixture
    def transport(self, endpoint: Endpoint) -> Iterator[RemoteTransport]:
        here, there = socket_pair(tcp=True)
        endpoint.accept(there)
        transport = RemoteTransport(here)
        yield transport
        transport.close()

    def test_a_reply_arrives_in_the_memory_of_the_caller(self, transport: RemoteTransport) -> None:
        memory = np.zeros((3, 50_000), np.float32)
        sent = [np.full(50_000, 1.5, np.float32), np.arange(50_000, dtype=np.float32)]
        first, second = transport.call("echo", (), sent, into=[memory[2], memory[0]]).result(WAIT)
        assert (address(first), address(second)) == (address(memory[2]), address(memory[0]))
        np.testing.assert_array_equal(memory, [sent[1], np.zeros(50_000), sent[0]])

    def test_a_reply_of_other_sizes_has_its_own_memory(self, transport: RemoteTransport) -> None:
        memory = np.zeros(7, np.float32)
        (answer,) = transport.call("echo", (), [np.ones(8, np.float32)], into=[memory]).result(WAIT)
        np.testing.assert_array_equal(answer, np.ones(8))
        assert not memory.any()

    def test_an_error_leaves_the_memory_as_it_was(self, transport: RemoteTransport) -> None:
        memory = np.zeros(7, np.float32)
        refused(lambda: transport.call("refuse", into=[memory]).result(WAIT), "refused", error=RunError)
        assert not memory.any()

    def test_memory_of_released_arrays_is_reused(self, transport: RemoteTransport, service: EchoService) -> None:
        buffers.clear()
        service.keeps = True
        places = set()
        for _ in range(4):
            transport.call("nothing", (), [np.ones(LARGE, np.uint8)]).result(WAIT)
            places.add(address(service.items.pop()))
        assert len(places) <= 2, "the stream may still refer to the last message"

    def test_large_calls_of_a_slow_service_are_handled_in_order_in_another_thread(self) -> None:
        class Slow(EchoService):
            def handle(self, method: str, fields: Sequence[Any], items: Sequence[Any]) -> Any:
                names.append((fields[0], threading.current_thread().name))

        names: list[tuple[int, str]] = []
        endpoint = Endpoint("slow", Slow(), to_host=False, slow=True)
        here, there = socket_pair()
        endpoint.accept(there)
        transport = RemoteTransport(here)
        large = np.zeros(1 << 20, np.uint8)
        for reply in [transport.call("push", [number], [large]) for number in range(5)]:
            reply.result(WAIT)
        transport.call("push", [5]).result(WAIT)
        assert names == [(number, "dsinga calls slow") for number in range(5)] + [(5, "dsinga sockets")]
        transport.close()
        endpoint.close("the test is over")

    def test_calls_fail_when_the_other_end_is_gone(self, endpoint: Endpoint) -> None:
        here, there = socket_pair(tcp=True)
        transport = RemoteTransport(here)
        replies = [transport.call("later") for _ in range(3)]
        there.close()
        for reply in replies:
            with pytest.raises(RunError, match="a process was lost while waiting for w1"):
                wait_for(reply, WAIT, "w1")
        wait_until(lambda: here.fileno() < 0)
        refused(lambda: transport.call("later").result(WAIT), "gone|reset|pipe", error=OSError)
        transport.close()

    def test_an_ended_run_says_so_and_not_that_a_server_was_lost(self, transport: RemoteTransport) -> None:
        reply = transport.call("later")
        transport.close()
        with pytest.raises(RunError, match=r"^the driver has ended the run$"):
            wait_for(reply, WAIT, "w1", lambda: "the driver has ended the run")

    def test_nothing_is_left_of_closed_connections(self, service: EchoService) -> None:
        """Neither sockets nor the thread, whichever end is closed."""
        wait_until(lambda: not open_connections())
        endpoint = Endpoint("left", service, to_host=False)
        pairs = [socket_pair(tcp=True) for _ in range(4)]
        for _, there in pairs:
            endpoint.accept(there)
        transports = [RemoteTransport(here) for here, _ in pairs]
        for transport in transports:
            transport.call("nothing").result(WAIT)
        assert open_connections() == 8
        thread = next(thread for thread in threading.enumerate() if thread.name == "dsinga sockets")
        for transport in transports[:2]:
            transport.close()
        wait_until(lambda: open_connections() == 4)
        endpoint.close("the test is over")
        thread.join(WAIT)
        assert not thread.is_alive()
        assert all(end.fileno() < 0 for pair in pairs for end in pair)
        assert not endpoint._callers

    def test_threads_may_call_at_once(self, transport: RemoteTransport) -> None:
        def call(number: int) -> list[np.ndarray]:
            sizes = (10, 100_000, 1_000)
            return [transport.call("double", (), [np.full(size, number)]).result(WAIT)[0] for size in sizes]

        with ThreadPoolExecutor(8) as pool:
            for number, answers in enumerate(pool.map(call, range(8))):
                for answer in answers:
                    np.testing.assert_array_equal(answer, np.full(answer.size, 2 * number))
