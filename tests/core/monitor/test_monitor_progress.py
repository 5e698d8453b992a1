"""Progress: which display is chosen, and the numbers that it shows; the bar of an import."""

import io
import itertools
import re

import pytest

from dsinga.base.advice import in_notebook
from dsinga.monitor import show_import
from dsinga.monitor.progress import LiveLine, PlainLines, ThroughputEstimate, duration, show_progress, values
from tests.support.programs import python

NOW = {"step": 100, "samples_per_second": 3200.4, "loss": 0.25, "accuracy": 0.9375}
TRAIN = {"step": 100, "phase": "train", "time": 2.0, "loss": 0.26, "accuracy": 0.93}
TEST = {"step": 100, "phase": "test", "time": 2.5, "loss": 0.3, "accuracy": 0.92}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal_of(columns, monkeypatch):
    for name, value in {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


def ticking(seconds):
    """Return a clock that advances by ``seconds`` each time it is read."""
    return itertools.count(0, seconds).__next__


def test_a_log_gets_one_line_a_row_of_the_history():
    out = io.StringIO()
    with show_progress(400, "net", out) as progress:
        assert isinstance(progress, PlainLines)
        progress.update(NOW)
        progress.show_row(TRAIN)
        progress.show_row(TEST)
        progress.remark("training stopped")
    assert out.getvalue().splitlines() == [
        "step 100/400  train  loss 0.26  accuracy 0.93  3,200 samples/s",
        "step 100/400  test  loss 0.3  accuracy 0.92",
        "training stopped",
    ]


def test_a_terminal_gets_a_bar_and_tests_above_it(monkeypatch):
    out = terminal_of(160, monkeypatch)
    with show_progress(400, "net [v1]", out) as progress:
        assert isinstance(progress, LiveLine)
        progress.update(NOW)
        progress.show_row(TRAIN)
        progress.show_row(TEST)
        progress.remark("training [was] stopped")
    output = out.getvalue()
    assert "step 100/400  test  loss 0.3  accuracy 0.92\n" in output.replace("\r", "")
    assert "train " not in output
    assert "training [was] stopped\n" in output.replace("\r", "")
    assert "100/400 loss 0.25  accuracy 0.9375  3,200 samples/s" in output[output.rindex("net [v1]") :]


def test_a_narrow_terminal_shows_the_steps(monkeypatch):
    out = terminal_of(80, monkeypatch)
    with show_progress(400, "digits", out) as progress:
        progress.update({**NOW, **{f"metric_{number}": 0.5 for number in range(9)}})
    assert re.search(r"digits +100/400 loss 0.25", out.getvalue())


def test_standard_output_is_not_redirected(capsys):
    with show_progress(400, "net", Terminal()):
        print("piped")
    assert capsys.readouterr().out == "piped\n"


@pytest.mark.parametrize("show", [lambda out: show_progress(400, "net", out), lambda out: show_import("mnist", out)])
def test_an_error_ends_the_display(show):
    out = Terminal()
    with pytest.raises(KeyboardInterrupt), show(out):
        raise KeyboardInterrupt
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is shown again


@pytest.mark.parametrize(
    ("steps", "speed", "text"),
    [
        ([], {}, ""),
        ([100], {}, ""),
        ([100, 200], {"samples_per_second": 3200}, "3,200 samples/s  0:00:04 left"),
        ([200, 400], {"samples_per_second": 10.0}, "10 samples/s"),
        ([200, 200], {}, ""),
    ],
)
def test_the_time_left_is_known_from_the_second_update_on_until_the_end(steps, speed, text):
    throughput = ThroughputEstimate(400, clock=ticking(2))
    for step in steps:
        throughput.update({"step": step, **speed})
    assert str(throughput) == text


def test_the_estimate_forgets_a_slow_start():
    seconds = itertools.chain([0.0], itertools.count(1000))
    throughput = ThroughputEstimate(10_000, clock=seconds.__next__)
    for step in range(0, 2000, 100):
        throughput.update({"step": step})
    assert str(throughput) == "0:01:21 left"  # 8,100 steps at 100 a second


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (3725, "1:02:05"), (360000, "100:00:00")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_a_script_is_not_a_notebook():
    assert not in_notebook()
    code = "import sys, dsinga.monitor; sys.exit('IPython' in sys.modules or dsinga.base.advice.in_notebook())"
    python("-c", code)


def test_steps_of_environments_are_shown_as_a_speed():
    throughput = ThroughputEstimate(400)
    throughput.update({"step": 100, "env_steps_per_second": 12_345.6})
    assert str(throughput) == "12,346 env steps/s"
    assert values({"step": 100, "phase": "train", "episode_return": 37.5, "env_steps_per_second": 12_345.6}) == (
        "episode_return 37.5"
    )


def test_a_terminal_gets_a_bar(monkeypatch):
    out = terminal_of(100, monkeypatch)
    with show_import("mnist [raw]", out) as progress:
        progress(25, 100)
        progress(100, 100)
    last = out.getvalue()[out.getvalue().rindex("mnist [raw]") :]
    assert "100%" in last


def test_a_log_gets_no_bar():
    out = io.StringIO()
    with show_import("mnist", out) as progress:
        progress(25, 100)
    assert out.getvalue() == ""
