"""SerialExecutor runs calls in one thread, in order, until it is closed."""

from __future__ import annotations

import contextvars
import sys
import threading
import traceback
import weakref

import pytest

from dsinga.base.errors import RunError
from dsinga.base.serial_executor import SerialExecutor, quota_cores

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
    with pytest.raises(RunError, match="the run has ended"):
        executor.run(lambda: None)
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


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/pod/box", {"pod/box/cpu.max": "150000 100000"}, 2),
        ("0::/pod/box", {"pod/box/cpu.max": "max 100000", "pod/cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, sys.maxsize),
        ("0::/pod/box", {}, sys.maxsize),
        ("", {}, sys.maxsize),
        ("4:cpu,cpuacct:/box\n0::/", {"cpu,cpuacct/box/cpu.cfs": "250000 100000"}, 3),
        ("4:cpuacct,cpu:/host/path", {"cpu/cpu.cfs": "200000 100000"}, 2),  # a container with a mount of its own
        ("4:cpu:/box\n3:memory:/box", {"cpu/box/cpu.cfs": "-1 100000", "memory/box/cpu.cfs": "1 1"}, sys.maxsize),
    ],
)
def test_the_cores_of_a_container_follow_its_quota(tmp_path, own, files, cores):
    (tmp_path / "own").write_text(own)
    for name, numbers in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{numbers}\n")
        for end, number in zip(("_quota_us", "_period_us"), numbers.split(), strict=True):
            file.with_name(f"{file.name}{end}").write_text(number)
    assert quota_cores(tmp_path / "own", tmp_path) == cores
