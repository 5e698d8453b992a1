"""Graph grain: an iteration as a task graph gives the bits of a round, and its tasks are named by layers."""

import numpy as np
import pytest
from dask.utils import key_split
from distributed import Client, get_task_stream

from dsinga.api import train
from dsinga.cluster import connect
from dsinga.cluster.graph_grain import _restore
from dsinga.cluster.transport.message import flatten
from dsinga.job import Job
from dsinga.job.reader import with_fields
from tests.support.refusals import refused
from tests.support.scheduler_messages import count_messages
from tests.support.small_job import assert_same, with_topology


def hybrid(job: Job, workers: int) -> Job:
    """Return the small job with its inner product cut by features, for fewer steps."""
    return with_fields(with_topology(job, workers), {"neuralnet.layer[ip].partition_dim": 1, "train_steps": 6})


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["kFloat32", "kBF16"])
def test_both_grains_are_the_same_bits(job: Job, processes: Client, precision: str) -> None:
    job = hybrid(job, 3).replace(test_freq=3, test_steps=2, precision=precision)
    rounds = train(job, processes, progress=False)
    graphs = train(job, processes, progress=False, grain="graph")
    assert_same(graphs.params, rounds.params)
    assert list(graphs.history[:, "loss"]) == list(rounds.history[:, "loss"])


@pytest.mark.ci
def test_several_groups_train_by_graphs(job: Job, threads: Client) -> None:
    job = with_topology(job, 1).replace(train_steps=20, disp_freq=5)
    job = job.replace(cluster=job.cluster.replace(nworker_groups=2, staleness=2))
    losses = train(job, threads, progress=False, grain="graph").history.phase("train")[:, "loss"]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("cut", [with_topology, hybrid])
def test_tasks_are_named_by_their_layers_whatever_the_cut(job: Job, threads: Client, cut) -> None:
    job = cut(job, 2).replace(train_steps=2)
    with get_task_stream(threads) as stream:
        train(job, threads, progress=False, grain="graph")
    names = {key_split(task["key"]) for task in stream.data}
    layers = {"conv": "relu", "norm": "drop", "ip": ""}
    forward = {f"forward {first}..{last}".removesuffix("..") for first, last in layers.items()}
    backward = {f"backward {last}..{first}".replace(" ..", " ") for first, last in layers.items()}
    ends = {"forward data", "forward loss", "backward loss", "exchange", "report round"}
    starts = {"start worker", "start server", *(["connect peers"] if cut is hybrid else [])}
    assert names == forward | backward | ends | starts


def test_the_iterations_of_a_round_are_one_message_to_the_scheduler(job: Job) -> None:
    with connect(workers=2) as client:
        counts = count_messages(client.cluster.scheduler)
        train(hybrid(job, 2), client, progress=False, grain="graph")
    others = 20  # messages of the start and the end of a run
    assert counts["task-finished"] > 6 * 2 * 3 + others, "six iterations of three segments at least on two workers"
    assert counts["update-graph"] < others


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"updater.clip_global_norm": 1.0}, "cannot clip the norm of all gradients; train with grain round"),
        ({"skip_bad_batches": True}, "cannot skip batches; train with grain round"),
        ({"micro_batches": 2}, "computes whole batches"),
        ({"train_one_batch": {"alg": "kUserAlg", "user_alg": "custom"}}, ""),
    ],
)
def test_what_graph_grain_cannot_do_is_refused(job: Job, threads: Client, fields: dict, words: str) -> None:
    job = with_fields(with_topology(job, 2), fields)
    refused(lambda: train(job, threads, progress=False, grain="graph"), f"graph grain {words}")


@pytest.mark.parametrize("layout", ["rows", "channels last"])
def test_a_received_array_is_aligned(layout: str) -> None:
    array = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    if layout == "channels last":
        array = np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    layouts, (buffer,) = flatten([array])
    frame = np.zeros(buffer.nbytes + 3, np.uint8)
    frame[3:] = np.frombuffer(buffer, np.uint8)
    received = _restore(layouts, [frame[3:].data])
    assert received.flags.aligned
    assert received.strides == array.strides
    np.testing.assert_array_equal(received, array)
