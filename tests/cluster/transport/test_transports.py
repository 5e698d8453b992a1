"""The contract of transports, which direct calls, shared memory and sockets with and without TLS pass."""

import threading
import uuid
import weakref
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from dsinga import RunError
from dsinga.cluster.transport.endpoints import Endpoint, accept, connect
from dsinga.cluster.transport.interface import Transport, wait_for
from dsinga.cluster.transport.remote import RemoteTransport
from dsinga.cluster.transport.shared_memory import SharedMemoryTransport, connect_to_host
from dsinga.ops import SparseRows
from tests.support.echo_service import EchoService
from tests.support.polling import wait_until
from tests.support.refusals import refused
from tests.support.socket_pairs import socket_pair

WAIT = 60.0


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def service(name: str) -> Iterator[EchoService]:
    service = EchoService()
    endpoint = Endpoint(name, service)
    yield service
    endpoint.close("the test is over")


@pytest.fixture(params=["direct", "shared", "remote", "remote with TLS"])
def transport(request: pytest.FixtureRequest, name: str, service: EchoService) -> Iterator[Transport]:
    """A transport of each kind to the service."""
    made: Transport | None
    if request.param == "direct":
        made = connect(name)
    elif request.param == "shared":
        made = connect_to_host(name)
    else:
        here, there = socket_pair(tls=request.param == "remote with TLS")
        assert accept(name, there)
        made = RemoteTransport(here)
    assert made is not None
    yield made
    made.close()


class TestTransport:
    @pytest.mark.parametrize("size", [0, 1, 5, 5_000, 300_000])
    def test_arrays_of_any_size_come_and_go(self, transport: Transport, size: int) -> None:
        array = np.random.default_rng(size).random(size, np.float32)
        small, large = transport.call("double", (), [np.arange(3), array]).result(WAIT)
        np.testing.assert_array_equal(small, [0, 2, 4])
        np.testing.assert_array_equal(large, array + array)
        assert large.dtype == np.float32

    @pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "f4", "f8", "?", "bfloat16"])
    def test_dtypes_and_shapes_are_kept(self, transport: Transport, dtype: str) -> None:
        for shape in [(), (3,), (2, 0), (4, 3, 2), (40, 30, 20)]:
            array = np.ones(shape, dtype)
            (answer,) = transport.call("echo", (), [array]).result(WAIT)
            assert (answer.dtype, answer.shape) == (array.dtype, shape)
            np.testing.assert_array_equal(answer, array)
            assert answer.flags.aligned

    @pytest.mark.parametrize("rows", [2, 64])
    def test_a_channels_last_image_stays_channels_last(self, transport: Transport, rows: int) -> None:
        image = np.random.default_rng(0).random((rows, 8, 8, 3), np.float32).transpose(0, 3, 1, 2)
        (answer,) = transport.call("echo", (), [image]).result(WAIT)
        np.testing.assert_array_equal(answer, image)
        assert answer.strides == image.strides

    def test_each_of_many_sparse_arrays_has_its_own_rows(self, transport: Transport) -> None:
        """Their numbers are converted where they arrive, and not before they have arrived."""
        for seed in range(20):
            rng = np.random.default_rng(seed)
            numbers = np.unique(rng.integers(0, 10**6, rng.integers(1000, 20_000)))
            rows = SparseRows(numbers, rng.random((numbers.size, 2), np.float32), (10**6, 2))
            (answer,) = transport.call("echo", (), [rows]).result(WAIT)
            np.testing.assert_array_equal(answer.rows, numbers, strict=True)
            np.testing.assert_array_equal(answer.values, rows.values)

    def test_fields_arrive_as_plain_values(self, transport: Transport) -> None:
        (answer,) = transport.call("fields", [1, -2.5, True]).result(WAIT)
        np.testing.assert_array_equal(answer, [1, -2.5, True])

    def test_replies_are_those_of_their_calls_in_whatever_order_they_are_read(self, transport: Transport) -> None:
        replies = [transport.call("fields", [number]) for number in range(50)]
        for number in reversed(range(50)):
            (answer,) = replies[number].result(WAIT)
            assert answer == [number]
            assert replies[number].done()

    def test_a_refused_call_says_why_and_later_calls_are_served(self, transport: Transport) -> None:
        refused(lambda: transport.call("refuse").result(WAIT), "refused", error=RunError)
        refused(lambda: transport.call("fail").result(WAIT), "a fault", error=(RunError, ValueError))
        (answer,) = transport.call("double", (), [np.ones(1)]).result(WAIT)
        assert answer == [2]

    def test_a_wait_ends(self, transport: Transport, service: EchoService) -> None:
        reply = transport.call("later")
        with pytest.raises(TimeoutError):
            reply.result(0.05)
        assert not reply.done()
        refused(lambda: wait_for(reply, 0.1, "an echo"), r"waited 0\.1 s for an echo", error=RunError)
        refused(
            lambda: wait_for(reply, 100, "an echo", lambda: "the run has ended"), "the run has ended", error=RunError
        )

    def test_a_reply_that_is_done_is_read_without_waiting(self, transport: Transport) -> None:
        reply = transport.call("double", (), [np.ones(2)])
        wait_until(reply.done)
        (answer,) = reply.result(0)
        np.testing.assert_array_equal(answer, [2, 2])

    def test_later_answers_and_errors_come(self, transport: Transport, service: EchoService) -> None:
        replies = [transport.call("later") for _ in range(2)]
        wait_until(lambda: len(service.waiting) == 2)
        timer = threading.Timer(0.05, lambda: service.waiting[0].set_result([np.ones(2)]))
        timer.start()
        (answer,) = replies[0].result(WAIT)
        np.testing.assert_array_equal(answer, [1, 1])
        timer.join()
        service.waiting[1].set_exception(RunError("too late"))
        refused(lambda: replies[1].result(WAIT), "too late", error=RunError)


def test_direct_calls_hand_over_the_arrays_themselves(name: str, service: EchoService) -> None:
    transport = connect(name)
    array = np.ones(3)
    assert not transport.crosses_process
    assert transport.call("echo", (), [array]).result(WAIT)[0] is array


def test_a_transport_of_this_process_does_not_keep_a_service_alive(name: str) -> None:
    service = EchoService()
    endpoint = Endpoint(name, service, to_host=False)
    transport, gone = connect(name), weakref.ref(service)
    endpoint.close("the run has ended")
    del service, endpoint
    assert gone() is None
    refused(lambda: transport.call("echo"), "no longer in this process", error=RunError)


def test_the_nearest_way_is_taken(name: str) -> None:
    refused(lambda: connect(name), "is not on this host", error=RunError)
    ends = socket_pair()
    remote = connect(name, lambda: ends[0])
    assert isinstance(remote, RemoteTransport)
    remote.close()
    ends[1].close()
    endpoint = Endpoint(name, EchoService())
    assert not connect(name).crosses_process
    assert isinstance(connect_to_host(name), SharedMemoryTransport)
    endpoint.close("the test is over")


def test_a_cancelled_future_is_an_error_at_the_other_end(name: str, service: EchoService) -> None:
    transport = connect_to_host(name)
    assert transport is not None
    reply = transport.call("later")
    transport.call("nothing").result(WAIT)
    pending: Future[object] = service.waiting[0]
    pending.cancel()
    refused(lambda: reply.result(WAIT), "Cancelled", error=RunError)
