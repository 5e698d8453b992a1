"""A fixture in which threads pause at random lines of the server's code, to provoke races."""

import random
import threading
import time
from pathlib import Path

import pytest

import dsinga.cluster.server

SERVER = str(Path(dsinga.cluster.server.__file__).parent)


@pytest.fixture
def restless_threads():
    draw = random.Random(0)

    def trace(frame, event, arg):
        if not frame.f_code.co_filename.startswith(SERVER):
            return None
        if draw.random() < 0.1:
            time.sleep(1e-4)  # long enough for another thread to run the same lines
        return trace

    threading.settrace(trace)
    yield
    threading.settrace(None)
