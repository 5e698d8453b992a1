"""The choice among plans of cuDNN and products, on the emulated device: which is taken, and what the file keeps."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga.ops.interface import NumpyOps
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn

X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
PLANS = ["eng0_k1=0", "eng1_k1=0"]  # of FakeCudnn, in the order of its heuristics


class Host:
    """A host with a file of choices, whose plans and products take the milliseconds that ``times`` lists in order."""

    def __init__(self, file: Path | None, times: list[Any], monkeypatch: pytest.MonkeyPatch):
        self.cudnn, self.timed = FakeCudnn(), 0
        self.ops = emulated_cupy.load(self.cudnn)
        self._times = times
        monkeypatch.setattr(self.ops.plans_module, "choices_file", lambda: file)
        monkeypatch.setattr(self.ops.choice_module, "milliseconds", self._milliseconds)

    def _milliseconds(self, compute: Any) -> float:
        compute()
        self.timed += 1
        time = self._times[self.timed - 1]
        if isinstance(time, Exception):
            raise time
        return time

    def convolve(self) -> str:
        """Convolve by a new worker; return what computed it: the name of a plan, or "products"."""
        worker = self.ops.for_worker(0)
        worker.enter()
        emulated_cupy.log.clear()
        y = worker.convolution(worker.asarray(X), worker.asarray(W), None, (1, 1), (1, 1))
        self.ops.enter()
        np.testing.assert_allclose(
            worker.to_numpy(y), NumpyOps().convolution(X, W, None, (1, 1), (1, 1)), rtol=1e-5, atol=1e-5
        )
        is_plan = [name for _, what, name in emulated_cupy.log if what == "kernel"][-1] == "cudnn conv_fprop"
        return (self.cudnn.graphs[-1].built or "heuristics") if is_plan else "products"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "convolutions.json"


@pytest.mark.parametrize(
    ("times", "choice"),
    [
        ([3.0, 2.0, 4.0], PLANS[1]),
        ([3.0, 2.95, 4.0], PLANS[0]),  # nearly the same time: the first in order
        ([3.0, 2.0, 1.0], "products"),
        ([RuntimeError("no memory"), 2.0, 3.0], PLANS[1]),
    ],
)
def test_the_fastest_is_chosen_and_kept_for_later_workers(file, monkeypatch, times, choice):
    host = Host(file, times, monkeypatch)
    assert host.convolve() == choice
    (section,) = json.loads(file.read_text()).values()
    assert section == {"fprop 2x3x6x6 4x3x3x3 2x4x6x6 1x1 1x1": choice}
    later = Host(file, [], monkeypatch)  # where nothing may be timed
    assert later.convolve() == choice


def test_inexact_plans_are_not_chosen(file, monkeypatch):
    host = Host(file, [3.0, 2.0], monkeypatch)
    host.cudnn.error_of = {PLANS[1]: 1e-3}
    assert host.convolve() == "products"
    assert host.timed == 2


def test_plans_that_need_too_much_memory_are_not_chosen(file, monkeypatch):
    host = Host(file, [3.0], monkeypatch)
    monkeypatch.setattr(host.ops.plans_module, "LARGEST", 4)  # a plan of FakeCudnn needs 8 bytes
    assert host.convolve() == "products"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a device": 3}', None])
def test_without_a_usable_file_nothing_depends_on_the_clock(file, monkeypatch, text):
    """A damaged file is replaced; where none can be written, the heuristics choose."""
    if text is None:
        host = Host(None, [], monkeypatch)
        assert host.convolve() == "heuristics"
        return
    file.write_text(text)
    assert Host(file, [3.0, 2.0, 4.0], monkeypatch).convolve() == PLANS[1]


def test_without_a_lock_file_the_heuristics_choose(file, monkeypatch, caplog):
    file.with_suffix(".lock").mkdir()
    with caplog.at_level(logging.WARNING, "dsinga"):
        assert Host(file, [], monkeypatch).convolve() == "heuristics"
    assert "plans of cuDNN are not timed, since choices cannot be kept" in caplog.text


@pytest.mark.parametrize("is_gradient", [False, True], ids=["zeros", "filters that no kernel of ours has"])
def test_plans_of_the_library_alone_are_timed(file, monkeypatch, is_gradient):
    host = Host(file, [3.0, 2.0, 4.0], monkeypatch)
    worker = host.ops.for_worker(0)
    worker.enter()
    if is_gradient:
        worker.convolution_grad(*map(worker.asarray, (X, W, X[:, [0, 0, 0, 0]])), (1, 1), (1, 1), False, False)
    else:
        worker.convolution(worker.asarray(0 * X), worker.asarray(W), None, (1, 1), (1, 1))
    host.ops.enter()
    assert host.timed == 3


def test_a_plan_that_is_not_there_any_more_is_replaced_by_the_heuristics(file, monkeypatch):
    Host(file, [3.0, 2.0, 4.0], monkeypatch).convolve()
    file.write_text(file.read_text().replace(PLANS[1], "eng9_k1=0"))
    assert Host(file, [], monkeypatch).convolve() == "heuristics"


def test_the_default_stream_is_not_timed(file, monkeypatch):
    """It cannot be captured; kernels of threads without a worker use what is kept, else the heuristics."""
    host = Host(file, [], monkeypatch)
    host.ops.convolution(host.ops.asarray(X), host.ops.asarray(W), None, (1, 1), (1, 1))
    assert not file.exists()


@pytest.mark.parametrize(
    ("times", "choice"), [([5.0, 6.0, 3.0, 2.0, 4.0], PLANS[1]), ([3.0, 1.0, 4.0, 5.0, 6.0], f"float {PLANS[1]}")]
)
def test_plans_for_gradients_of_bfloat16_filters_may_give_float32(file, monkeypatch, times, choice):
    host, dy = Host(file, times, monkeypatch), NumpyOps().convolution(X, W, None, (1, 1), (1, 1))
    for _ in range(2):  # measured, then taken from the file
        worker = host.ops.for_worker(0, "bf16")
        worker.enter()
        arrays = map(worker.asarray, (X, W, dy))
        _, dw, _ = worker.convolution_grad(*arrays, (1, 1), (1, 1), False, False)
        host.ops.enter()
        _, expected, _ = NumpyOps().convolution_grad(X, W, dy, (1, 1), (1, 1), False, False)
        np.testing.assert_allclose(worker.to_numpy(dw), expected, rtol=0.05, atol=0.05 * np.abs(expected).max())
        assert dw.dtype == np.float32
        ((name,),) = [section.values() for section in json.loads(file.read_text()).values()]
        assert name == choice
    assert host.timed == 5
    assert host.cudnn.graphs[-1].built == PLANS[1]


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "size"),
    [(2, 16, 16, (5, 6)), (3, 32, 16, (4, 4)), (1, 16, 32, (9, 3)), (2, 16, 16, (1, 1))],
)
def test_gradients_of_3x3_filters_by_a_kernel_are_numpys(batch, channels, filters, size):
    """Bands of rows that do not divide the image, several tiles of channels and outputs, and one pixel."""
    ops, rng = emulated_cupy.load(), np.random.default_rng(size)
    x, dy = (rng.standard_normal((batch, n, *size)).astype(np.float32) for n in (channels, filters))
    w = np.zeros((filters, channels, 3, 3), np.float32)  # whose shape alone is used
    assert ops.convolution_module.has_direct_gradients(x.shape, w.shape, (1, 1), (1, 1))
    dw = ops.to_numpy(ops.convolution_module.filter_gradients(ops.asarray(x), ops.asarray(dy)))
    _, expected, _ = NumpyOps().convolution_grad(x, w, dy, (1, 1), (1, 1), False, False)
    np.testing.assert_allclose(dw, expected, rtol=1e-5, atol=1e-5)


def test_this_kernel_is_a_candidate(file, monkeypatch):
    host = Host(file, [3.0, 2.0, 4.0, 1.0], monkeypatch)
    x, w = np.ones((1, 16, 1, 1), np.float32), np.ones((16, 16, 3, 3), np.float32)
    for _ in range(2):  # measured, then chosen
        worker = host.ops.for_worker(0)
        worker.enter()
        emulated_cupy.log.clear()
        worker.convolution_grad(*map(worker.asarray, (x, w, x)), (1, 1), (1, 1), False, False)
        host.ops.enter()
    assert [name for _, what, name in emulated_cupy.log if what == "kernel"][0] == "filter_gradients"
    ((name,),) = [section.values() for section in json.loads(file.read_text()).values()]
    assert (name, host.timed) == ("direct", 4)
