"""The simulator, on groups whose iteration time can be worked out by hand."""

import math
from collections.abc import Sequence

import pytest

from dsinga import models
from dsinga.addons.planner.group_programs import NetParts, approximate_program, exact_program
from dsinga.addons.planner.link import Link, Links
from dsinga.addons.planner.machine import Rates
from dsinga.addons.planner.processes import MOST_PIECES, ParamUse, ProcessMap, WireBytes, process_map
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
    update_work,
)
from dsinga.addons.planner.search import by_layer
from dsinga.addons.planner.simulate import Prediction, simulate
from dsinga.cluster.server import Slice
from dsinga.cluster.server.slicing import PIECE_BYTES
from dsinga.cutting.partitioning import partition
from dsinga.cutting.strategy import choose_cuts
from dsinga.job import Phase
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from tests.support.plain_nets import alexnet, dense, layer, mlp, net_of, small_convnet
from tests.support.planner_nets import GIGABIT, LOCAL, MACHINE
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


# The approximate programs of workers, compared with those of the partitioned net; pieces, and the work of servers.
FLOAT32 = WireBytes()
REQUESTED_DIMS: dict[str, dict[str, int]] = {
    "rows": {},
    "features": {"conv1": 1, "conv2": 1, "relu2": 1, "fc1": 1, "fc2": 1, "both": 1, "drop": 1, "fc3": 1},
    "hybrid": {"fc1": 1, "fc2": 1, "drop": 1, "fc3": 1},
    "one worker": {"fc1": -1, "fc2": -1, "both": -1, "drop": -1, "fc3": -1, "loss": -1},
    "there and back": {"conv2": -1, "relu2": 1, "drop": 1},
}


def groups_of(
    net: NeuralNet, workers: int, dims: dict[str, int], per_process: int = 1, wire: WireBytes = FLOAT32
) -> tuple[GroupProgram, GroupProgram]:
    cuts = choose_cuts(net, workers, dims)
    processes = process_map(workers, per_process, -(-workers // per_process))._replace(wire=wire)
    exact = exact_program(partition(net, workers, cuts=cuts), processes, MACHINE)
    return exact, approximate_program(NetParts(net, workers), cuts, processes, MACHINE)


def sent(group: GroupProgram) -> list[int]:
    """Return the bytes that each worker sends to other workers, without sums over the batch."""
    return [
        sum(
            operation.bytes * (len(group.programs) - 1 if isinstance(operation, AllToAll) else 1)
            for operation in program.operations
            if isinstance(operation, (Send, AllToAll))
        )
        for program in group.programs
    ]


@pytest.mark.parametrize("wire", [FLOAT32, WireBytes(2, 2, bf16=True)])
@pytest.mark.parametrize("strategy", REQUESTED_DIMS)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_sends_and_packets_match_the_partitioned_net(workers: int, strategy: str, wire: WireBytes) -> None:
    exact, approximate = groups_of(small_convnet(), workers, REQUESTED_DIMS[strategy], wire=wire)
    labels = 8 * 24
    assert sent(exact) == pytest.approx(sent(approximate), rel=0.01, abs=2 * labels * workers)
    assert exact.server_work == approximate.server_work
    for exact_worker, approximate_worker in zip(exact.programs, approximate.programs, strict=True):
        assert exact_worker.packets == approximate_worker.packets


def test_an_image_that_a_skip_takes_too_is_sent_in_bfloat16() -> None:
    net = create_net(models.resnet(batchsize=16).neuralnet, Phase.kTrain, {"data": RecordInfo((3, 32, 32), 16)})
    processes, cuts = process_map(4, 1, 4)._replace(wire=WireBytes(bf16=True)), by_layer(net, 4)
    exact = exact_program(partition(net, 4, cuts=cuts), processes, MACHINE)
    approximate = approximate_program(NetParts(net, 4), cuts, processes, MACHINE)
    assert sent(exact) == pytest.approx(sent(approximate), rel=0.01, abs=2 * 8 * 16)


@pytest.mark.parametrize("strategy", REQUESTED_DIMS)
@pytest.mark.parametrize(("links", "within"), [(LOCAL, 0.15), (GIGABIT, 0.25)], ids=["local", "gigabit"])
def test_takes_about_as_long_as_the_partitioned_net(links: Links, within: float, strategy: str) -> None:
    """Workers of the partitioned net send to others in the same order, so that some links in are busy for longer."""
    exact, approximate = groups_of(small_convnet(96), 4, REQUESTED_DIMS[strategy])
    assert simulate(approximate, links).seconds == pytest.approx(simulate(exact, links).seconds, rel=within)


def test_uneven_parts() -> None:
    exact, approximate = groups_of(mlp(10, 100, 50, inputs=30), 3, {"fc0": 1, "tanh0": 1, "out": 1})
    assert sent(exact) == pytest.approx(sent(approximate), rel=0.15)


def test_several_workers_in_a_process() -> None:
    exact, approximate = groups_of(small_convnet(), 4, REQUESTED_DIMS["hybrid"], per_process=2)
    expected, prediction = simulate(exact, GIGABIT), simulate(approximate, GIGABIT)
    assert prediction.sent == pytest.approx(expected.sent, rel=0.05)
    assert prediction.seconds == pytest.approx(expected.seconds, rel=0.25)


def test_params_of_one_user_cost_no_bytes() -> None:
    net = mlp(64, 400, 200)
    _, group = groups_of(net, 2, {"fc0": -1, "tanh0": -1, "out": -1, "loss": -1})
    prediction = simulate(group, GIGABIT)
    rows = 4 * 32 * math.prod(net.nodes[0].layer.shape[1:])
    assert prediction.sent == prediction.received == rows  # the other worker's half of the batch, once


def test_messages_between_workers_do_not_grow_with_their_number() -> None:
    """A partitioned net has a bridge for each pair of workers; an approximate program has one operation for all."""
    net = alexnet(512)
    dims = dict.fromkeys(("fc6", "relu6", "drop6", "fc7", "relu7", "drop7", "fc8"), 1)
    counts = set()
    for workers in (8, 128):
        processes = process_map(workers, 4, workers // 4)
        group = approximate_program(NetParts(net, workers), choose_cuts(net, workers, dims), processes, MACHINE)
        assert simulate(group, GIGABIT).seconds > 0
        for program in group.programs:
            counts.add(sum(isinstance(operation, (Send, Receive, AllToAll)) for operation in program.operations))
    (count,) = counts
    assert 0 < count < len(net.nodes) * 2


RATES = Rates(update=2.0, add=1.0, copy=0.0, keep=0.0)
UNSHARED, SHARED = ServerWork(2, 30.0), ServerWork(2, 0.0, share=15.0)  # for 10 numbers


@pytest.mark.parametrize(
    ("workers", "servers", "expected"),
    [
        ((0, 0), (0, 0), [SHARED, SHARED]),
        ((0, 0), (0, 1), [SHARED, UNSHARED]),  # the second server is in a process without workers
        ((0, 0), (1, 1), [UNSHARED, UNSHARED]),
        ((0, 1), (0, 1), [UNSHARED, UNSHARED]),
    ],
)
def test_threads_share_the_updates_of_servers_in_their_own_process(workers, servers, expected):
    slices = [Slice(number, "w", 10 * number, 10 * number + 10, server=number) for number in range(2)]
    work = update_work(slices, {"w": 2}, ProcessMap(workers, servers), RATES)
    assert list(work.values()) == expected


def test_a_slice_with_one_user_is_updated_without_a_sum():
    work = update_work([Slice(0, "w", 0, 10, server=0)], {"w": 1}, ProcessMap((0, 0), (0,)), RATES)
    assert work == {0: ServerWork(1, 20.0)}


SHARED_PARAM, OWN_PARAM = ParamUse((4, PIECE_BYTES // 4), (0, 1)), ParamUse((4, PIECE_BYTES // 4), (0,))
TWO_HOSTS = process_map(2, 1, 2)._replace(several_hosts=True)


def test_params_of_several_users_go_between_hosts_in_pieces() -> None:
    slices = TWO_HOSTS.slices({"shared": SHARED_PARAM, "own": OWN_PARAM})
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


def test_bfloat16_halves_what_is_sent() -> None:
    net, dims = mlp(10, 100, 50, inputs=30), {"fc0": 1, "tanh0": 1, "out": 1}
    exact, _ = groups_of(net, 3, dims)
    rounded, _ = groups_of(net, 3, dims, wire=WireBytes(gradient=2, bf16=True))
    assert all(0.5 <= small / large < 0.8 for small, large in zip(sent(rounded), sent(exact), strict=True))
    for program, before in zip(rounded.programs, exact.programs, strict=True):
        assert [(2 * packet.bytes, packet.reply_bytes) for packet in program.packets] == [
            (packet.bytes, packet.reply_bytes) for packet in before.packets
        ]


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_model_parallel_workers_exchange_features(workers: int) -> None:
    """For fc7 of AlexNet each worker sends b·d/K numbers to K - 1 others, and as many gradients back (Figure 13b)."""
    batch, width = 64, 4096
    net = net_of(
        dense("fc6", "data", width), dense("fc7", "fc6", width), layer("loss", "kEuclideanLoss", "fc7", "data"),
        batch=batch, shape=(width,),
    )  # fmt: skip
    cuts = choose_cuts(net, workers, {"fc6": 1, "fc7": 1, "loss": 0})
    prediction = simulate(
        approximate_program(NetParts(net, workers), cuts, process_map(workers, 1, workers), MACHINE), GIGABIT
    )
    gathered = 4 * batch * width * (workers - 1) // workers  # of the data and of fc6, whose gradient goes back
    back_to_rows = 2 * 4 * batch * width * (workers - 1) // workers**2
    assert prediction.sent == prediction.received == 3 * gathered + back_to_rows
