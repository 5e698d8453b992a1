"""An iteration run segment by segment computes the same as an uninterrupted one."""

import threading
from typing import NamedTuple

import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.graph_grain import Stepper
from dsinga.cluster.serial_executor import SerialExecutor
from dsinga.cutting.layer_segments import LayerPass
from tests.support.refusals import refused


class Named(NamedTuple):
    name: str


@pytest.fixture
def thread():
    """A thread that has ended by the end of the test."""
    thread = SerialExecutor("test")
    yield thread
    thread.close("the test is over")
    for running in threading.enumerate():
        if running.name == "test":
            running.join(60)
            assert not running.is_alive()


@pytest.fixture
def stepper(thread):
    stepper = Stepper(thread)
    yield stepper
    stepper.close("the test is over")


def test_a_segment_that_sends_nothing_halts_where_the_next_receives(stepper):
    def iterate(peers):
        first = peers.receive("a")
        return first + peers.receive("b") + peers.receive("c")

    stepper.begin(iterate)
    assert stepper.advance(0, {}, sends=0, last=False) == ({}, None)
    assert stepper.advance(1, {"a": 1}, sends=0, last=False) == ({}, None)
    assert stepper.advance(2, {"b": 2, "c": 3}, sends=0, last=True) == ({}, 6)


def test_segments_end_before_the_first_pass_of_the_next(thread):
    def iterate(peers):
        for name in ("data", "ip", "relu", "loss"):
            assert stepper.observe(Named(name), "forward", log.append, name) is None
        return "done"

    log: list[str] = []
    stepper = Stepper(thread, {LayerPass("ip", "forward"): 1, LayerPass("loss", "forward"): 3})
    stepper.begin(iterate)
    done = [(stepper.advance(number, {}, sends=0, last=number == 3).outcome, [*log]) for number in range(4)]
    assert done == [(None, ["data"]), *[(None, ["data", "ip", "relu"])] * 2, ("done", ["data", "ip", "relu", "loss"])]


def test_an_error_of_the_iteration_is_raised_by_its_segment(stepper):
    def iterate(peers):
        peers.send(1, "a", 0)
        raise ZeroDivisionError

    stepper.begin(iterate)
    stepper.advance(0, {}, sends=1, last=False)
    with pytest.raises(ZeroDivisionError):
        stepper.advance(1, {}, sends=0, last=True)


def test_mistakes_are_named_with_their_remedies(stepper) -> None:
    stepper.begin(lambda peers: peers.receive("x"))
    with pytest.raises(RunError, match="a segment needs 'x', which it does not receive"):
        stepper.advance(1, {}, sends=0, last=True)
    stepper.begin(lambda peers: None)
    refused(lambda: stepper.advance(0, {}, sends=1, last=False), "ended before its last segment", error=RunError)

    def iterate(peers):
        stepper.close("the run has ended")  # as from another thread, while the segment runs
        peers.send(1, "a", 0)

    stepper.begin(iterate)
    refused(lambda: stepper.advance(0, {}, sends=1, last=False), "the run has ended", error=RunError)


def test_closing_ends_an_iteration_that_has_halted(stepper):
    ended = threading.Event()

    def iterate(peers):
        try:
            peers.send(1, "a", 0)
        finally:
            ended.set()

    stepper.begin(iterate)
    stepper.advance(0, {}, sends=1, last=False)
    stepper.close("the run has ended")
    assert ended.wait(60)
    refused(lambda: stepper.advance(1, {}, sends=0, last=True), "the run has ended", error=RunError)


@pytest.mark.parametrize("begun", [False, True])
def test_a_task_after_the_end_of_the_run_does_not_wait(stepper, begun):
    if begun:
        stepper.begin(lambda peers: None)
    stepper.close("the run has ended")
    with pytest.raises(RunError, match="the run has ended"):
        stepper.advance(1, {}, sends=0, last=True) if begun else stepper.begin(lambda peers: None)
