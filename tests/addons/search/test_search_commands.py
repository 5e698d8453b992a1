"""The commands find-lr and search: what they print and write."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from distributed import Client

import dsinga
from dsinga.addons.search import search_progress
from dsinga.addons.search.search_progress import SearchBar, SearchPicture, show_search
from dsinga.job import Job
from tests.support.command_line import Dsinga, check_hosts_and_resources
from tests.support.late_workers import check_status, check_wait


def test_find_lr_suggests_a_rate_and_draws(dsinga: Dsinga, folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    run = dsinga("find-lr", "job.conf", "--picture", "rates.svg", "--set", "cluster.workspace=nowhere")
    assert run.returncode == 0, run.stderr
    sentence, command, drawn = run.stdout.splitlines()
    rate = re.match(r"the suggested learning rate is (\S+), a tenth of ", sentence)[1]  # type: ignore[index]
    assert command == f"dsinga train job.conf --set updater.learning_rate.base_lr={rate}"
    assert drawn == "drawn to rates.svg"
    assert (folder / "rates.svg").read_text().startswith("<svg")
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "rates.svg"])


@pytest.mark.parametrize("command", [("find-lr",), ("search", "--set", "seed=1,2")])
def test_they_take_hosts_and_resources(dsinga: Dsinga, command: tuple[str, ...]) -> None:
    check_hosts_and_resources(dsinga, *command)


def test_search_prints_the_best_setting_first_and_goes_on(dsinga: Dsinga, folder: Path) -> None:
    command = ["search", "job.conf", "--workers", "1", "--set", "updater.learning_rate.base_lr=0.1,1e-9,0.05"]
    searched = dsinga(*command, "--set", "seed=4", "--only", "1", "--workspace", "found")
    assert searched.returncode == 0, searched.stderr
    assert "best 1 (updater.learning_rate.base_lr=1e-09): test/loss" in searched.stdout
    searched = dsinga(*command, "--set", "seed=4", "--workspace", "found", "--resume", "--picture", "found.svg")
    assert searched.returncode == 0, searched.stderr
    numbers = [line.split()[0] for line in searched.stdout.splitlines() if "finished" in line]
    assert numbers == ["0", "2", "1"]
    assert "metrics and checkpoints are in found/setting-*\ndrawn to found.svg" in searched.stdout
    assert (folder / "found.svg").read_text().startswith("<svg")
    lines = (folder / "found" / "search.csv").read_text().splitlines()
    assert lines[0] == "number,updater.learning_rate.base_lr,state,score,steps,seconds,remark"
    assert (folder / "found" / "setting-1" / "checkpoint" / "step20").is_dir()


def test_search_halves_the_settings(dsinga: Dsinga) -> None:
    command = ["search", "job.conf", "--workers", "1", "--set", "test_freq=5", "--set", "seed=1,2,3"]
    searched = dsinga(*command, "--halving", "2", "--first-rung", "5")
    assert searched.returncode == 0, searched.stderr
    assert "rung" in searched.stdout.splitlines()[1]
    states = [line.split()[2:4] for line in searched.stdout.splitlines()[3:6]]
    assert states == [["3", "finished"], ["2", "stopped"], ["1", "stopped"]]
    assert "6/6; rung 3 of 3; best" in searched.stderr
    refused = dsinga(*command, "--asynchronous")
    assert "asynchronous has no effect without a factor" in refused.stderr


def test_a_search_fails_where_all_settings_do(dsinga: Dsinga) -> None:
    command = ("search", "job.conf", "--workers", "1", "--set")
    searched = dsinga(*command, "updater.learning_rate.base_lr=0.1,-1")
    assert searched.returncode == 0
    assert "1 of 2 settings failed, for the reasons in the column remark" in searched.stdout
    searched = dsinga(*command, "updater.learning_rate.base_lr=1e30,1e31", "--set", "updater.weight_decay=1e30")
    assert searched.returncode == 1
    assert "dsinga: all 2 settings failed, the first one with: " in searched.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what to try, as in --set updater.learning_rate.base_lr=0.01,0.1, or give --settings FILE"),
        (("--set", "seed=1,2", "--settings", "job.conf"), "give the values in job.conf or by --set, not both"),
        (("--set", "seed=1,2", "--monitor", "val_lss"), "there is no metric 'val/lss'"),
    ],
)
def test_a_search_without_settings_is_refused(dsinga: Dsinga, arguments: tuple[str, ...], message: str) -> None:
    refused = dsinga("search", "job.conf", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr


# Searches, and their commands, wait for Dask workers that come late.
def find_rate(job: Job, client: Client) -> object:
    """Search for a learning rate with two workers."""
    return dsinga.find_learning_rate(job, client=client, workers=2, steps=10, progress=False)


def search(job: Job, client: Client) -> object:
    """Search among one setting with two workers."""
    return dsinga.search(job, {"seed": [1]}, client=client, workers=2, progress=False)


@pytest.mark.parametrize("call", [find_rate, search])
def test_searches_wait_for_late_workers(
    call: Callable[[Job, Client], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_wait(2, call, tmp_path, monkeypatch)


@pytest.mark.parametrize(("name", "options"), [("search", ("--set", "seed=1,2")), ("find-lr", ())])
def test_a_command_whose_cluster_does_not_come_ends_with_75(
    name: str,
    options: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_status(name, options, tmp_path, monkeypatch, capsys)


# The displays of a search: a bar in a terminal, a picture in a notebook.
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
