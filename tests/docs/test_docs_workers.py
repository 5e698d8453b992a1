"""docs/howto/run-on-a-cluster.md shows the messages about missing things as they are."""

import types

from dsinga.base.version import __version__
from dsinga.cluster.preflight.worker_lacks import PYTHON, describe_lacks, find_lacks
from tests.support.executed_pages import ROOT, blocks

PAGE = (ROOT / "docs" / "howto" / "run-on-a-cluster.md").read_text(encoding="utf-8")
REPORT = {
    "python": PYTHON, "executable": "/opt/dask/bin/python", "packages": {}, "dsinga": __version__,
    "import": "", "no_kernels": "", "objects": {}, "stores": {},
}  # fmt: skip


def test_the_message_is_that_of_the_package(monkeypatch):
    layer = type("Square", (), {"__module__": "square"})()
    monkeypatch.setitem(__import__("sys").modules, "square", types.ModuleType("square"))
    __import__("square").__file__ = "/home/me/square.py"
    reports = {
        "tcp://10.0.0.5:40123": {"dsinga": None},
        "tcp://10.0.0.8:36007": {"objects": {"layer 'act'": "ModuleNotFoundError: No module named 'square'"}},
    }
    lacks = {at: list(find_lacks({**REPORT, **report}, {"layer 'act'": layer})) for at, report in reports.items()}
    (shown,) = (block.text for block in blocks(PAGE) if block.text.startswith("dsinga: "))
    assert shown == f"dsinga: {describe_lacks(lacks)}\n"
