"""The monitor of a run: streams that are closed, or full, while it shows progress."""

import io
import sys

import pytest

from dsinga.monitor import RunMonitor

ROW = {"step": 1, "phase": "train", "time": 1.0, "loss": 0.5}


@pytest.mark.parametrize("begins_closed", [False, True])
def test_a_closed_stream_does_not_end_the_run(monkeypatch, begins_closed):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with RunMonitor("net", 10, None, resume=False, progress=True) as monitor:
        if begins_closed:
            sys.stderr.close()
        monitor.waiting("waiting for workers")
        monitor.begin(0)
        sys.stderr.close()
        monitor.record(ROW)
        monitor.remark("stopped early")
    assert list(monitor.history) == [ROW]
    assert monitor.history.remarks == ["stopped early"]


def test_lines_are_shown_again_when_a_full_pipe_is_read(monkeypatch):
    class Pipe(io.StringIO):
        is_full = False

        def write(self, text):
            if self.is_full:
                raise BlockingIOError
            return super().write(text)

    pipe = Pipe()
    monkeypatch.setattr(sys, "stderr", pipe)
    with RunMonitor("net", 10, None, resume=False, progress=True) as monitor:
        monitor.begin(0)
        pipe.is_full = True
        monitor.record(ROW)
        pipe.is_full = False
        monitor.record({**ROW, "step": 2})
        assert pipe.getvalue().startswith("step 2/10")


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_earlier_run_is_kept_unless_it_goes_on(monkeypatch, tmp_path, is_resumed):
    monkeypatch.chdir(tmp_path)
    for step in (1, 2):
        with RunMonitor("net", 10, tmp_path / "work", is_resumed, progress=False) as monitor:
            monitor.begin(step)
            monitor.record({**ROW, "step": step})
    kept = [] if is_resumed else ["the earlier run in work is kept in work/run-1"]
    assert monitor.history.remarks == kept
    assert len(monitor.history) == 1 + is_resumed
