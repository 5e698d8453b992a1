"""What commands say of GPUs that are missing, and of iterations that are not captured."""

from pathlib import Path
from typing import Any

from dsinga import ops
from dsinga.base.errors import UserError
from tests.support.command_line import Dsinga
from tests.support.device_array import load_backends


def test_show_says_why_iterations_on_gpus_are_no_graphs(dsinga: Dsinga, folder: Path) -> None:
    on_gpu = "show", "job.conf", "--set", "gpu=[0]"
    assert "CUDA graphs" not in dsinga(*on_gpu).stdout
    shown = dsinga(*on_gpu, "--set", "updater.clip_global_norm=1").stdout
    assert "on GPUs, training iterations are not captured as CUDA graphs: clip_global_norm adds up" in shown
    shown = dsinga(*on_gpu, "--set", "cluster.nworkers_per_group=2").stdout
    assert "on GPUs, a training iteration is several CUDA graphs, between which params are exchanged" in shown


def test_a_missing_gpu_is_refused_before_training(dsinga: Dsinga, folder: Path, monkeypatch):
    def load_nothing() -> Any:
        raise UserError("no GPU was found")

    monkeypatch.setitem(ops.BACKENDS, "cupy", load_nothing)
    load_backends(monkeypatch, cupy=None)
    assert dsinga("train", "job.conf", "--workspace", "trained").returncode == 0
    trained = ("--checkpoint", "trained")
    for command, *options in (
        ("train",), ("bench",), ("test", *trained), ("predict", *trained, "--layer", "ip1", "--out", "out.zarr"),
    ):  # fmt: skip
        refused = dsinga(command, "job.conf", "--device", "gpu", *options)
        assert refused.returncode == 2
        assert (
            "cannot compute on a GPU: no GPU was found; to compute on CPU cores, leave out --device gpu"
            in refused.stderr
        )
        assert not (folder / "work").exists()
    assert dsinga("train", "job.conf").returncode == 0  # --device holds for its command only
