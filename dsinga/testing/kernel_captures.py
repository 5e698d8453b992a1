"""CaptureContract: tests of a backend that records passes and replays them, and of one that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.engine.local_engine import CountedUpdates
from dsinga.job import NetConf, Phase, UpdaterConf
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.ops import Ops
from dsinga.ops.types import NotCapturable
from dsinga.passes.captured_passes import passes_of
from dsinga.passes.replayed import replayed
from dsinga.passes.training_step import TrainingStep
from dsinga.training import bp, create_updater, forward, initial_values
from dsinga.training.local_updater import LocalUpdater

LAYERS: Any = [
    {"name": "data", "type": "kRecordInput"},
    {"name": "ip", "type": "kInnerProduct", "srclayers": ["data"], "innerproduct_conf": {"num_output": 3}},
    {"name": "tanh", "type": "kSTanh", "srclayers": ["ip"]},
    {"name": "loss", "type": "kSoftmaxLoss", "srclayers": ["tanh", "data"]},
]
UPDATER: Any = {"type": "kSGD", "momentum": 0.9, "learning_rate": {"type": "kFixed", "base_lr": 0.1}}
ROWS, STEPS = 8, 6


class CaptureContract:
    """The tests of :meth:`dsinga.ops.Ops.capture`; a subclass, named ``Test...``, sets ``make_ops``.

    A worker without capture must compute in host memory. A worker with capture must give the bits of calls, for
    forward passes and training. It must decline results that are not finite, and calls that raise NotCapturable.
    """

    make_ops: ClassVar[Callable[[], Ops]]

    @pytest.fixture
    def worker(self) -> Ops:
        """A worker's kernels; the test is skipped if making them raises UserError."""
        try:
            ops = type(self).make_ops().for_worker()
        except UserError as error:
            pytest.skip(str(error))
        ops.enter()
        return ops

    def test_numbers_of_a_step_are_plain_where_nothing_is_recorded(self, worker: Ops) -> None:
        assert not worker.is_recording
        assert worker.step_number(lambda step: step / 2, 3) == 1.5
        if worker.capture() is None:
            assert worker.device_count() == 0
            assert worker.free_memory() is None

    def test_a_pass_has_the_bits_of_its_call(self, worker: Ops) -> None:
        if (passes := passes_of(worker, "checks")) is None:
            return
        net = net_of(Phase.kTest)
        params = initial_values(net.params, 1)

        def compute(records: Any, params: Any, ctx: Context) -> Any:
            return forward(net, params, records, ctx, ("tanh",))[0]

        for step in range(STEPS):
            records, ctx = records_of(step), Context(worker, Phase.kTest, Rows(0, ROWS, ROWS), 0, step)
            for value in params.values():  # on a host, params that keep their addresses are not copied
                value += np.float32(step)
            result = passes.compute("pass", net, records, ctx, compute, params)
            placed = {name: worker.asarray(value) for name, value in params.items()}
            outputs, metrics = forward(net, placed, records, ctx, ("tanh",))
            if step < worker.calls_before_capture:
                assert result is None
                continue
            assert result is not None
            assert result.metrics == metrics
            features = (worker.to_numpy(each["tanh"].feature) for each in (result.outputs, outputs))
            np.testing.assert_array_equal(*features)

    def test_what_is_not_finite_or_not_capturable_is_declined(self, worker: Ops) -> None:
        if (passes := passes_of(worker, "checks")) is None:
            return
        net = net_of(Phase.kTest)
        ctx, params = Context(worker, Phase.kTest, Rows(0, ROWS, ROWS)), initial_values(net.params, 1)

        def compute(records: Any, params: Any, ctx: Context) -> Any:
            forward(net, params, records, ctx)

        def refuse(records: Any, params: Any, ctx: Context) -> Any:
            raise NotCapturable("the host reads an array")

        for _ in range(STEPS):
            assert passes.compute("refused", net, records_of(0), ctx, refuse, params) is None
            assert passes.compute("nan", net, records_of(0, np.nan), ctx, compute, params) is None

    def test_training_has_the_bits_of_calls(self, worker: Ops) -> None:
        eager, captured = (self._train(worker, is_captured) for is_captured in (False, True))
        for name, value in eager.items():
            np.testing.assert_array_equal(captured[name], value)

    def _train(self, worker: Ops, is_captured: bool) -> dict[str, np.ndarray]:
        net = net_of(Phase.kTrain)
        updater = LocalUpdater(create_updater(UpdaterConf(**UPDATER)), net.params, worker)
        updater.put(initial_values(net.params, 1))
        capture = worker.capture() if is_captured else None
        passes = passes_of(worker, "training passes") if is_captured and capture is None else None
        updates, training = CountedUpdates(updater), TrainingStep(replayed(bp, passes, copies=False), net)
        iterations = None
        if capture is not None:
            iterations = capture.iterations(training, updater.updater, updater.values, updates)
        for step in range(STEPS):
            records, ctx = records_of(step), Context(worker, Phase.kTrain, Rows(0, ROWS, ROWS), 0, step)
            updates.begin(step)
            if iterations and step == STEPS - 1:
                assert iterations.launch(records, ctx)
                assert iterations.finish() is not None
            elif not iterations or iterations.train(records, ctx) is None:
                training.run(step, updater.values, [(records, ctx)], updates)
        return updater.copy_values()


def net_of(phase: Phase) -> NeuralNet:
    """Return a small net with a loss, to capture."""
    return create_net(NetConf(layer=LAYERS), phase, {"data": RecordInfo((5,), ROWS)})


def records_of(step: int, first: float = 0.5) -> dict[str, Records]:
    """Return the records of a step; ``first`` replaces one number, for instance by infinity."""
    rng = np.random.default_rng(step)
    data = rng.standard_normal((ROWS, 5)).astype(np.float32)
    data[0, 0] = first
    return {"data": Records(data, rng.integers(0, 3, ROWS))}
