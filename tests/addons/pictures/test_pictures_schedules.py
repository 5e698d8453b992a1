"""Drawing learning rates of schedules, optimizers and jobs."""

import pytest

from dsinga import nn, plotting
from dsinga.job import loads
from tests.support.refusals import refused

JOB = "train_steps: 20 updater { type: kSGD learning_rate { type: kFixed base_lr: 0.5 } }"


def test_drawing_schedules_needs_steps_and_schedules():
    pytest.importorskip("matplotlib")
    refused(lambda: plotting.learning_rates(nn.CosineDecay(0.1, 9)), "say how many steps are drawn")
    refused(lambda: plotting.learning_rates(0.1, 9), "a learning rate is that", "not of 0")
    axes = plotting.learning_rates({"a job": loads(JOB), "sgd": nn.SGD(0.1)}, 9)
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5] * 9, [0.1] * 9]
