"""Forward passes on an emulated device: batches are graphs with the bits of calls, and losses refuse wrong answers."""

import numpy as np
import pytest

import dsinga
from dsinga.engine.local_net import LocalNet
from dsinga.job import Phase
from dsinga.layers import Records
from dsinga.passes.predictor import Predictor
from tests.core.layers.test_layers_loss import assert_other_answers_are_refused
from tests.models.test_models_predictor import JOB, X, Y, create
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn


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
