"""Prefetching: order, depth, errors, and the end of the thread."""

import gc
import threading
import traceback
import weakref
from collections.abc import Iterator

import pytest

from dsinga.base.errors import RunError
from dsinga.reading import prefetch as prefetch_module
from dsinga.reading.prefetch import Prefetch
from tests.support.refusals import refused


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    if prefetch_threads():
        gc.collect()
    for thread in prefetch_threads():
        thread.join(60)
    assert not prefetch_threads()


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dsinga-prefetch"]


class Recorder:
    """A read function that records the steps it is called for, and blocks while ``unblocked`` is cleared."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.finished = 0
        self.changed = threading.Condition()
        self.unblocked = threading.Event()
        self.unblocked.set()

    def __call__(self, step: int) -> int:
        with self.changed:
            self.steps.append(step)
            self.changed.notify_all()
        assert self.unblocked.wait(60)
        self.finished += 1
        return step * step

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.steps) >= count, 60)


def test_steps_come_in_order() -> None:
    with Prefetch(lambda step: step * step, 3, 50) as prefetch:
        assert list(prefetch) == [step * step for step in range(3, 50)]
        assert list(prefetch) == []
    with Prefetch(lambda step: step, 5, 5) as prefetch:
        assert list(prefetch) == []


def test_without_stop_there_is_no_end() -> None:
    with Prefetch(lambda step: step, 10) as prefetch:
        assert [next(prefetch) for _ in range(1000)] == list(range(10, 1010))


def test_it_reads_ahead_no_more_than_the_depth() -> None:
    read = Recorder()
    with Prefetch(read, 0, depth=3) as prefetch:
        for count in range(5):
            read.wait_for(3 + count)  # with a slow consumer three results are read ahead
            assert read.steps == list(range(3 + count))
            assert next(prefetch) == count * count
    assert max(read.steps) <= 8


def test_an_error_is_raised_at_its_step_with_its_traceback() -> None:
    def fail_at_four(step: int) -> int:
        if step == 4:
            raise OSError("disk")
        return step

    prefetch = Prefetch(fail_at_four, 0)
    assert [next(prefetch) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="disk") as caught:
        next(prefetch)
    assert "fail_at_four" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    with pytest.raises(OSError, match="disk"):  # a second call raises it again
        next(prefetch)


@pytest.mark.parametrize("waiting", ["for room", "in read"])
def test_close_ends_the_thread_and_does_not_wait_for_a_blocked_read(waiting: str) -> None:
    read = Recorder()
    prefetch = Prefetch(read, 0, depth=2)
    (thread,) = prefetch_threads()
    read.wait_for(2)
    if waiting == "in read":
        read.unblocked.clear()
        next(prefetch)
        read.wait_for(3)
    prefetch.close()
    prefetch.close()
    if waiting == "in read":
        assert read.finished == 2  # close() has returned while the third read is blocked
    read.unblocked.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(read.steps) <= 3
    refused(lambda: next(prefetch), "cannot read the batch of step . after the end of prefetching", error=RunError)


def test_close_wakes_a_waiting_consumer() -> None:
    read = Recorder()
    read.unblocked.clear()
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
    consumer.join(60)
    read.unblocked.set()
    assert len(caught) == 1


def test_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_module, "TIMEOUT_SECONDS", 0.05)
    read = Recorder()
    read.unblocked.clear()
    prefetch = Prefetch(read, 7)
    refused(lambda: next(prefetch), "waited 0 s for the batch of step 7 to be read", error=RunError)
    read.unblocked.set()


def test_the_thread_does_not_outlive_its_consumer() -> None:
    read = Recorder()
    prefetch = Prefetch(read, 0)
    (thread,) = prefetch_threads()
    reference = weakref.ref(prefetch)
    read.wait_for(3)
    del prefetch
    gc.collect()
    assert reference() is None
    thread.join(60)
    assert not thread.is_alive()


def test_close_releases_the_batches_read_ahead() -> None:
    class Batch:
        pass

    batches: list[weakref.ref[Batch]] = []
    full = threading.Event()

    def read(step: int) -> Batch:
        batch = Batch()
        batches.append(weakref.ref(batch))
        if step == 1:
            full.set()
        return batch

    prefetch = Prefetch(read, 0, depth=2)
    assert full.wait(60)
    prefetch.close()
    gc.collect()
    assert [batch() for batch in batches] == [None, None]
