"""The command show: the pictures that it draws."""

from pathlib import Path

from tests.support.command_line import Dsinga


def test_show_draws_a_net(dsinga: Dsinga, folder: Path) -> None:
    assert "drawn to cli.svg" in dsinga("show", "job.conf").stdout
    assert (folder / "cli.svg").read_text().lstrip().startswith("<svg")


def test_show_draws_the_parts_of_a_cut_net_below_its_sites(dsinga: Dsinga, folder: Path) -> None:
    sites = [f"cluster.{field}" for field in ("nworker_groups=2", "nserver_groups=2", "sync_method=kMean")]
    options = [word for field in sites for word in ("--set", field)]
    cut = ["--set", "neuralnet.layer[ip1].partition_dim=1", "--partitions", "2"]
    shown = dsinga("show", "job.conf", "--svg", "parts.svg", *cut, *options)
    assert "topology: local SGD: 2 groups of 1 worker, 2 groups of 1 server, synchronised by the mean" in shown.stdout
    assert "worker 1" in (folder / "parts.svg").read_text()


def test_a_picture_that_cannot_be_written_is_refused(dsinga: Dsinga) -> None:
    refused = dsinga("show", "job.conf", "--svg", "job.conf/x.svg")
    said = "dsinga: the picture job.conf/x.svg cannot be written: Not a directory; name another file\n"
    assert (refused.returncode, refused.stderr) == (2, said)
