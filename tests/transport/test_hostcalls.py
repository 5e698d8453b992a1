"""Calls between processes of one host, and the memory that they share."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import RunError
from dsinga.transport.hostcalls import Caller, Guest, Listener, connect
from dsinga.transport.shared_buffer import HUGE, create_shared_buffer, offsets

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="anonymous memory files are Linux's")


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def listener(name: str) -> Iterator[Listener]:
    """One that answers with what it is told twice, and never where it is told nothing."""

    def take(guest: Guest, number: int | None, what: str, *said: Any) -> None:
        if what == "refuse":
            raise RunError("refused")
        if what == "fail":
            raise ValueError("a fault")
        if what != "wait":
            guest.answer(number, [one + one for one in said])

    made = Listener(name, take)
    yield made
    made.close()


def caller_of(name: str) -> Caller:
    found = connect(name)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("size", [0, 5, 5000, 300_000, HUGE])
def test_arrays_of_any_size_come_and_go(listener: Listener, name: str, size: int) -> None:
    array = np.random.default_rng(size).random(size, np.float32)
    small, large = caller_of(name).call("add", np.arange(3), array).result(10)
    np.testing.assert_array_equal(small, [0, 2, 4])
    np.testing.assert_array_equal(large, array + array)


def test_memory_is_used_again_when_nobody_refers_to_what_lay_there(listener: Listener, name: str) -> None:
    """And not before."""
    caller = caller_of(name)
    kept = caller.call("add", np.full(5000, 1.0)).result(10)[0]
    for number in range(20):
        (found,) = caller.call("add", np.full(5000, number)).result(10)
        assert (found == 2 * number).all()
    assert (kept == 2).all()
    assert len(caller._channel._own._segments) <= 3
    assert len(caller._channel._theirs) <= 4


def test_a_message_of_many_small_things_arrives_too(listener: Listener, name: str) -> None:
    things = [str(number) for number in range(30_000)]
    (answer,) = caller_of(name).call("add", things).result(10)
    assert answer == things + things


def test_answers_are_those_of_their_calls_whatever_the_order_they_are_read_in(listener: Listener, name: str) -> None:
    caller = caller_of(name)
    replies = [caller.call("add", number) for number in range(50)]
    for number in reversed(range(50)):
        assert replies[number].result(10) == [2 * number]
        assert replies[number].done()


def test_a_call_that_is_refused_says_why(listener: Listener, name: str) -> None:
    caller = caller_of(name)
    with pytest.raises(RunError, match="refused"):
        caller.call("refuse").result(10)
    with pytest.raises(RunError, match=r"fail failed: ValueError\('a fault'\)"):
        caller.call("fail").result(10)
    assert caller.call("add", 1).result(10) == [2], "others are served as before"


def test_a_wait_ends(listener: Listener, name: str) -> None:
    reply = caller_of(name).call("wait")
    with pytest.raises(TimeoutError):
        reply.result(0.05)
    assert not reply.done()


def test_whoever_waits_is_told_when_the_listener_closes(listener: Listener, name: str) -> None:
    caller = caller_of(name)
    reply = caller.call("wait")
    threading.Timer(0.1, listener.close).start()
    with pytest.raises(OSError, match="gone"):
        reply.result(10)
    with pytest.raises(OSError, match="gone"):
        caller.call("add", 1).result(10)


def test_nobody_is_reached_where_nobody_listens(name: str) -> None:
    assert connect(name) is None


def test_a_name_is_free_again_when_its_listener_has_closed(name: str) -> None:
    for _ in range(3):
        made = Listener(name, lambda *said: None)
        made.close()
        made._thread.join(10)
        assert not made._thread.is_alive()
    assert connect(name) is None


def test_what_one_end_writes_the_other_reads(name: str) -> None:
    """In memory that goes to whoever calls, and that the caller brings; it outlives both descriptors."""
    ours = create_shared_buffer(HUGE)
    brought = threading.Event()
    theirs: list[np.ndarray] = []

    def take(guest: Guest, number: int | None, what: str) -> None:
        assert guest.segment is not None
        theirs.append(guest.segment.array)
        brought.set()

    listener = Listener(name, take, ours)
    found = connect(name)
    assert found is not None
    caller, welcome = found
    assert welcome is not None
    ours.array[7] = 3
    assert welcome.array[7] == 3
    assert not welcome.array.flags.writeable
    own = create_shared_buffer(100)
    caller.bring(own)
    caller.tell("look")
    own.close()
    assert brought.wait(10)
    own.array[99] = 5
    assert theirs[0][99] == 5
    assert not theirs[0].flags.writeable
    listener.close()
    listener._thread.join(10)
    assert ours.fd == -1
    assert welcome.array[7] == 3


def test_pieces_of_a_segment_share_no_cache_line() -> None:
    places, size = offsets({3: 1, 1: 64, 2: 65, 0: 0})
    assert places == {0: 0, 1: 0, 2: 64, 3: 192}
    assert size == 256


CHILD = """
import sys, time
from dsinga.transport.hostcalls import Listener
from dsinga.transport.shared_buffer import create_shared_buffer
segment = create_shared_buffer(1 << 22)
segment.array[:] = 1
listener = Listener(sys.argv[1], lambda *said: None, segment)
print("ready", flush=True)
time.sleep(60)
"""


def test_nothing_is_left_of_a_process_that_is_killed(name: str) -> None:
    """No file, no address, no memory but what the other end still looks at."""
    before = set(Path("/dev/shm").iterdir())
    with subprocess.Popen([sys.executable, "-c", CHILD, name], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        found = connect(name)
        assert found is not None
        caller, welcome = found
        reply = caller.call("wait")
        os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(OSError, match="gone|reset"):
        reply.result(10)
    assert welcome is not None
    assert welcome.array.all()
    assert connect(name) is None
    with contextlib.suppress(PermissionError):
        assert name not in Path("/proc/net/unix").read_text()
    assert {path.name for path in set(Path("/dev/shm").iterdir()) - before if "dsinga" in path.name} == set()
