"""The progress bar of an import is shown in a terminal and nowhere else."""

import io

import pytest

from dsinga.monitor import show_import


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar(monkeypatch):
    for name, value in {"COLUMNS": "100", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
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


def test_an_error_ends_the_bar():
    out = Terminal()
    with pytest.raises(KeyboardInterrupt), show_import("mnist", out):
        raise KeyboardInterrupt
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is shown again
