"""Iterations of a worker on the emulated device: launched as graphs they give the bits of eager ones."""

import logging
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import Diverged
from dsinga.job import Job, UpdaterType, loads
from dsinga.reading.bind_records import bind_records
from dsinga.training import Metrics
from tests.support import emulated_cupy
from tests.support.device_worker import device_worker, params
from tests.support.small_job import assert_same

WARM_UPS, STEPS = 2, 7
RNG = np.random.default_rng(0)
X, Y = RNG.normal(0, 2, (36, 6)).astype(np.float32), RNG.integers(0, 3, 36)
# Dropout, normalisation whose first shares are means of all steps, a rate that falls, and params with other rates.
DENSE = """
name: "dense" seed: 5 train_steps: 100
updater { type: kSGD learning_rate { type: kInverse base_lr: 0.1 inverse_conf { gamma: 0.5 pow: 1 } } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 6 } }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 5 }
    param { name: "w1" lr_scale: 2 init { type: kGaussian std: 0.5 } } param { name: "b1" wd_scale: 0 } }
  layer { name: "norm" type: kBM srclayers: "hidden" }
  layer { name: "drop" type: kDropout srclayers: "norm" dropout_conf { dropout_ratio: 0.3 } }
  layer { name: "out" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 3 }
    param { name: "w2" init { type: kGaussian std: 0.5 } } param { name: "b2" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "out" srclayers: "data" }
}
"""
# The least net of two params with rates of their own: its kernels take little time to emulate.
LINEAR = """
name: "linear" seed: 5 train_steps: 100
updater { type: kSGD learning_rate { type: kInverse base_lr: 0.1 inverse_conf { gamma: 0.5 pow: 1 } } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 2 } }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 5 bias_term: false }
    param { name: "w1" lr_scale: 2 wd_scale: 0 init { type: kGaussian std: 0.5 } } }
  layer { name: "out" type: kInnerProduct srclayers: "hidden" innerproduct_conf { num_output: 3 bias_term: false }
    param { name: "w2" init { type: kGaussian std: 0.5 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "out" srclayers: "data" }
}
"""


def job_of(text: str = DENSE, *overrides: str, data: Any = (X, Y), **more: Any) -> Job:
    return bind_records(loads(text, "job.conf", list(overrides)).replace(**more), data)


def launched() -> int:
    """Return how many graphs were launched since the log was cleared."""
    return sum(what == "graph" for _, what, _ in emulated_cupy.log)


def train(job: Job, captured: bool, steps: int = STEPS) -> tuple[dict[str, Any], list[Metrics]]:
    """Return params with the updater's state, and metrics, after some steps."""
    with device_worker(job, captured=captured) as worker:
        report = worker.thread.submit(worker.train, 0, steps).result(60)
        return params(worker), report.metrics


def compare(job: Job, steps: int = STEPS, graphs: int | None = None) -> None:
    """Assert that graphs give the bits of calls, and that so many were launched, by default all after the warm-up."""
    expected = train(job, captured=False, steps=steps)
    emulated_cupy.log.clear()
    actual = train(job, captured=True, steps=steps)
    assert launched() == (steps - WARM_UPS if graphs is None else graphs)
    assert actual[1] == expected[1]
    assert_same(actual[0], expected[0])


UPDATERS = {
    "kRMSProp": "rmsprop_conf { rho: 0.9 centered: true }", "kAdam": "adam_conf { bias_correction: true }",
    "kAdamW": "weight_decay: 0.1", "kNesterov": "momentum: 0.9 weight_decay: 0.01",
}  # fmt: skip
SETTINGS = {
    "momentum that moves": "momentum_conf { base_momentum: 0.5 final_momentum: 0.9 saturation_step: 6 }",
    "clipped elements": "clip_low: -0.01 clip_high: 0.01 l1: 0.001 l2: 0.001",
    "clipped norms": "clip_norm: 0.05 momentum: 0.9",
    "averages": "ema_conf { decay: 0.9 warmup: true every: 3 }",
    "own settings of a param": 'param_settings { match: "w2" base_lr: 0.5 clip_norm: 0.1 }',
}


def with_updater(text: str) -> str:
    return LINEAR.replace("type: kSGD", text)


KINDS = [kind.name for kind in UpdaterType if kind is not UpdaterType.kUserUpdater]


def quick(name: str, names: Iterable[str]) -> list[Any]:
    """Return parameters of a test, of which all but ``name`` are slow."""
    return [each if each == name else pytest.param(each, marks=pytest.mark.slow) for each in names]


@pytest.mark.parametrize("kind", quick("kAdamW", KINDS))
def test_every_updater(kind: str):
    whole = kind in ("kLamb", "kMuon")
    compare(job_of(with_updater(f"type: {kind} {UPDATERS.get(kind, '')}")), graphs=0 if whole else None)


@pytest.mark.parametrize("settings", quick("averages", SETTINGS))
def test_settings_that_change_from_step_to_step(settings: str):
    # Each third step also moves the averages, by other formulas: a graph of its own.
    compare(job_of(with_updater(f"type: kSGD {SETTINGS[settings]}")), 12, graphs=8 if settings == "averages" else None)


def test_dropout_and_the_first_steps_of_normalisation():
    compare(job_of(), 5)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["updater.clip_global_norm=0.1"], "clip_global_norm adds up the norms of all gradients in host memory"),
        (["micro_batches=2"], "batches are computed in micro_batches"),
        (["train_one_batch.alg=kUserAlg", "train_one_batch.user_alg=plain bp"], "only back-propagation is"),
    ],
)
def test_what_is_called_says_why_once(overrides: list[str], why: str, caplog: pytest.LogCaptureFixture, plain_bp: None):
    with caplog.at_level(logging.INFO, "dsinga"):
        compare(job_of(LINEAR, *overrides), 2, graphs=0)
    assert caplog.text.count(f"training iterations are not captured as CUDA graphs: {why}") == 2  # a line for each run


@pytest.fixture
def plain_bp(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's algorithm that is back-propagation."""
    from dsinga.base import registry
    from dsinga.training import bp

    def algorithm(*arguments: Any) -> Any:
        return bp(*arguments)

    monkeypatch.setattr(registry, "_entries", {k: dict(v) for k, v in registry._entries.items()}, raising=False)
    registry.register("algorithm", "plain bp")(algorithm)


def test_a_step_that_is_not_finite_ends_the_run_with_the_params_of_the_step_before():
    rate = "type: kFixedStep base_lr: 0.1 fixedstep_conf { step: 0 step: 4 step_lr: 0.1 step_lr: 1e30 }"
    job = job_of(re.sub(r"type: kInverse.*\}", rate + " } }", LINEAR))
    messages, left = [], []
    for captured in (False, True):
        emulated_cupy.log.clear()
        with device_worker(job, captured=captured) as worker:
            with pytest.raises(Diverged) as error:
                worker.thread.submit(worker.train, 0, 40).result(60)
            messages.append(str(error.value))
            left.append(params(worker))
    assert launched() > 2
    assert messages[1] == messages[0]
    assert re.search(r"not finite at step \d+", messages[0])
    assert_same(left[1], left[0])


def test_the_next_graph_is_launched_before_the_metrics_of_the_last_one_are_waited_for():
    with device_worker(job_of(LINEAR)) as worker:
        worker.thread.submit(worker.train, 0, 4).result(60)
        emulated_cupy.log.clear()
        worker.thread.submit(worker.train, 4, 7).result(60)
    host = [what for stream, what, _ in emulated_cupy.log if what == "graph" or (stream, what) == (None, "wait")]
    launch = ["wait", "graph"]  # the host waits for the memory from which the block was copied two steps before
    assert host == [*launch, *launch, "wait", *launch, "wait", "wait"]
