"""``dask dsinga``: the commands, messages and exit statuses of ``dsinga`` as a plug-in of Dask's command line."""

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest

from dsinga.base.advice import how_to_resume
from dsinga.base.registry import entries
from dsinga.cluster.dask.command_line import command
from dsinga.data import write_store
from tests.support.executed_pages import ROOT
from tests.support.small_job import LINEAR

JOB = LINEAR.replace("{ batchsize: 20 }", '{ path: "train.zarr" batchsize: 10 }')


@pytest.fixture
def dask(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run ``dask`` in a process that finds the entry points of setup.cfg, as an installed dsinga gives them."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    installed = tmp_path / "installed" / "dsinga-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: dsinga\nVersion: 0\n")
    points = config["options.entry_points"]
    (installed / "entry_points.txt").write_text("".join(f"[{group}]{points[group]}\n" for group in points))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed.parent), str(ROOT)])}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "dask", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)

    return run


@pytest.mark.ci
def test_dask_offers_all_commands(dask):
    shown = dask("dsinga", "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Usage: python -m dask dsinga [OPTIONS] COMMAND")
    commands = shown.stdout.partition("Commands:")[2].split()
    assert {"train", *entries("command")} <= set(commands)


def test_dask_knows_the_settings(dask):
    assert dask("config", "get", "dsinga.timeout").stdout.strip() == "5 minutes"


def test_messages_and_statuses_are_those_of_dsinga(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = np.full((40, 4), 1e30, np.float32)
    write_store("train.zarr", [(data, np.arange(40) % 2)])
    Path("job.conf").write_text(JOB)
    Path("bad.conf").write_text(JOB.replace("kInnerProduct", "kInnerProdukt"))
    bad_layer = "dsinga: bad.conf:6: layer 'ip': .* did you mean 'kInnerProduct'\\?\n"
    for arguments, status, message in (
        (["train", "bad.conf"], 2, bad_layer),
        (["train", "job.conf", "--resume"], 2, r"dsinga: .*; train without --resume first\n"),
        (["train", "job.conf"], 1, r"(?s)(.*\n)?dsinga: [^\n]*not finite[^\n]*no checkpoint was written\n"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(arguments, prog_name="dask dsinga")
        printed = capsys.readouterr()
        assert ended.value.code == status
        assert re.fullmatch(message, printed.err), printed.err
        assert not printed.out


def test_advice_names_the_command_that_was_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        command.main(["example", "--help"], prog_name="dask dsinga")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: dask dsinga example")
    advice = []
    monkeypatch.setattr(click.Group, "invoke", lambda group, ctx: advice.append(how_to_resume()))
    command.main(["train", "a job.conf"], prog_name="dask dsinga", standalone_mode=False)
    assert advice == ["dask dsinga train 'a job.conf' --resume"]
