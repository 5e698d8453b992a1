"""Signals that arrive while a kernel of oneDNN runs, such as Ctrl+C."""

import sys
import threading

import pytest

pytest.importorskip("dsinga.ops.onednn.library", exc_type=Exception)

from dsinga.ops.onednn.thread import DISABLED, SIGNAL_STACK, current_stack, thread_state
from tests.support.programs import python

# Of a shape for which the library has its stack pointer on the heap.
INTERRUPT_PRODUCTS = """
import signal
import numpy as np
from dsinga.ops.onednn.products import product
received = []
signal.signal(signal.SIGALRM, lambda number, frame: received.append(number))
a, b, out = np.ones((32, 128), np.float32), np.ones((128, 1024), np.float32), np.empty((32, 1024), np.float32)
neighbours = [np.full(500, 7.0) for _ in range(2000)]
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
while len(received) < 1000:
    product(a, b, out)
    neighbours.pop(0)
    neighbours.append(np.full(500, 7.0))
signal.setitimer(signal.ITIMER_REAL, 0)
assert (out == 128.0).all()
assert all((array == 7.0).all() for array in neighbours)
print("intact")
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="alternate stacks are made on Linux")


@on_linux
def test_signal_during_a_product_leaves_the_heap_intact() -> None:
    done = python("-c", INTERRUPT_PRODUCTS, environment={"OMP_NUM_THREADS": "1"})
    assert done.stdout == "intact\n", done.stderr


@on_linux
def test_each_thread_with_kernels_has_a_stack_for_signals() -> None:
    stacks = []

    def look() -> None:
        before = current_stack().flags
        start = thread_state.signal_stack.start
        stack = current_stack()
        stacks.append((before, stack.flags, stack.size, stack.start == start))

    for _ in range(2):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(100)
    assert stacks == [(DISABLED, 0, SIGNAL_STACK, True)] * 2


def test_a_stack_that_outlives_its_module_ends_in_silence() -> None:
    program = """
import sys
from dsinga.ops.onednn.thread import SignalStack
sys.kept_to_the_end = SignalStack(), sys.modules[SignalStack.__module__]
"""
    done = python("-c", program)
    assert done.stderr == ""
