"""The number of kernel threads that a worker can use: it follows from the net, and is never 0."""

from hypothesis import given
from hypothesis import strategies as st

from dsinga.job import Phase, load
from dsinga.net.neuralnet import OPERATIONS_PER_THREAD, usable_threads
from dsinga.reading.checked_job import CheckedJob
from tests.support.plain_nets import alexnet, mlp


def test_the_digits_use_two_threads_and_a_large_net_as_many_as_there_are():
    digits = CheckedJob(load("datasets/digits/job.conf"), ["datasets/digits"]).net(Phase.kTrain)
    assert usable_threads(digits, 1) == 2
    assert usable_threads(digits, 2) == usable_threads(digits, 4) == 1
    assert usable_threads(alexnet(16), 1) > 64


@given(st.integers(1, 64), st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 16))
def test_threads_share_the_operations_of_a_worker(batch: int, inputs: int, outputs: int, workers: int):
    threads = usable_threads(mlp(batch, outputs, inputs=inputs), workers)
    products = 6 * batch * inputs * outputs  # forward, and backward twice as many
    assert threads >= max(1, products // (workers * OPERATIONS_PER_THREAD))
    numbers = batch * (inputs + 2 * outputs)
    assert threads <= 1 + (products + 100 * numbers) / (workers * OPERATIONS_PER_THREAD)


@given(st.integers(1, 8), st.integers(1, 8))
def test_more_workers_use_no_more_threads_each(fewer: int, more: int):
    net = mlp(64, 2048, 2048, inputs=2048)
    assert usable_threads(net, fewer + more) <= usable_threads(net, fewer)
