"""A thread of one's own runs what it is given, in that order, and ends when it is closed."""

from __future__ import annotations

import contextvars
import threading
import traceback
import weakref

import pytest

from dsinga.errors import RunError
from dsinga.serial_executor import SerialExecutor

WAIT = 10.0


@pytest.fixture
def own():
    """A thread of one's own, which has ended by the end of the test."""
    own = SerialExecutor("test")
    yield own
    own.close("the test is over")
    for thread in threading.enumerate():
        if thread.name == "test":
            thread.join(WAIT)
    assert "test" not in [thread.name for thread in threading.enumerate()]


def test_calls_run_one_after_the_other_in_one_thread(own):
    ran: list[int] = []
    futures = [own.start(lambda number=number: ran.append(number) or threading.get_ident()) for number in range(50)]
    (thread,) = {future.result(WAIT) for future in futures}
    assert thread != threading.get_ident()
    assert ran == list(range(50))


def test_a_call_has_its_arguments_and_the_context_of_the_caller(own):
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")
    assert own.run(lambda one, two: (one, two, variable.get()), 1, two=2) == (1, 2, "the caller's")


def test_an_error_comes_with_its_traceback_and_the_thread_goes_on(own):
    def culprit():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        own.run(culprit)
    assert "culprit" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert own.run(lambda: 1) == 1


def test_closing_lets_the_call_in_progress_end_and_refuses_others(own):
    begun, go = threading.Event(), threading.Event()
    running = own.start(lambda: begun.set() or go.wait(WAIT))
    waiting = own.start(lambda: "given before")
    assert begun.wait(WAIT)
    own.close("the run has ended")
    own.close("again")
    with pytest.raises(RunError, match="the run has ended"):
        own.run(lambda: None)
    go.set()
    assert running.result(WAIT)
    assert waiting.result(WAIT) == "given before"


def test_nothing_of_a_call_is_kept(own):
    class Result:
        pass

    made = Result()
    gone = weakref.ref(made)
    assert own.run(lambda result: result, made) is made
    own.run(lambda: None)  # by now the thread has let go of the call before
    del made
    assert gone() is None
