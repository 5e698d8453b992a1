"""Micro-batches and recomputation that fit a net into a memory: the cheapest that do, or a refusal that says why."""

import functools
import logging
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dsinga
from dsinga import UserError
from dsinga.addons.planner import pricing
from dsinga.addons.planner.benchmark import measure
from dsinga.addons.planner.fitting import USABLE, MemoryFit, NetVariants, fit
from dsinga.addons.planner.pricing import make_plan
from dsinga.cluster.placing import memory
from dsinga.cutting.worker_memory import FIXED, Memory
from dsinga.job import Job, loads
from dsinga.layers import RecordInfo
from dsinga.loop import local_run
from tests.support.late_workers import TWO, check_status, check_wait
from tests.support.planner_nets import MACHINE
from tests.support.refusals import refused
from tests.support.small_job import assert_close

LAYERS = """
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 96 shape: [3, 16, 16] } }
  layer { name: "conv1" type: kConvolution srclayers: "data" convolution_conf { num_filters: 32 kernel: 3 pad: 1 } }
  layer { name: "relu1" type: kReLU srclayers: "conv1" }
  layer { name: "conv2" type: kConvolution srclayers: "relu1" convolution_conf { num_filters: 32 kernel: 3 pad: 1 } }
  layer { name: "relu2" type: kReLU srclayers: "conv2" }
  layer { name: "conv3" type: kConvolution srclayers: "relu2" convolution_conf { num_filters: 32 kernel: 3 pad: 1 } }
  layer { name: "relu3" type: kReLU srclayers: "conv3" }
  layer { name: "ip" type: kInnerProduct srclayers: "relu3" innerproduct_conf { num_output: 10 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
"""
CONVNET = f"""
name: "fitted" train_steps: 3
updater {{ type: kSGD momentum: 0.9 learning_rate {{ type: kFixed base_lr: 0.01 }} }}
neuralnet {{ partition: auto {LAYERS} }}
"""
NORMALISED = CONVNET.replace('"relu2" type: kReLU', '"relu2" type: kBM')


def variants(text: str = CONVNET, **fields: int) -> NetVariants:
    job = loads(text, "job.conf").replace(**fields)
    count = job.micro_batches
    infos = {"data": RecordInfo((3, 16, 16), 96 // count, micro_batches=count)}
    return NetVariants(job.neuralnet, infos, {"data": (768, 0)}, 768 * 192, slots=1)


def needed(memory: Memory) -> int:
    """Return the memory of which a predicted peak is the share that may be used."""
    return int(memory.peak / USABLE) + 1


@functools.cache
def least(text: str = CONVNET) -> int:
    """Return the least memory that a net can be trained in."""
    return needed(fit(variants(text), 0)[0].memory)


@functools.cache
def between() -> int:
    """Return a memory into which the net fits, but not with whole batches."""
    return (least() + needed(variants().memory(1, 0))) // 2


def test_a_net_that_fits_is_trained_as_a_whole():
    found, fits = fit(variants(), 1 << 40)
    assert fits
    assert (found.micro_batches, found.recompute, found.text()) == (1, 0, "")


@functools.cache
def memory_of(micro_batches: int, recompute: int) -> Memory:
    return variants().memory(micro_batches, recompute)


class Remembered(NetVariants):
    """Variants whose nets are built once for all examples."""

    def memory(self, micro_batches: int, recompute: int, *_: object) -> Memory:
        return memory_of(micro_batches, recompute)


@given(st.floats(0, 1))
def test_the_cheapest_choice_that_fits_is_taken(share: float):
    nets = Remembered(**vars(variants()))
    lowest, highest = least(), needed(nets.memory(1, 0))
    limit = int(lowest + share * (highest - lowest))
    found, fits = fit(nets, limit)
    assert fits
    assert found.memory.peak <= USABLE * limit
    cheaper = [choice for choice in nets.choices(1) if MemoryFit(*choice, Memory()).price(96) < found.price(96)]
    assert all(nets.memory(*choice).peak > USABLE * limit for choice in cheaper)


def test_a_price_is_the_time_beside_that_of_whole_batches():
    assert MemoryFit(1, 0, Memory()).price(96) == 1
    assert MemoryFit(96, 0, Memory()).price(96) == pytest.approx(7 / (1 + 6 / 96))  # IDLE_ROWS for each row
    assert MemoryFit(1, 4, Memory()).price(96) == 1.25  # three quarters of a forward pass, a third of an iteration


def test_statistics_of_batches_forbid_micro_batches():
    nets = variants(NORMALISED)
    assert {count for count, _ in nets.choices(1)} == {1}
    assert {count for count, _ in variants(NORMALISED, micro_batches=2).choices(1)} == {2}  # the job's own


def test_the_job_has_the_least_number_of_micro_batches():
    counts = {count for count, _ in variants(micro_batches=4).choices(workers=2)}
    assert counts == {4, 6, 8, 12, 16, 24, 32, 48}


def test_marked_layers_stay_as_they_are():
    marked = CONVNET.replace('"relu1" type: kReLU', '"relu1" recompute: true type: kReLU')
    assert {stretches for _, stretches in variants(marked).choices(1)} == {0}


def test_mistakes_are_named_with_their_remedies(tmp_path: Path) -> None:
    job = loads(CONVNET, str(tmp_path / "job.conf"))
    refused(lambda: make_plan(job, 1, workers=1, limit=FIXED), "in 120 MiB", "needs at least")
    with pytest.raises(UserError, match="a batchsize of 96 cannot be divided into 7 equal micro_batches"):
        dsinga.plan(loads(CONVNET, str(tmp_path / "job.conf"), ["micro_batches=7"]))


@pytest.mark.ci
def test_a_plan_has_the_alternatives_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pricing, "measure_machine", lambda *_: MACHINE)
    job = loads(CONVNET, str(tmp_path / "job.conf"))
    limit = between()
    plan = make_plan(job, 2, workers=2, limit=limit, cache=tmp_path)
    figures = plan.figures()
    assert figures["limit_bytes"] == limit
    for row in figures["alternatives"]:
        assert row["memory_bytes"] <= limit
        assert row["micro_batches"] >= 1
    single = next(row for row in figures["alternatives"] if row["name"] == "one worker")
    assert single["micro_batches"] > 1 or single["recompute"] > 1
    assert "micro_batches: " in single["partitioning"] or "recompute: " in single["partitioning"]
    assert next(row["name"] for row in figures["alternatives"]) == "auto"


@pytest.mark.parametrize("memory", ["much", "-1GB", "0", "2"])
def test_a_memory_that_is_no_size_is_refused(memory: str, tmp_path: Path):
    job = loads(CONVNET, str(tmp_path / "job.conf"))
    refused(lambda: dsinga.plan(job, memory=memory), "memory must be a size", "such as 2GB")


def arrays() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {"train": (rng.integers(0, 255, (192, 3, 16, 16)).astype(np.uint8), rng.integers(0, 10, 192))}


def trained(job: Job, client: Client | None = None, workers: int | None = None) -> dict[str, np.ndarray]:
    job.neuralnet.layer[0].store_conf = job.neuralnet.layer[0].store_conf.replace(std_value=128.0)
    return dsinga.train(job, client, data=arrays(), workers=workers, progress=False).params


def test_training_here_fits_into_the_memory_of_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    whole = trained(loads(CONVNET, "job.conf"))
    monkeypatch.setattr(local_run, "memory_limit", lambda: between())
    with caplog.at_level(logging.INFO, "dsinga"):
        params = trained(loads(CONVNET, "job.conf"))
    (message,) = [record.message for record in caplog.records if "partition: auto trains with" in record.message]
    assert "micro_batches: " in message
    assert_close(params, whole, 1e-6)
    monkeypatch.setattr(local_run, "memory_limit", lambda: FIXED)
    refused(lambda: trained(loads(CONVNET, "job.conf")), "cannot be trained in")


@pytest.mark.ci
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_of_a_cluster_fit_into_their_limit(
    threads: Client, workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    whole = trained(loads(CONVNET, "job.conf"))
    each = least() + (between() - least()) // workers  # of whom each has its share of a batch
    monkeypatch.setattr(memory, "MEMORY_LIMIT", FIXED + workers * (each - FIXED))  # of all, which share a process
    with caplog.at_level(logging.INFO, "dsinga"):
        params = trained(loads(CONVNET, "job.conf"), threads, workers)
    assert any("partition: auto trains with" in record.message for record in caplog.records)
    assert_close(params, whole, 1e-5)
    monkeypatch.setattr(memory, "MEMORY_LIMIT", FIXED)
    refused(lambda: trained(loads(CONVNET, "job.conf"), threads, workers), "cannot be trained in")


def test_a_run_above_its_limit_is_warned_of(
    threads: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    job = loads(CONVNET.replace("partition: auto", ""), "job.conf")
    caplog.set_level(logging.WARNING, "dsinga")
    trained(job, threads, 2)
    assert not [record for record in caplog.records if "of memory, but may use" in record.message]
    monkeypatch.setattr(memory, "MEMORY_LIMIT", FIXED)
    trained(job, threads, 2)
    (message,) = [record.message for record in caplog.records if "of memory, but may use" in record.message]
    assert "micro_batches" in message


# A benchmark, and its command, wait for Dask workers that come late.
def test_a_benchmark_waits_for_late_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(job: Job, client: Client) -> object:
        return measure(job.replace(cluster=TWO), client, steps=2, synthetic=False)

    check_wait(2, bench, tmp_path, monkeypatch)


def test_a_command_whose_cluster_does_not_come_ends_with_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_status("bench", (), tmp_path, monkeypatch, capsys)
