"""Reading ahead: order, depth, errors, and the end of the thread."""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Iterator

import pytest

from dsinga.data import Prefetch
from dsinga.data import prefetch as prefetch_module
from dsinga.errors import RunError


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in prefetch_threads():
        thread.join(5)
    assert not prefetch_threads()


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dsinga-prefetch"]


class Recorder:
    """A read that says which steps it was asked for, and can be held up."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.changed = threading.Condition()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, step: int) -> int:
        with self.changed:
            self.asked.append(step)
            self.changed.notify_all()
        assert self.go.wait(10)
        return step * step

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= count, 10)


def test_steps_come_in_order() -> None:
    with Prefetch(lambda step: step * step, 3, 50) as prefetch:
        assert list(prefetch) == [step * step for step in range(3, 50)]
        assert list(prefetch) == []


def test_it_goes_on_for_ever_without_stop() -> None:
    with Prefetch(lambda step: step, 10) as prefetch:
        assert [next(prefetch) for _ in range(1000)] == list(range(10, 1010))


def test_no_steps() -> None:
    with Prefetch(lambda step: step, 5, 5) as prefetch:
        assert list(prefetch) == []


def test_it_reads_ahead_no_more_than_the_depth() -> None:
    read = Recorder()
    with Prefetch(read, 0, depth=3) as prefetch:
        for taken in range(5):
            read.wait_for(3 + taken)  # the consumer is slow: all three places fill
            assert read.asked == list(range(3 + taken))
            assert next(prefetch) == taken * taken
    assert max(read.asked) <= 8


def test_an_error_comes_at_its_step_with_its_traceback() -> None:
    def culprit(step: int) -> int:
        if step == 4:
            raise OSError("disk")
        return step

    prefetch = Prefetch(culprit, 0)
    assert [next(prefetch) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="disk") as caught:
        next(prefetch)
    assert "culprit" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    with pytest.raises(OSError, match="disk"):  # it does not come back to life
        next(prefetch)


@pytest.mark.parametrize("waiting", ["for room", "in read"])
def test_close_ends_the_thread_within_a_second(waiting: str) -> None:
    read = Recorder()
    prefetch = Prefetch(read, 0, depth=2)
    (thread,) = prefetch_threads()
    read.wait_for(2)
    if waiting == "in read":
        read.go.clear()
        next(prefetch)
        read.wait_for(3)
    started = time.monotonic()
    prefetch.close()
    prefetch.close()
    assert time.monotonic() - started < 3  # a second for the read in progress, and what a busy machine adds
    read.go.set()
    thread.join(1)
    assert not thread.is_alive()
    assert len(read.asked) <= 3
    with pytest.raises(RunError, match="the prefetching was closed before step"):
        next(prefetch)


def test_close_wakes_a_consumer_that_waits() -> None:
    read = Recorder()
    read.go.clear()
    prefetch = Prefetch(read, 0)
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            next(prefetch)
        except RunError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    read.wait_for(1)
    prefetch.close()
    consumer.join(5)
    read.go.set()
    assert len(caught) == 1


def test_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_module, "TIMEOUT_SECONDS", 0.05)
    read = Recorder()
    read.go.clear()
    prefetch = Prefetch(read, 7)
    with pytest.raises(RunError, match="waited 0 s for the batch of step 7 to be read"):
        next(prefetch)
    read.go.set()


def test_the_thread_does_not_outlive_its_consumer() -> None:
    read = Recorder()
    prefetch = Prefetch(read, 0)
    (thread,) = prefetch_threads()
    gone = weakref.ref(prefetch)
    read.wait_for(3)
    del prefetch
    gc.collect()
    assert gone() is None
    thread.join(2)
    assert not thread.is_alive()


def test_what_was_read_ahead_is_let_go() -> None:
    class Batch:
        pass

    made: list[weakref.ref[Batch]] = []
    full = threading.Event()

    def read(step: int) -> Batch:
        batch = Batch()
        made.append(weakref.ref(batch))
        if step == 1:
            full.set()
        return batch

    prefetch = Prefetch(read, 0, depth=2)
    assert full.wait(10)
    prefetch.close()
    gc.collect()
    assert [batch() for batch in made] == [None, None]
