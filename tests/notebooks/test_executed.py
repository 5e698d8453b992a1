"""Notebooks run in a fresh kernel, some with fewer steps than in the repository: what they show, print and find."""

import re
from pathlib import Path
from typing import Any

import pytest
import zarr

import dsinga
from tests.support.notebook_cells import execute, outputs, result, shown, streams, value

pytestmark = pytest.mark.ci


def check_cells(book: Any, html: str = "", png: str = "", printed: tuple[str, ...] = ()) -> None:
    """Check which cells display HTML and pictures, and that no others than those named print or warn."""
    assert shown(book, "text/html", html)
    assert shown(book, "image/png", png)
    assert [name for name, _ in streams(book)] == [*printed]


def test_quickstart(tmp_path: Path) -> None:
    book = execute("quickstart", tmp_path)
    html, png = "job picture cluster train resume", "look curves confusion mistakes filters features"
    check_cells(book, html, png, printed=("print",))
    (printed,) = outputs(book, "print")
    assert printed.name == "stdout"
    job = dsinga.loads(printed.text)
    assert [layer.name for layer in job.neuralnet.layer if layer.convolution_conf] == ["conv1", "conv2"]
    found = value(book, "evaluate")
    assert found["test"]["accuracy"] >= 0.97
    assert found["validation"]["accuracy"] >= 0.94
    last = value(book, "history")
    assert (last["step"], last["epoch"], last["phase"]) == (375, 20, "val")
    rows = value(book, "history-columns")
    assert [epoch for epoch, _ in rows] == [16, 17, 18, 19, 20]
    assert rows[-1] == (20, last["accuracy"])
    assert found["validation"]["loss"] <= last["loss"] + 1e-6  # that of the best epoch
    assert value(book, "checkpoint") == found["test"]
    (picture,), (resumed,) = outputs(book, "train"), outputs(book, "resume")
    assert "step 375/375" in picture.data["text/plain"]
    assert "step 469/469" in resumed.data["text/plain"]


FIXED_RATES = """from dsinga.addons.planner import pricing
from dsinga.addons.planner.link import FREE_BARRIER
from tests.support.planner_nets import MACHINE

pricing.measure_machine = lambda *arguments: MACHINE
pricing.measure_barrier = lambda: FREE_BARRIER
"""


def test_partitioning(tmp_path: Path) -> None:
    """With fixed rates in place of this machine's, and with a cache of its own."""
    changed = {"plan": lambda source: FIXED_RATES + source}
    book = execute("partitioning", tmp_path, environment=["DASK_DSINGA__CACHE"], changed=changed)
    check_cells(book, "job cluster train plan-picture", "stream", printed=("plan",))
    assert max(value(book, "compare").values()) < 1e-2  # a pooling may choose another maximum
    single, three = value(book, "accuracy")
    assert single > 0.9
    assert three == pytest.approx(single, abs=0.01)
    traffic = value(book, "ways")
    assert traffic["all by rows"]["over bridges"] == 0
    assert traffic["all by features"]["gradients"] == 0
    assert traffic["ip by features"]["gradients"] == traffic["ip on worker 1"]["gradients"] > 0
    (text,) = [output.text for output in outputs(book, "plan")]
    ms = {line[:16].strip(): float(line[16:25]) for line in text.splitlines()}
    assert list(ms.values()) == sorted(ms.values())
    assert {*list(ms)[:2]} == {"one worker", "auto"}  # for so small a net
    assert ms["one worker"] == ms["auto"] < ms["data"]


def test_restricted_boltzmann_machines(tmp_path: Path) -> None:
    fewer = {"parameters": lambda old: f"{old}\nSTEPS = 320"}
    book = execute("rbm", tmp_path, environment=["TMPDIR"], changed=fewer)
    errors = value(book, "train")
    assert len(errors) == 5
    assert errors[-1] < 0.4 * errors[0]
    steps, losses = zip(*value(book, "tune"), strict=True)
    assert (steps[0], steps[-1]) == (0, 4 * 320)
    assert losses[-1] < 0.8 * losses[0]
    errors, same = value(book, "compare"), value(book, "neighbours")
    assert errors["auto-encoder"] < errors["principal components"]
    assert same["auto-encoder"] > same["principal components"]
    assert all("<svg" in result(book, name)["text/html"] for name in ("first", "stack"))
    assert shown(book, "image/png", "filters dream rebuilt code")
    assert {name for name, _ in streams(book)} == {"stack"}
    lines = [line for _, output in streams(book) for line in output.text.splitlines() if line]
    assert all(re.match(r"the net has no params b\d1 of .*: they are left out", line) for line in lines), lines


def test_char_rnn(tmp_path: Path) -> None:
    fewer = {"stages": lambda old: "stages = 2, 10, 30"}
    book = execute("char-rnn", tmp_path, environment=["TMPDIR"], changed=fewer)
    check_cells(book, "job", "bits")
    uniform, learned = value(book, "last")
    assert learned < uniform - 1
    for name, count in (("learn", 3), ("heat", 4)):
        (table,) = outputs(book, name)
        assert table.data["text/html"].count("<pre>") == count


def test_estimators(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs pip install 'dsinga[estimators]'")
    book = execute("estimators", tmp_path)
    check_cells(book, "first client lazy", "history scores doubt")
    assert min(value(book, name) for name in ("score", "best", "compute")) > 0.95
    assert value(book, "search")["pca__n_components"] > 4
    assert value(book, "save") is True  # what is loaded again gives the answers of the cluster


def test_tables(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs pip install 'dsinga[estimators]'")
    book = execute("tables", tmp_path)
    check_cells(book, "make columns", "reliability importance dependence")
    assert value(book, "score")["accuracy"] > 0.75
    assert value(book, "save") is True


def test_retrieval(tmp_path: Path) -> None:
    book = execute("retrieval", tmp_path, environment=["TMPDIR"])
    check_cells(book, "job train", "examples curve")
    assert min(value(book, "accuracy")) > 0.75  # by half a digit
    precision = value(book, "map")
    assert min(precision["lower halves for upper"], precision["upper halves for lower"]) > 0.6
    assert max(precision["by pixels, lower for upper"], precision["chance"]) < 0.3


def test_sites(tmp_path: Path) -> None:
    book = execute("sites", tmp_path, environment=["TMPDIR"])
    check_cells(book, png="train")
    assert shown(book, "image/svg+xml", "picture rare")
    alone, together = value(book, "alone")  # one site lacks digits that the other has
    assert alone < 0.75
    assert together > 0.85
    sent = value(book, "bytes")
    assert sent["H = 1"] == pytest.approx(10 * sent["H = 10"], rel=0.01)
    assert value(book, "bits") is True


def test_microscopes(tmp_path: Path) -> None:
    """The net finds more cells than a threshold."""
    book = execute("microscopes", tmp_path, environment=["TMPDIR"])
    check_cells(book, "cells written", "windows net maps")
    scores = value(book, "scores")
    assert scores["flows"][0] > 0.9
    assert scores["flows"][1] > 0.8
    assert scores["threshold"][0] < 0.8
    (folder,) = tmp_path.glob("*/cells.ome.zarr/labels")
    labels = zarr.open_group(folder, mode="r")
    assert labels.attrs["ome"]["labels"] == ["cells", "found"]


def test_reinforcement_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("DSINGA_STEPS", "4096")
    book = execute("rl", tmp_path)
    assert not [output.text for _, output in streams(book) if output.name == "stderr"]
    shown_outputs: list[Any] = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", ()) for output in shown_outputs) >= 3
    (cell,) = (cell for cell in book.cells if cell.id == "staleness")
    assert 0 <= float(cell.outputs[0].text.split()[2]) <= 8
