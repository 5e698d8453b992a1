"""SerialExecutor runs calls in one thread, in order, until it is closed."""

import contextvars
import threading
import traceback
import weakref

import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.serial_executor import SerialExecutor
from tests.support.refusals import refused

TIMEOUT_SECONDS = 60.0


@pytest.fixture
def executor():
    """An executor whose thread has ended by the end of the test."""
    executor = SerialExecutor("test")
    yield executor
    executor.close("the test is over")
    for thread in threading.enumerate():
        if thread.name == "test":
            thread.join(TIMEOUT_SECONDS)
    assert "test" not in [thread.name for thread in threading.enumerate()]


def test_calls_run_one_after_the_other_in_one_thread(executor):
    order: list[int] = []
    futures = [
        executor.submit(lambda number=number: order.append(number) or threading.get_ident()) for number in range(50)
    ]
    (thread,) = {future.result(TIMEOUT_SECONDS) for future in futures}
    assert thread != threading.get_ident()
    assert order == list(range(50))


def test_a_call_gets_its_arguments_and_the_context_of_the_caller(executor):
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")
    assert executor.run(lambda first, second: (first, second, variable.get()), 1, second=2) == (1, 2, "the caller's")


def test_an_error_has_its_traceback_and_the_thread_goes_on(executor):
    def failing():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        executor.run(failing)
    assert "failing" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert executor.run(lambda: 1) == 1


def test_closing_finishes_calls_already_started_and_refuses_others(executor):
    begun, proceed = threading.Event(), threading.Event()
    running = executor.submit(lambda: begun.set() or proceed.wait(TIMEOUT_SECONDS))
    waiting = executor.submit(lambda: "scheduled before")
    assert begun.wait(TIMEOUT_SECONDS)
    executor.close("the run has ended")
    executor.close("again")
    refused(lambda: executor.run(lambda: None), "the run has ended", error=RunError)
    proceed.set()
    assert running.result(TIMEOUT_SECONDS)
    assert waiting.result(TIMEOUT_SECONDS) == "scheduled before"


def test_no_reference_to_a_call_is_kept(executor):
    class Result:
        pass

    result = Result()
    reference = weakref.ref(result)
    assert executor.run(lambda argument: argument, result) is result
    executor.run(lambda: None)  # the thread has dropped the call before this one
    del result
    assert reference() is None
