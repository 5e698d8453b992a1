"""Progress: the right display for the place, and the right numbers on it."""

import io
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from dsinga.monitor.progress import LiveLine, Pace, PlainLines, clock, in_notebook, show_progress, values

TRAIN = {"step": 100, "phase": "train", "time": 2.0, "loss": 0.25, "accuracy": 0.9375}
TEST = {"step": 100, "phase": "test", "time": 2.5, "loss": 0.3, "accuracy": 0.92}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_one_line_a_row():
    out = io.StringIO()
    with show_progress(400, "net", batchsize=64, out=out) as progress:
        assert isinstance(progress, PlainLines)
        progress.update(TRAIN)
        progress.event(TEST)
        progress.advance(150)
    assert out.getvalue().splitlines() == [
        "step 100/400  loss 0.25  accuracy 0.9375  3,200 samples/s  0:00:06 left",
        "step 100  test  loss 0.3  accuracy 0.92",
    ]


def test_a_terminal_gets_a_bar_and_tests_above_it(monkeypatch):
    for name, value in {"COLUMNS": "160", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    with show_progress(400, "net [v1]", batchsize=64, out=out) as progress:
        assert isinstance(progress, LiveLine)
        progress.advance(50)
        progress.update(TRAIN)
        progress.event(TEST)
    shown = out.getvalue()
    assert "step 100  test  loss 0.3  accuracy 0.92\n" in shown.replace("\r", "")
    last = shown[shown.rindex("net [v1]") :]
    assert "100/400 loss 0.25  accuracy 0.9375  3,200 samples/s  0:00:06 left" in last


def test_what_the_program_prints_stays_on_standard_output(capsys):
    with show_progress(400, "net", out=Terminal()):
        print("piped")
    assert capsys.readouterr().out == "piped\n"


def test_an_error_ends_the_display():
    out = Terminal()
    with pytest.raises(RuntimeError, match="lost"), show_progress(400, "net", out=out):
        raise RuntimeError("lost")
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is shown again


def test_no_samples_without_a_batchsize_and_no_time_left_at_the_end():
    assert Pace(400).describe(TRAIN) == "0:00:06 left"
    assert Pace(100).describe(TRAIN) == ""


def test_a_resumed_run_is_paced_from_where_it_started():
    assert Pace(400, start=90).describe(TRAIN) == "0:01:00 left"


def test_the_pace_forgets_a_slow_start():
    pace = Pace(10_000)
    for i in range(20):
        text = pace.describe({"step": 100 * i, "time": 1000 + i})
    assert text == "0:01:21 left"  # 8,100 steps at 100 a second


def test_rows_without_progress_have_no_pace():
    pace = Pace(400, batchsize=64)
    assert pace.describe({"step": 0, "time": 0.0}) == ""
    assert pace.describe({"step": 10}) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (3725, "1:02:05"), (360000, "100:00:00")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_values_leave_out_where_and_when():
    assert values(TRAIN) == "loss 0.25  accuracy 0.9375"


def test_a_script_is_no_notebook():
    assert not in_notebook()
    code = "import sys, dsinga.monitor; sys.exit('IPython' in sys.modules or dsinga.monitor.progress.in_notebook())"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


CELL = """
from dsinga.monitor import show_progress
with show_progress(400, "net", batchsize=64) as progress:
    progress.update({"step": 100, "phase": "train", "time": 2.0, "loss": 0.25, "accuracy": 0.9375})
    progress.event({"step": 100, "phase": "test", "time": 2.5, "loss": 0.3})
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq", "ignore:Proactor event loop")
def test_a_notebook_gets_the_picture():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"] == "net: step 100/400  3,200 samples/s  0:00:06 left"
    assert "train 0.9375" in output.data["text/html"]
    assert "test 0.3" in output.data["text/html"]
