"""The displays of a search: a bar in a terminal, a picture in a notebook."""

import io

import pytest

from dsinga.addons.search import search_progress
from dsinga.addons.search.search_progress import SearchBar, SearchPicture, show_search


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_below_the_remarks() -> None:
    out = Terminal()
    with show_search(3, "blobs", out) as display:
        assert isinstance(display, SearchBar)
        display.update(2, 1, "best: [rate] 0.1")
        display.remark("setting 1 has [ended]")
    remark, _, bar = out.getvalue().partition("setting 1 has [ended]")
    assert "search blobs" in remark + bar
    assert "2/3" in bar
    assert "1 running; best: [rate] 0.1" in bar


def test_a_notebook_has_a_picture(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("IPython")
    monkeypatch.setattr(search_progress, "in_notebook", lambda: True)
    with show_search(3, "blobs") as display:
        assert isinstance(display, SearchPicture)
        display.update(2, 1, "best: <rate> 0.1")
        display.remark("setting 1 has ended")
    assert repr(display) == "search blobs: 2/3 runs, 1 running; best: <rate> 0.1\nsetting 1 has ended"
    html = display._repr_html_()
    assert '<progress value="2" max="3">' in html
    assert "best: &lt;rate&gt; 0.1" in html
    assert capsys.readouterr().out.endswith("setting 1 has ended\n")
