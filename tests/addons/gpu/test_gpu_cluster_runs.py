"""Training on emulated GPUs: where workers compute, what is copied between host and device, the bits of CPU cores.

The backend is that of ``tests/support/device_array.py``: numpy's kernels, on arrays that host code cannot read.
"""

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import pytest
from distributed import Client

import dsinga.ops
from dsinga import api, models, nn
from dsinga.addons.gpu import devices
from dsinga.addons.gpu.captured_iterations import GraphCapture
from dsinga.addons.gpu.devices import ProcessGpus, find_gpus
from dsinga.base.errors import UserError
from dsinga.cluster.dask.dask_workers import host
from dsinga.data import import_records
from dsinga.job import ClusterConf, Job, Precision, UpdatePlace
from dsinga.job.reader import with_fields
from dsinga.ops.interface import NumpyOps
from dsinga.ops.types import Devices
from dsinga.passes.processors import choose_devices, describe_worker
from dsinga.training import initial_values
from tests.support.device_array import StubOps, load_backends
from tests.support.small_job import assert_close, assert_same, with_topology


class CapturingStub(StubOps):
    """A stub whose workers exchange params as those of a GPU do; it has no graphs."""

    def capture(self) -> GraphCapture:
        return GraphCapture(self)

    def new_pass(self) -> None:
        """Return None: no pass is captured."""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> StubOps:
    """Two emulated GPUs of this process. CPU cores use the numpy backend, so that both give the same bits."""
    stub = CapturingStub()
    load_backends(monkeypatch, cupy=stub, onednn=NumpyOps())
    return stub


def train(job: Job, client: Client, steps: int = 4, **more: Any) -> dict[str, np.ndarray]:
    """Train the job for a few steps and return the params."""
    return api.train(job.replace(train_steps=steps, disp_freq=0, **more), client, progress=False).params


def floats(copies: list[tuple[str, str, tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """Return the shapes of the float32 arrays that were copied."""
    return [shape for _, dtype, shape in copies if dtype == "float32"]


def test_one_worker_keeps_its_params_on_the_device(job: Job, threads: Client, stub: StubOps):
    expected = train(with_topology(job, 1), threads)
    trained = train(with_topology(job, 1), threads, gpu=[1])
    assert_same(trained, expected)
    assert (1, "float32") in stub.record.workers
    assert not stub.record.downloads
    assert {dtype for _, dtype, _ in stub.record.uploads} == {"uint8"}  # batches, and no values
    assert {thread for thread, *_ in stub.record.uploads} == {"dsinga-prefetch"}
    # A step waits for its metrics alone; params come to the host when training has ended.
    assert stub.record.reads == [2] * 4
    assert not stub.record.syncs
    assert len(stub.record.fetched) == 2 * 8 - 2  # values and momentum, of which running means have none


def test_gradients_and_params_are_copied_while_kernels_run(job: Job, threads: Client, stub: StubOps):
    expected = train(with_topology(job, 2, 2), threads)
    stub.record.clear()
    trained = train(with_topology(job, 2, 2), threads, gpu=[0, 1])
    assert_same(trained, expected)
    params = {value.shape for value in trained.values()}
    assert {*floats(stub.record.downloads)} == params
    assert len(stub.record.downloads) == 2 * 4 * len(trained)
    assert {*floats(stub.record.uploads)} == params
    threads_of = {thread.rsplit("_", 1)[0] for thread, dtype, _ in stub.record.uploads if dtype == "float32"}
    assert threads_of == {"dsinga-device"}
    # The computing thread waits for one copy alone: the sums of batch normalisation over both workers.
    assert {*floats(stub.record.fetched)} <= {()}
    assert not stub.record.syncs


@pytest.mark.parametrize("more", [{}, {"update": UpdatePlace.kWorker}], ids=["servers", "workers"])
def test_workers_that_share_a_gpu_train_to_the_params_of_one(
    job: Job, threads: Client, stub: StubOps, more: dict[str, Any]
):
    cluster = ClusterConf(nworkers_per_group=2, **more)
    trained = train(job.replace(cluster=cluster), threads, gpu=[0, 0])
    assert_close(trained, train(with_topology(job, 1), threads), 1e-4)
    assert [device for device, _ in stub.record.workers].count(0) >= 2
    # Gradients stay there, since the servers are in the same process and update on the same GPU.
    assert not stub.record.downloads
    assert not floats(stub.record.uploads)
    assert_same(trained, train(job.replace(cluster=cluster), threads))


def test_servers_of_an_embedding_keep_all_params_in_host_memory(threads: Client, stub: StubOps):
    """One server has rows of the table alone, the other one a part of a weight that both have."""
    rng = np.random.default_rng(0)
    codes, targets = rng.integers(0, 20, (16, 5)).astype(np.int32), rng.normal(size=(16, 3)).astype(np.float32)
    layers = nn.Input(5, dtype="int32"), nn.Embedding(20, 4), nn.Flatten(), nn.Dense(16, "tanh"), nn.Dense(3)
    model = nn.Sequential([*layers])
    model.compile(nn.SGD(0.1), "mse", cluster=nn.Cluster(workers=2, nservers_per_group=2))
    job = model.job(codes, targets, batch_size=8, train_steps=4, seed=1)
    assert_same(train(job, threads, gpu=[0, 0]), train(job, threads))


def test_groups_of_gpu_workers_and_of_cpu_workers_train_together(job: Job, threads: Client, stub: StubOps):
    groups = ClusterConf(nworker_groups=2, staleness=0)
    trained = train(job.replace(cluster=groups), threads, gpu=[0])
    assert all(np.isfinite(value).all() for value in trained.values())
    assert [device for device, _ in stub.record.workers if device == 0]
    assert stub.record.downloads


def test_bridges_send_arrays_in_host_memory(job: Job, threads: Client, stub: StubOps):
    job = with_topology(with_fields(job, {f"neuralnet.layer[{name}].partition_dim": 1 for name in ("conv", "ip")}), 2)
    assert_same(train(job, threads, gpu=[0, 1]), train(job, threads))


def test_bits_are_the_same_with_tests_and_skip_bad_batches(job: Job, threads: Client, stub: StubOps):
    more = {"skip_bad_batches": True, "test_freq": 2, "test_steps": 1}
    for workers in (1, 2):
        expected = train(with_topology(job, workers), threads, 3, **more)
        assert_same(train(with_topology(job, workers), threads, 3, gpu=[0, 1], **more), expected)


def test_tasks_of_graph_grain_compute_on_the_device(job: Job, threads: Client, stub: StubOps):
    steps = job.replace(train_steps=3, disp_freq=0)
    trained = api.train(with_topology(steps, 2).replace(gpu=[0, 1]), threads, progress=False, grain="graph").params
    assert_same(trained, train(with_topology(job, 2), threads, 3))


def test_workers_get_gpus_round_robin(job: Job, threads: Client, stub: StubOps):
    with dask.config.set({"dsinga.device": "gpu"}):
        train(with_topology(job, 3), threads, 1)
    assert sorted(device for device, _ in stub.record.workers[-3:]) == [0, 0, 1]
    stub.record.clear()
    with dask.config.set({"dsinga.device": "cpu"}):
        train(with_topology(job, 1), threads, 1, gpu=[0])
    assert not stub.record.workers


def test_dsinga_ops_cupy_computes_on_the_first_gpu(
    job: Job, threads: Client, stub: StubOps, monkeypatch: pytest.MonkeyPatch
):
    expected = train(with_topology(job, 2), threads, 2)
    monkeypatch.setenv("DSINGA_OPS", "cupy")
    assert_same(train(with_topology(job, 2), threads, 2), expected)
    assert stub.record.workers == [(None, "float32")] * 2
    assert stub.record.downloads


def test_precision_is_passed_to_the_device(job: Job, threads: Client, stub: StubOps):
    train(with_topology(job, 1), threads, 1, gpu=[0], precision=Precision.kTF32)
    assert (0, "tf32") in stub.record.workers
    with pytest.raises(UserError, match=r"precision kTF32 is for GPUs, and the job has workers on CPU cores"):
        train(with_topology(job, 2), threads, 1, gpu=[0], precision=Precision.kTF32)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test see the warnings that a process gives once."""
    monkeypatch.setattr(devices, "_reasons_said", set())


def refused(job: Job, client: Client, caplog: pytest.LogCaptureFixture, gpu: list[int]) -> str:
    """Return the warning for the job's ``gpu`` lines; ``--device gpu`` must be refused in the same case."""
    with dask.config.set({"dsinga.device": "gpu"}), pytest.raises(UserError) as error:
        train(job, client, 1, gpu=gpu)
    assert "to compute on CPU cores, leave out --device gpu" in str(error.value)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "dsinga"):
        train(job, client, 1, gpu=gpu)
    (message,) = [record.getMessage() for record in caplog.records if "GPU" in record.getMessage()]
    assert "computes on CPU cores, not on the GPU of the job's gpu line" in message
    return message


def test_without_a_gpu_the_reason_is_named(
    job: Job, threads: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def none() -> Any:
        raise UserError("the driver is for CUDA 11.4, CuPy needs 12.0")

    monkeypatch.setitem(dsinga.ops.BACKENDS, "cupy", none)
    load_backends(monkeypatch, cupy=None)
    assert "the driver is for CUDA 11.4, CuPy needs 12.0" in refused(with_topology(job, 1), threads, caplog, [0])
    caplog.clear()
    devices._reasons_said.clear()
    three = with_topology(job, 3).replace(gpu=[0, 1, 2])
    with caplog.at_level(logging.WARNING, "dsinga"):
        params = train(three, threads, 1)
        api.evaluate(three, params, client=threads)
        api.predict(three, params, "ip", client=threads)
    (message,) = [record.getMessage() for record in caplog.records if "GPU" in record.getMessage()]
    assert message.startswith("3 workers compute on CPU cores, not on the GPUs of the job's gpu lines: ")


def test_a_net_larger_than_the_memory_of_its_gpu(
    job: Job, threads: Client, stub: StubOps, caplog: pytest.LogCaptureFixture
):
    stub.memory = 2**19
    message = refused(with_topology(job, 1), threads, caplog, [0])
    assert re.search(
        r"the net needs about 0\.\d MiB on GPU 0, where 0\.5 MiB are free; use a smaller batchsize", message
    )


def test_the_memory_of_partitions_that_share_a_gpu_is_added_up(
    job: Job, threads: Client, stub: StubOps, caplog: pytest.LogCaptureFixture
):
    stub.memory = 2**19
    with caplog.at_level(logging.WARNING, "dsinga"):
        train(with_topology(job, 2), threads, 1, gpu=[0, 0])
    assert caplog.text.count("computes on CPU cores") == 1
    assert re.search(r"beside 0\.\d MiB of other partitions", caplog.text)


def test_evaluate_and_predict_use_the_requested_device(
    job: Job, threads: Client, stub: StubOps, caplog: pytest.LogCaptureFixture
):
    net = api.build_net(job, "test")
    params = initial_values(net.params, 3)
    expected, features = api.evaluate(job, params, client=threads), api.predict(job, params, "ip", client=threads)
    assert not stub.record.workers
    with dask.config.set({"dsinga.device": "gpu"}):
        assert api.evaluate(job, params, client=threads) == expected
    assert {device for device, _ in stub.record.workers} == {0, 1}
    stub.record.clear()
    np.testing.assert_array_equal(api.predict(job.replace(gpu=[1]), params, "ip", client=threads), features)
    assert {device for device, _ in stub.record.workers} <= {1}  # beside two workers on CPU cores
    stub.memory = 2**10
    with dask.config.set({"dsinga.device": "gpu"}), pytest.raises(UserError) as error:
        api.evaluate(job, params, client=threads)
    assert re.match(r"the Dask worker inproc\S+ cannot compute on a GPU: the net needs about \S+ MiB", str(error.value))
    with caplog.at_level(logging.WARNING, "dsinga"):
        assert api.evaluate(job.replace(gpu=[0]), params, client=threads) == expected
    assert "computes on CPU cores, not on the GPU of the job's gpu line: the net needs" in caplog.text


def test_params_are_uploaded_once_for_all_batches_of_a_worker(job: Job, threads: Client, stub: StubOps):
    params = initial_values(api.build_net(job, "test").params, 3)
    with dask.config.set({"dsinga.device": "gpu"}):
        api.evaluate(job, params, "train", client=threads)  # ten batches by three workers
    assert 1 <= [shape for _, _, shape in stub.record.placed].count(params["w2"].shape) <= 3


def test_generate_uses_the_requested_device(stub: StubOps, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "text").write_text("ab" * 50)
    import_records("text", tmp_path / "text", tmp_path, held_out=0.1)
    job = models.char_rnn(2, str(tmp_path), batchsize=2, hidden=4, steps=3)
    params = initial_values(api.build_net(job).params, 3)
    expected = dsinga.generate(job, params, "a", 5)
    assert not stub.record.workers
    assert dsinga.generate(job.replace(gpu=[1]), params, "a", 5) == expected
    with dask.config.set({"dsinga.device": "gpu"}):
        assert dsinga.generate(job, params, "a", 5) == expected
    # Each device is looked up twice: for its free memory, too.
    assert stub.record.workers == [(1, "float32")] * 2 + [(0, "float32")] * 2
    stub.memory = 10
    with (
        dask.config.set({"dsinga.device": "gpu"}),
        pytest.raises(UserError, match="this process cannot compute on a GPU"),
    ):
        dsinga.generate(job, params, "a", 5)
    with caplog.at_level(logging.WARNING, "dsinga"):
        assert dsinga.generate(job.replace(gpu=[0]), params, "a", 5) == expected
    assert "this process computes on CPU cores, not on the GPU of the job's gpu line: the net needs" in caplog.text


def test_a_missing_cudnn_is_warned_of_once(job: Job, threads: Client, stub: StubOps, caplog: pytest.LogCaptureFixture):
    stub.missing = "cuDNN is missing: matrix products compute convolutions"
    devices._warn_once.cache_clear()
    with caplog.at_level(logging.INFO, "dsinga"):
        for _ in range(2):
            train(with_topology(job, 2), threads, 1, gpu=[0, 1])
    warnings = [record for record in caplog.records if record.getMessage() == stub.missing]
    assert [record.levelname for record in warnings] == ["WARNING"]


def test_an_unknown_device_is_refused(job: Job, threads: Client):
    with dask.config.set({"dsinga.device": "tpu"}), pytest.raises(UserError, match="give auto, cpu or gpu"):
        train(with_topology(job, 1), threads, 1)


def choose(job: Job, gpus: Mapping[str, ProcessGpus], needed: int) -> tuple[Devices, dict[str, list[int]]]:
    """Choose GPUs for a group of Dask workers that answer that they have ``gpus``; return also what they are asked."""
    asked: dict[str, list[int]] = {}

    def ask(addresses: Sequence[str], function: Any, *arguments: Any) -> dict[str, Any]:
        if function is find_gpus:
            return dict(gpus)
        (numbers,) = arguments
        asked.update(numbers)
        return {address: dict.fromkeys(numbers[address], 2**30) for address in addresses}

    with dask.config.set({"dsinga.device": "gpu"}):
        chosen = choose_devices(job, (tuple(gpus),), lambda _: needed, describe_worker, ask, host)
    return chosen, asked


def test_each_worker_of_a_local_cuda_cluster_takes_the_first_gpu_that_it_sees(job: Job):
    """dask-cuda lets each process see all GPUs of the host, its own one first."""
    visible = ("0,1,2", "1,2,0", "2,0,1")
    gpus = {f"tcp://10.0.0.1:{port}": ProcessGpus(3, numbers, "a GPU") for port, numbers in enumerate(visible, 40000)}
    chosen, asked = choose(job, gpus, 2**29)
    assert chosen == ((0, 0, 0),)  # three cards, each with memory of its own
    assert asked == {address: [0] for address in gpus}
    chosen, _ = choose(job, {address: process._replace(visible="") for address, process in gpus.items()}, 2**29)
    assert chosen == ((0, 1, 2),)


def test_hosts_that_have_measured_other_plans_are_named_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    hosts = [("1", "a GPU", "abc"), ("2", "a GPU", "abc"), ("3", "another", "xyz"), ("4", "a GPU", "")]
    addresses = [f"tcp://10.0.0.{number}:4000" for number, *_ in hosts]
    gpus = {
        address: ProcessGpus(1, "", text, choices=each)
        for address, (_, text, each) in zip(addresses, hosts, strict=True)
    }
    monkeypatch.setattr(devices, "_warn_once", functools.cache(logging.getLogger("dsinga").warning))
    with caplog.at_level(logging.WARNING, "dsinga"):
        for count in (3, 4, 4):
            choose(job, {address: gpus[address] for address in addresses[:count]}, 1)
            assert len(caplog.messages) == (count == 4)
    assert "10.0.0.1:4000 and tcp://10.0.0.4:4000 have measured other plans" in caplog.text
