"""The cupy backend: messages, streams, precision, cuDNN's plans, and sources that compile.

All but the last run on tests/support/emulated_cupy.py; the kernels run there in the kernel contract, which is slow.
"""

import importlib.util
import logging
import pickle
import re
import shutil
import subprocess
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsinga.addons.gpu import cupy as room
from dsinga.ops import BACKENDS
from dsinga.ops.interface import NumpyOps
from dsinga.ops.types import NotCapturable
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn, Unsupported
from tests.support.refusals import refused

SOURCES = sorted(path.stem for path in Path(room.__path__[0]).glob("*.cu") if path.stem != "common")
plain = NumpyOps()


@pytest.fixture(scope="module")
def ops() -> Any:
    """The backend without cuDNN."""
    return emulated_cupy.load()


@pytest.fixture
def cudnn() -> FakeCudnn:
    """A cuDNN that computes by numpy and counts its graphs."""
    return FakeCudnn()


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Round to 8 bits of mantissa, the hidden one among them."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(mantissa * 256) / 256, exponent).astype(np.float32)


class TestMissing:
    @pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed here")
    def test_without_cupy_one_sentence_names_what_to_install_and_what_runs(self):
        refused(lambda: BACKENDS["cupy"](), r"needs CuPy 14 .*pip install 'dsinga\[gpu\]'; without it .*on CPUs$")

    @pytest.mark.parametrize(
        ("count", "failure", "driver", "words"),
        [
            (0, "", 12080, r"needs an NVIDIA GPU, and none was found; without it"),
            (0, "cudaErrorNoDevice: no CUDA-capable device", 12080, r"none was found \(cudaErrorNoDevice.*\); without"),
            (0, "cudaErrorInsufficientDriver: too old", 11040, r"a driver for CUDA 12\.9 at least.*is for CUDA 11\.4;"),
            (0, "cudaErrorInsufficientDriver: too old", 0, r"a driver for CUDA 12\.9 at least, and none is installed;"),
        ],
    )
    def test_without_a_device_or_a_driver(self, ops, count, failure, driver, words):
        def get_count() -> int:
            if failure:
                raise emulated_cupy.RuntimeFailure(failure)
            return count

        runtime = SimpleNamespace(
            getDeviceCount=get_count, CUDARuntimeError=emulated_cupy.RuntimeFailure, runtimeGetVersion=lambda: 12090,
            driverGetVersion=lambda: driver,
        )  # fmt: skip
        refused(lambda: ops.library.check_device(runtime), words)

    def test_mistakes_are_named_with_their_remedies(self, ops) -> None:
        def get_version() -> Any:
            raise RuntimeError('Failure finding "libnvrtc.so.13": No such file: libnvrtc.so.13, No such file: x')

        cuda = SimpleNamespace(
            nvrtc=SimpleNamespace(getVersion=get_version), runtime=SimpleNamespace(runtimeGetVersion=lambda: 13020)
        )
        words = r"needs cuBLAS and NVRTC of CUDA 13 \(.*libnvrtc.so.13\): pip install 'cupy-cuda13x\[ctk\]', or .*CPUs$"
        refused(lambda: ops.library.check_compiler(cuda), words)
        refused(lambda: ops.for_worker(1), "there is no GPU 1: this process sees 1, counted from 0")
        refused(lambda: ops.for_worker(0, "fp8"), "no precision 'fp8'")

    def test_without_cudnn_one_sentence_names_what_convolves_and_what_to_install(self, ops, cudnn):
        assert re.fullmatch(
            r"cuDNN 9 or its front end is missing \(.+\): matrix products of cuBLAS compute convolutions, more slowly; "
            r"pip install nvidia-cudnn-frontend nvidia-cudnn-cu13",
            ops.lacks(),
        )
        assert ops.describe().endswith("; convolutions by matrix products of cuBLAS")
        cudnn.backend_version = lambda: 80900
        old = emulated_cupy.load(cudnn)
        assert "missing (cuDNN 9.8.0 is installed)" in old.lacks()
        assert emulated_cupy.load(FakeCudnn()).lacks() == ""

    def test_workers_are_pickled(self, ops):
        function, arguments = ops.for_worker(0, "tf32").__reduce__()
        assert function is type(ops)
        assert arguments == (0, "tf32", True)
        assert pickle.dumps(arguments)


class TestStreams:
    @pytest.fixture
    def worker(self, ops) -> Any:
        """A worker that the thread has entered, and what its streams are given from now on."""
        worker = ops.for_worker(0)
        worker.enter()
        emulated_cupy.log.clear()
        yield worker
        ops.enter()

    def test_a_worker_computes_on_a_stream_of_its_own(self, worker):
        worker.relu(worker.asarray(normal(3)))
        assert [(stream, what) for stream, what, _ in emulated_cupy.log] == [
            (worker.streams.compute, "copy"), (worker.streams.compute, "kernel"),
        ]  # fmt: skip
        assert worker.streams.compute is not emulated_cupy.Stream.null

    def test_kernels_wait_for_an_upload_and_the_host_does_not(self, worker):
        streams, host = worker.streams, normal(2, 3)
        expected = host.copy()
        upload = worker.upload(host)
        host[...] = 0  # the host goes on
        copy = upload.result()
        assert upload.result() is copy
        np.testing.assert_array_equal(worker.to_numpy(copy), expected)
        (_, _, arrived), *_ = [entry for entry in emulated_cupy.log if entry[1] == "record"]
        assert emulated_cupy.log[:4] == [
            (streams.up, "copy", "up"),
            (streams.up, "record", arrived),
            (streams.compute, "wait", arrived),
            (streams.compute, "kernel", "cupy.copy"),
        ]
        assert emulated_cupy.log[4][:2] == (streams.compute, "record")

    def test_a_download_waits_for_earlier_kernels_and_the_host_for_the_download(self, worker):
        streams = worker.streams
        y = worker.relu(worker.asarray(normal(2, 3)))
        del emulated_cupy.log[0]  # the way up
        download = worker.download(y)
        worker.relu(y)  # beside the copy
        host = download.result()
        assert type(host) is np.ndarray
        np.testing.assert_array_equal(host, np.maximum(normal(2, 3), 0))
        log = emulated_cupy.log
        ready, done = log[1][2], log[4][2]
        assert log == [
            (streams.compute, "kernel", "relu"),
            (streams.compute, "record", ready),
            (streams.down, "wait", ready),
            (streams.down, "copy", "down"),
            (streams.down, "record", done),
            (streams.compute, "kernel", "relu"),
            (None, "wait", done),
        ]

    def test_an_array_is_handed_over_when_its_kernels_have_ended_and_those_of_a_server_end_with_it(self, ops, worker):
        server = ops.for_worker(0)
        y = worker.relu(worker.asarray(normal(2, 3)))
        emulated_cupy.log.clear()
        handed = worker.hand_over(y)
        worker.relu(y)  # of the layer below, meanwhile
        array = handed.result()
        assert np.shares_memory(array, y)
        with server.serialised():
            server.add(array, array)
        worker.relu(y)
        compute, ready = worker.streams.compute, emulated_cupy.log[0][2]
        assert emulated_cupy.log == [
            (compute, "record", ready),
            (compute, "kernel", "relu"),
            (None, "wait", ready),
            (server.streams.compute, "kernel", "add"),
            (server.streams.compute, "wait", "host"),
            (compute, "kernel", "relu"),
        ]

    def test_memory_that_a_copy_still_reads_stays_referenced(self, worker, monkeypatch):
        monkeypatch.setattr(emulated_cupy.Event, "done", False)
        pinned: list[weakref.ref] = []

        def allocate(size: int) -> np.ndarray:
            memory = np.empty(size, np.uint8)
            pinned.append(weakref.ref(memory))
            return memory

        monkeypatch.setattr(worker.xp.cuda, "alloc_pinned_memory", allocate)
        worker.download(worker.asarray(normal(2, 3)))
        worker.upload(normal(2, 3)).result()
        assert [memory() is None for memory in pinned] == [False, False]  # written by a copy, read by another
        monkeypatch.setattr(emulated_cupy.Event, "done", True)
        worker.download(worker.asarray(normal(1)))
        assert [memory() is None for memory in pinned[:2]] == [True, True]

    def test_arrays_in_the_right_memory_are_not_copied(self, worker):
        on_host, on_device = normal(2), worker.asarray(normal(2))
        emulated_cupy.log.clear()
        assert worker.upload(on_device).result() is on_device
        assert worker.download(on_host).result() is on_host
        assert worker.to_numpy(on_host) is on_host
        assert not emulated_cupy.log


class TestPrecision:
    @pytest.mark.parametrize(("precision", "compute"), [("float32", 68), ("tf32", 77), ("bf16", 68)])
    def test_each_product_has_the_precision_of_its_worker(self, ops, precision, compute):
        worker, x, w = ops.for_worker(0, precision), normal(4, 6), normal(3, 6)
        emulated_cupy.log.clear()
        y = worker.to_numpy(worker.inner_product(worker.asarray(x), worker.asarray(w), None))
        assert [name for _, w, name in emulated_cupy.log if w == "kernel" and "gemm" in name] == [f"gemm {compute}"]
        factors = (bfloat16(x), bfloat16(w)) if precision == "bf16" else (x, w)
        np.testing.assert_allclose(y, factors[0] @ factors[1].T, rtol=1e-6)
        assert y.dtype == np.float32

    def test_a_feature_goes_to_another_worker_in_bfloat16(self, ops):
        worker, x = ops.for_worker(0, "bf16"), normal(2, 3, 4, 5)
        on_host = worker.to_numpy_bf16(worker.asarray(x).transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(worker.to_numpy(worker.upload(on_host).result()), on_host.astype(np.float32))
        np.testing.assert_array_equal(on_host.astype(np.float32), bfloat16(x).transpose(0, 3, 1, 2))
        assert on_host.nbytes == 2 * x.size
        assert ops.for_worker(0, "tf32").to_numpy_bf16(worker.asarray(x)).dtype == np.float32

    def test_float64_is_not_rounded(self, ops):
        worker, x = ops.for_worker(0, "bf16"), normal(4, 4).astype(np.float64)
        y = worker.to_numpy(worker.inner_product(worker.asarray(x), worker.asarray(x), None))
        np.testing.assert_allclose(y, x @ x.T, rtol=1e-12)


class TestRecording:
    def test_labels_and_codes_that_are_none_give_nan(self, ops):
        """Those of a recorded pass are on the device, where the host does not check them."""
        p, labels, codes = normal(4, 3), np.array([0, 3, -1, 2]), np.array([1, -1, 3, -2])
        losses, hits = ops.to_numpy(ops.label_losses(ops.asarray(p**2 + 0.1), ops.asarray(labels), 1))
        assert [*np.isnan(losses)] == [*np.isnan(hits)] == [False, True, True, False]
        table, codes = ops.asarray(normal(3, 2)), ops.asarray(codes)
        for vectors in (ops.one_hot(codes, 3), ops.embedding(table, codes)):
            assert [*np.isnan(ops.to_numpy(vectors)).all(axis=1)] == [False, False, True, True]
            assert not ops.to_numpy(vectors)[1].any()  # after the end of a sequence

    def test_what_the_host_reads_or_changes_is_refused(self, ops):
        worker = ops.for_worker(0)
        worker.enter()
        x, memory = worker.asarray(normal(3)), worker.new_pass()
        with memory.recording(0):
            worker.asarray(normal(2))
            refused(lambda: worker.to_numpy(x), "the host reads an array of the device", error=NotCapturable)
            refused(lambda: worker.read([x[0]]), "the host reads numbers", error=NotCapturable)
            refused(lambda: worker.defer_read([np.float64(1)]), "a metric .* in host memory", error=NotCapturable)
        with memory.recording(1), pytest.raises(NotCapturable, match="changes from batch to batch"):
            worker.asarray(2 * normal(2))
        assert not worker.is_recording
        assert ops.new_pass() is None  # on the default stream
        ops.enter()

    def test_a_pass_takes_its_memory_from_a_pool_of_its_own(self, ops):
        worker = ops.for_worker(0)
        worker.enter()
        memory = worker.new_pass()
        before = memory.nbytes
        memory.put("x", normal(8))
        with memory.recording(0):
            worker.relu(memory.put("x", normal(8)))
        assert memory.nbytes == before + 2 * 32
        ops.enter()


class TestPlans:
    SHAPES = (2, 3, 7, 6), (4, 3, 3, 2), (2, 1), (1, 0)

    def run(self, ops: Any, stride: tuple[int, int] | None = None) -> tuple[np.ndarray, ...]:
        """A convolution and its gradients, by the backend and by numpy; they must agree."""
        (x, w), step, pad = map(normal_of, self.SHAPES[:2]), stride or self.SHAPES[2], self.SHAPES[3]
        expected = plain.convolution(x, w, None, step, pad)
        dy = normal(*expected.shape)
        expected = expected, *plain.convolution_grad(x, w, dy, step, pad, True, False)[:2]
        arrays = [ops.asarray(array) for array in (x, w, dy)]
        y = ops.convolution(*arrays[:2], None, step, pad)
        results = y, *ops.convolution_grad(*arrays, step, pad, True, False)[:2]
        bound = 0.05 if ops.precision == "bf16" else 1e-5
        for result, array in zip(results, expected, strict=True):
            np.testing.assert_allclose(ops.to_numpy(result), array, rtol=bound, atol=bound * np.abs(array).max())
        assert results[0].transpose(0, 2, 3, 1).flags.c_contiguous
        assert results[2].flags.c_contiguous
        return results

    @pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
    def test_a_plan_is_made_once_for_shapes_and_settings(self, cudnn, precision):
        worker = emulated_cupy.load(cudnn).for_worker(0, precision)
        self.run(worker)
        assert [graph.operation for graph in cudnn.graphs] == ["conv_fprop", "conv_wgrad", "conv_dgrad"]
        self.run(worker)
        assert len(cudnn.graphs) == 3
        self.run(worker, stride=(1, 1))
        assert len(cudnn.graphs) == 6
        notes = {"float32": {"DOWN_CONVERT_INPUTS", "TENSOR_CORE"}, "tf32": {"DOWN_CONVERT_INPUTS"}, "bf16": set()}
        assert all(graph.excluded == notes[precision] | {"NONDETERMINISTIC"} for graph in cudnn.graphs)
        assert {graph.dtype for graph in cudnn.graphs} == {"BFLOAT16" if precision == "bf16" else "FLOAT"}
        inexact = [] if precision == "bf16" else ["eng17_"]
        assert [graph.engines_excluded for graph in cudnn.graphs] == 2 * [[], inexact, []]

    @pytest.mark.parametrize(("version", "fast"), [("1.32.0", 3), ("1.32.4", 3), ("1.26.1", 0), ("1.33.0", 0)])
    def test_plans_run_by_addresses_where_the_front_end_is_known_to_have_that_form(self, version, fast):
        cudnn = FakeCudnn(version)
        self.run(emulated_cupy.load(cudnn))
        assert cudnn.fast == fast
        assert [graph.executed for graph in cudnn.graphs] == 3 * [True]

    def test_arrays_that_begin_where_no_plan_takes_them_are_copied(self, cudnn):
        ops = emulated_cupy.load(cudnn)
        rows, filters = normal(5, 3, 3, 1), normal(1, 1, 3, 3)
        part = ops.asarray(rows)[1:].transpose(0, 3, 1, 2)  # begins 36 bytes after the allocation
        y = ops.convolution(part, ops.asarray(filters), None, (1, 1), (1, 1))
        expected = plain.convolution(rows[1:].transpose(0, 3, 1, 2), filters, None, (1, 1), (1, 1))
        np.testing.assert_allclose(ops.to_numpy(y), expected, rtol=1e-5, atol=1e-6)
        assert [graph.executed for graph in cudnn.graphs] == [True]

    def test_a_plan_runs_on_the_stream_of_its_worker(self, cudnn):
        ops = emulated_cupy.load(cudnn)
        worker = ops.for_worker(0)
        worker.enter()
        self.run(worker)
        ops.enter()
        assert set(cudnn.streams) == {worker.streams.compute.ptr}

    def test_a_plan_without_a_fixed_order_is_used_if_there_is_no_other(self, cudnn):
        cudnn.supports = lambda excluded: "NONDETERMINISTIC" not in excluded
        self.run(emulated_cupy.load(cudnn))
        assert {"NONDETERMINISTIC" in graph.excluded for graph in cudnn.graphs if graph.executed} == {False}

    def test_without_a_plan_products_compute_it_with_a_warning(self, cudnn, caplog):
        cudnn.supports = lambda excluded: False
        with caplog.at_level(logging.WARNING, "dsinga"):  # a Dask cluster of other tests may have disabled the handler
            self.run(emulated_cupy.load(cudnn))
        assert "cuDNN has no plan for ConvolutionProblem(direction='fprop'" in caplog.text
        assert str(Unsupported("no engine")) in caplog.text

    def test_an_empty_batch_needs_no_plan(self, cudnn):
        ops = emulated_cupy.load(cudnn)
        y = ops.convolution(ops.asarray(normal(0, 3, 5, 5)), ops.asarray(normal(4, 3, 3, 3)), None, (1, 1), (0, 0))
        assert y.shape == (0, 4, 3, 3)
        assert not cudnn.graphs


def normal_of(shape: tuple[int, ...]) -> np.ndarray:
    return normal(*shape)


PROGRAMS = """#define PROGRAMS case 0: { \
    float* w = (float*)row[VALUE]; const double* c = (const double*)(row + STATE); \
    float r0 = larger(w[at], smaller(g, fabsf(g))); \
    r0 = __fsub_rn(r0, __fdiv_rn(g, __fsqrt_rn(__fmul_rn(g, (float)c[0])))); \
    w[at] = __fadd_rn(r0, g); } break;
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("macros", [["REAL=float"], ["REAL=double"], ["REAL=float", "BFLOAT16"]], ids="-".join)
@pytest.mark.parametrize("source", SOURCES)
def test_the_sources_compile_for_a_gpu(tmp_path, source, macros):
    folder = Path(room.__path__[0])
    file = tmp_path / f"{source}.cu"
    code = (folder / f"{source}.cu").read_text()
    file.write_text((folder / "common.cu").read_text() + (PROGRAMS + code if source == "update" else code))
    defined = [f"-D{macro}" for macro in macros]
    command = ["nvcc", "-std=c++17", "-arch=sm_90", *defined, "-cubin", "-o", "/dev/null", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert not done.returncode, done.stderr
    assert "warning" not in done.stderr
