"""Displays a search's progress: a live line in a terminal, lines in a log, a notebook line."""

from __future__ import annotations

import io
from abc import abstractmethod
from html import escape
from typing import TextIO

from dsinga.base.advice import in_notebook
from dsinga.monitor.progress import ProgressBar, ProgressDisplay
from dsinga.monitor.standard_streams import error_stream


def show_search(total: int, name: str, out: TextIO | None = None, *, quiet: bool = False) -> SearchProgress:
    """Create the progress display for a notebook, a terminal, or neither (a log, a pipe)."""
    if quiet:
        return SearchLines(total, io.StringIO())
    out = out or error_stream()
    if in_notebook():
        return SearchPicture(total, name)
    return SearchBar(total, f"search {name}", out) if out.isatty() else SearchLines(total, out)


class SearchProgress(ProgressDisplay):
    """Base class of displays of a search's progress."""

    @abstractmethod
    def update(self, done: int, running: int, best: str) -> None:
        """Show the number of ended and of running runs, and the best setting."""


class SearchLines(SearchProgress):
    """A display that prints a line for every ended run, for logs, pipes and batch jobs."""

    def __init__(self, total: int, out: TextIO):
        self._total, self._out = total, out
        self._state = ""

    def update(self, done: int, running: int, best: str) -> None:
        self._state = f"{done}/{self._total}; {best}" if best else f"{done}/{self._total}"

    def remark(self, sentence: str) -> None:
        print(f"{sentence}  ({self._state})" if self._state else sentence, file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()


class SearchBar(ProgressBar, SearchProgress):
    """A display with a progress bar, and a line for every ended run above it."""

    def update(self, done: int, running: int, best: str) -> None:
        self._bar.update(
            self._task, completed=done, tail=f"{running} running; {best}" if best else f"{running} running"
        )


class SearchPicture(SearchProgress):
    """A display with a progress bar and a line of text below a notebook's cell."""

    def __init__(self, total: int, name: str):
        from IPython.display import DisplayHandle

        self._total, self._name = total, name
        self._done, self._state, self._event = 0, "", ""
        self._handle = DisplayHandle()
        self._handle.display(self)

    def update(self, done: int, running: int, best: str) -> None:
        state = f"{running} running; {best}" if best else f"{running} running"
        if (done, state) != (self._done, self._state):
            self._done, self._state = done, state
            self._handle.update(self)

    def remark(self, sentence: str) -> None:
        self._event = sentence
        self._handle.update(self)

    def close(self) -> None:
        self._handle.update(self)

    def __repr__(self) -> str:
        text = f"search {self._name}: {self._done}/{self._total} runs, {self._state}"
        return "\n".join(filter(None, [text, self._event]))

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._done}" max="{max(1, self._total)}"></progress>'
        return f'{bar} <span style="white-space: pre-wrap">{escape(repr(self))}</span>'
