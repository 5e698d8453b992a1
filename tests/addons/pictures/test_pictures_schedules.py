"""Drawing learning rates of schedules, optimizers and jobs."""

import pytest

from dsinga import nn, plotting
from dsinga.base.errors import UserError
from dsinga.job import loads

JOB = "train_steps: 20 updater { type: kSGD learning_rate { type: kFixed base_lr: 0.5 } }"


def test_drawing_schedules_needs_steps_and_schedules():
    pytest.importorskip("matplotlib")
    with pytest.raises(UserError, match="say how many steps are drawn"):
        plotting.learning_rates(nn.CosineDecay(0.1, 9))
    with pytest.raises(UserError, match="a learning rate is that of a schedule, an optimizer or a job, not of 0.1"):
        plotting.learning_rates(0.1, 9)
    axes = plotting.learning_rates({"a job": loads(JOB), "sgd": nn.SGD(0.1)}, 9)
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5] * 9, [0.1] * 9]
