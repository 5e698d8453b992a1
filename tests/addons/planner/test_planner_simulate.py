"""The simulator, on groups whose iteration time can be worked out by hand."""

from collections.abc import Sequence

import pytest

from dsinga.addons.planner.link import Link, Links
from dsinga.addons.planner.program import (
    AllToAll,
    AwaitReply,
    Compute,
    GroupProgram,
    Operation,
    Packet,
    PushGradients,
    Receive,
    Send,
    ServerWork,
    WorkerProgram,
)
from dsinga.addons.planner.simulate import Prediction, simulate
from tests.support.refusals import refused

FREE = Link(0.0)
# One byte a second and no latency: bytes are seconds.
WIRE = Links(inside=FREE, ends=FREE, wire=Link(0.0, 1.0))


def run(
    programs: Sequence[WorkerProgram],
    links: Links = WIRE,
    overlap: bool = True,
    servers: Sequence[int] = (),
    processes: Sequence[int] | None = None,
    **server_work: ServerWork,
) -> Prediction:
    processes = range(len(programs)) if processes is None else processes
    return simulate(GroupProgram(list(programs), processes, servers, dict(server_work)), links, overlap)


def program(*operations: Operation, packets: Sequence[Packet] = ()) -> WorkerProgram:
    return WorkerProgram(list(operations), list(packets))


def test_a_single_worker_only_computes() -> None:
    prediction = run([program(Compute(2.0), Compute(3.0))])
    assert prediction == Prediction(seconds=5.0, compute=5.0, update=0.0, sent=0, received=0, memory=0)


def test_a_group_is_as_fast_as_its_slowest_worker() -> None:
    """The workers do not wait for each other within the iteration."""
    assert run([program(Compute(2.0)), program(Compute(5.0))]).seconds == 5.0


def test_a_message_is_sent_while_its_sender_computes() -> None:
    """Sent at 1, arrives at 5; the receiver computes until 2, waits, and ends at 6. The sender has computed at 4."""
    sender = program(Compute(1.0), Send(1, "x", 4), Compute(3.0), Receive("back"))
    receiver = program(Compute(2.0), Receive("x"), Compute(1.0), Send(0, "back", 0))
    prediction = run([sender, receiver])
    assert prediction.seconds == 6.0
    assert (prediction.sent, prediction.received) == (4, 4)


def test_without_overlap_the_sender_waits() -> None:
    """Sent at 1, arrives at 5; the sender computes until 8, when the reply has arrived."""
    sender = program(Compute(1.0), Send(1, "x", 4), Compute(3.0), Receive("back"))
    receiver = program(Compute(2.0), Receive("x"), Compute(1.0), Send(0, "back", 0))
    assert run([sender, receiver], overlap=False).seconds == 8.0


def test_a_link_carries_one_message_at_a_time() -> None:
    """Two messages of 3 s are sent at once: the second one arrives after 6 s."""
    sender = program(Send(1, "x", 3), Send(1, "y", 3), Receive("back"))
    receiver = program(Receive("y"), Send(0, "back", 0))
    assert run([sender, receiver]).seconds == 6.0


def test_a_link_serves_receivers_in_turn() -> None:
    """Three messages of 3 s are for one receiver, a fourth, which is sent before the last of them, for another."""
    sender = program(*(Send(1, key, 3) for key in "abc"), Send(2, "z", 3), Receive("back"))
    first, second = program(Receive("c")), program(Receive("z"), Compute(5.0), Send(0, "back", 0))
    assert run([sender, first, second]).seconds == 14.0


def test_two_senders_share_the_link_into_one_receiver() -> None:
    senders = [program(Send(2, f"x{k}", 3), Receive("back")) for k in range(2)]
    receiver = program(Receive("x0"), Receive("x1"), Send(0, "back", 0), Send(1, "back", 0))
    assert run([*senders, receiver]).seconds == 6.0


def test_messages_within_a_process_are_not_counted() -> None:
    sender = program(Compute(1.0), Send(1, "x", 400), Receive("back"))
    receiver = program(Receive("x"), Send(0, "back", 400))
    prediction = run([sender, receiver], WIRE._replace(inside=Link(0.5)), processes=[0, 0])
    assert prediction == Prediction(seconds=2.0, compute=1.0, update=0.0, sent=0, received=0, memory=0)


def test_each_message_takes_the_latency_once() -> None:
    links = WIRE._replace(wire=Link(0.25, 1.0))
    sender = program(Send(1, "x", 1), Receive("back"))
    receiver = program(Receive("x"), Send(0, "back", 1))
    assert run([sender, receiver], links).seconds == 2.5


def test_sending_takes_processor_time_from_computing() -> None:
    """4 bytes take 1 s each of the sender's processor, while it computes for 5 s."""
    links = Links(FREE, Link(0.0, 1.0), FREE)
    sender = program(Send(1, "x", 4), Compute(5.0), Receive("back"))
    receiver = program(Receive("x"), Send(0, "back", 0))
    assert run([sender, receiver], links).seconds == 9.0


def test_receiving_in_shared_memory_takes_no_processor_time_for_the_bytes() -> None:
    """As above, but the receiver computes for 5 s, which the bytes do not delay."""
    links = Links(FREE, Link(0.0, 1.0), FREE)
    sender = program(Send(1, "x", 4), Receive("back"))
    receiver = program(Compute(5.0), Receive("x"), Send(0, "back", 0))
    assert run([sender, receiver], links).seconds == 9.0
    assert run([sender, receiver], links._replace(shared_memory=True)).seconds == 5.0


PACKET = Packet(0, ("w",), 3, 3)
TRAINING = program(AwaitReply(0, before=1), Compute(2.0), PushGradients(0), Compute(4.0), packets=[PACKET])


def test_gradients_and_values_are_sent_while_a_worker_computes() -> None:
    """Pushed at 2, at the server at 5, updated at 6, back at 9; the next iteration waits from 6 to 9."""
    prediction = run([TRAINING], servers=[1], w=ServerWork(1, 1.0))
    assert prediction.seconds == 9.0
    assert (prediction.sent, prediction.received) == (3, 3)


def test_values_in_shared_memory_are_not_sent() -> None:
    """As above, but the worker sees the values when they are updated, at 6, and goes on at once."""
    prediction = run(
        [TRAINING], Links(FREE, FREE, Link(0.0, 1.0), shared_memory=True), servers=[1], w=ServerWork(1, 1.0)
    )
    assert prediction.seconds == 6.0


def test_without_overlap_pushes_come_last() -> None:
    """Computed until 6, pushed, at the server at 9, updated at 10, back at 13."""
    assert run([TRAINING], overlap=False, servers=[1], w=ServerWork(1, 1.0)).seconds == 13.0


def test_the_worker_updates_params_of_a_server_in_its_process() -> None:
    prediction = run([TRAINING], servers=[0], w=ServerWork(1, 1.0))
    assert prediction == Prediction(seconds=7.0, compute=6.0, update=1.0, sent=0, received=0, memory=0)


def test_threads_of_one_process_share_an_update() -> None:
    """Each thread does its half, of 1 s, when it pushes; the slower one pushes at 5 and ends the update at 6."""
    slow = program(AwaitReply(0, before=1), Compute(5.0), PushGradients(0), packets=[PACKET])
    free = Links(FREE, FREE, FREE)
    assert run([TRAINING, slow], free, servers=[0], w=ServerWork(2, 0.0, share=1.0), processes=[0, 0]).seconds == 7.0


def test_an_update_waits_for_all_contributors() -> None:
    """The second worker pushes at 5; its message takes 3 s out and 3 s back after the first worker's value."""
    slow = program(AwaitReply(0, before=1), Compute(5.0), PushGradients(0), packets=[PACKET])
    prediction = run([TRAINING, slow], servers=[2], w=ServerWork(2, 1.0))
    # Pushed at 5, at the server at 8, updated at 9; one value is back at 12, the other at 15 over the same link.
    # The next iteration begins at 12 and 15: the period is 15 or 12, depending on which worker is served first.
    assert 12.0 <= prediction.seconds <= 15.0


def test_a_worker_waits_for_a_sum_over_the_batch_at_once() -> None:
    """Both send 2 bytes over links of their own; the server's link carries one after the other, and the replies too."""
    packet = Packet(0, ("sum",), 2, 2)
    workers = [program(Compute(1.0), PushGradients(0), AwaitReply(0), Compute(1.0), packets=[packet]) for _ in range(2)]
    assert run(workers, servers=[2], sum=ServerWork(2, 0.0)).seconds == pytest.approx((1 + 4 + 4 + 1), abs=2.0)


def test_all_to_all_takes_as_long_as_the_link_of_one_worker() -> None:
    """Each of 4 workers sends 2 bytes to 3 others: 6 s on its link, all at the same time."""
    workers = [program(Compute(1.0), AllToAll("x", 2), Compute(1.0), Receive("x")) for _ in range(4)]
    prediction = run(workers)
    assert prediction == Prediction(seconds=7.0, compute=2.0, update=0.0, sent=6, received=6, memory=0)


def test_all_to_all_equals_its_messages() -> None:
    def sends(worker: int) -> WorkerProgram:
        peers = [k for k in range(3) if k != worker]
        messages = [Send(peer, f"{worker}", 2) for peer in peers]
        return program(Compute(1.0), *messages, *(Receive(f"{peer}") for peer in peers))

    one_by_one = run([sends(worker) for worker in range(3)])
    at_once = run([program(Compute(1.0), AllToAll("x", 2), Receive("x")) for _ in range(3)])
    assert (at_once.sent, at_once.received) == (one_by_one.sent, one_by_one.received)
    # All send to worker 0 first, so single messages queue on its link.
    assert at_once.seconds <= one_by_one.seconds <= 1.2 * at_once.seconds


def test_a_receive_without_a_send_fails() -> None:
    refused(lambda: run([program(Receive("x"))]), "waits for an event that", "never happens", error=AssertionError)
