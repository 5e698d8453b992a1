"""What commands say of GPUs that are missing, and of iterations that are not captured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import ops
from dsinga.base.errors import UserError
from dsinga.engine.local_net import LocalNet
from dsinga.job import Phase
from dsinga.layers import Records
from dsinga.ops import BACKENDS
from dsinga.passes.predictor import Predictor
from dsinga.testing.kernel_backend import KernelBackend
from tests.core.layers.test_layers_convlstm import assert_like_torch, case_of
from tests.core.layers.test_layers_loss import assert_other_answers_are_refused
from tests.core.ops.test_ops_torch import (  # noqa: F401
    test_convolutions_of_image_nets,
    test_pooling_and_normalisation_of_image_nets,
    test_sums_over_many_rows_are_as_exact_as_pytorchs,
)
from tests.models.test_models_predictor import JOB, X, Y, create
from tests.support import emulated_cupy
from tests.support.command_line import Dsinga
from tests.support.device_array import load_backends
from tests.support.emulated_cudnn import FakeCudnn


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


# Forward passes on an emulated device: batches are graphs with the bits of calls, and losses refuse wrong answers.
def test_batches_are_graphs_of_a_device_with_the_bits_of_calls() -> None:
    local_net = LocalNet(dsinga.loads(JOB), X, Y)
    worker, called = emulated_cupy.load(FakeCudnn()).for_worker(0), emulated_cupy.load(FakeCudnn()).for_worker(0)
    called.new_pass = lambda: None
    predictors = [Predictor(create(4), local_net.initial_params(), ops=lambda ops=ops: ops) for ops in (worker, called)]
    for number in range(5):
        emulated_cupy.log.clear()
        records = {"data": Records(np.roll(X, number, axis=0), np.roll(Y, number))}
        (features, metrics), expected = (predictor.forward(records, 20, ("fc", "loss")) for predictor in predictors)
        assert [what for _, what, _ in emulated_cupy.log].count("graph") == (number > 1)
        assert metrics == expected[1]
        for name, feature in features.items():
            np.testing.assert_array_equal(feature.data, expected[0][name].data)
            np.testing.assert_array_equal(feature.labels, records["data"].labels)


@pytest.mark.parametrize("kind", ["kSigmoidCrossEntropyLoss", "kFocalLoss"])
@pytest.mark.parametrize("phase", [Phase.kTrain, Phase.kVal, Phase.kTest])
def test_answers_other_than_0_to_1_are_refused(kind: str, phase: Phase) -> None:
    assert_other_answers_are_refused(kind, emulated_cupy.load, phase)


# Kernels and layers of GPUs compared with PyTorch's, by the tests of those of CPUs, where PyTorch is installed.
PARAMS = [
    pytest.param((load, dtype), id=f"{name}-{dtype.__name__}", marks=mark)
    for name, load, mark in (
        ("emulated", emulated_cupy.load, pytest.mark.slow),
        ("cupy", BACKENDS["cupy"], pytest.mark.gpu),
    )
    for dtype in (np.float32, np.float64)
]


@pytest.fixture(scope="module", params=PARAMS)
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    """One backend in one dtype."""
    return KernelBackend(*request.param)


@pytest.mark.slow
def test_a_convolutional_lstm_is_computed_on_an_emulated_device() -> None:
    case = case_of((2, 3, 2, 5, 6), num_filters=4, same=True)
    assert_like_torch(case, emulated_cupy.load(), 1, [1] * 4)
