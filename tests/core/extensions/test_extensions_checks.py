"""An extension that can never do its work is refused before training, naming field and remedy."""

import pytest

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.extensions import EarlyStopping, EverySteps, Extension, KeepBest, check_extensions, create_extensions
from dsinga.job import Job, Phase, loads
from dsinga.layers import Layer, Output, RecordInfo
from dsinga.net import create_net

JOB = """
train_steps: 50
FIELDS
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "x" batchsize: 4 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  OWN
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


@register("layer", "Reporting")
class Reporting(Layer):
    source_count = 1
    is_output = True

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0], metrics={"score": (1.0, 1), "oddness": (1.0, 1)})


def check(fields: str, extensions=(), own: str = "") -> None:
    job = loads(JOB.replace("FIELDS", fields).replace("OWN", own), "job.conf")
    phases = [Phase.kTrain, *([Phase.kVal] if job.validate_freq else [])]
    nets = {phase: create_net(job.neuralnet, phase, {"data": RecordInfo((5,), 4)}) for phase in phases}
    check_extensions(create_extensions(job, extensions), job, nets)


def complaint(fields: str, extensions=(), own: str = "") -> str:
    with pytest.raises(UserError) as caught:
        check(fields, extensions, own)
    return str(caught.value)


VALIDATES = "validate_freq: 10 validate_steps: 2"


def test_extensions_that_can_work_pass() -> None:
    check(VALIDATES, [EarlyStopping("val/loss"), KeepBest("train/accuracy"), lambda step, metrics: None])
    check(f'{VALIDATES} extension {{ type: kEarlyStopping monitor: "val/accuracy" }}')


def test_a_phase_that_never_runs() -> None:
    said = complaint('extension { type: kEarlyStopping monitor: "val/loss" }')
    assert said == (
        "job.conf:3: extension kEarlyStopping: monitor: 'val/loss' would never be known: the job has no phase kVal; "
        "give fit validation_data=, or a job validate_freq, and input layers in that phase"
    )
    assert "give it test_freq" in complaint("", [EarlyStopping("test/loss")])


@pytest.mark.parametrize(
    ("monitor", "said"),
    [
        ("val/los", "extension EarlyStopping: there is no metric 'val/los' to monitor; did you mean 'val/loss'?"),
        ("val/f1", "there is no metric 'val/f1' to monitor; there are val/loss, val/accuracy"),
        ("vall/loss", "'vall/loss' must be a phase (train, val, test) and a metric, as in 'val/loss'; did you mean 'v"),
        ("val_los", "extension EarlyStopping: there is no metric 'val_los' to monitor; did you mean 'val_loss'?"),
        ("los", "extension EarlyStopping: there is no metric 'los' to monitor; did you mean 'loss'?"),
    ],
)
def test_an_unknown_metric(monitor: str, said: str) -> None:
    assert said in complaint(VALIDATES, [EarlyStopping(monitor)])


def test_a_layer_of_the_users_may_report_what_it_does_not_declare() -> None:
    own = 'layer { name: "own" type: kUserLayer user_type: "Reporting" srclayers: "ip" }'
    extension = EarlyStopping("val/score")
    check(VALIDATES, [extension], own)
    assert not extension.trigger.metrics()[0].is_declared, "so the first row decides"


def test_a_metric_whose_name_does_not_tell_which_values_are_better() -> None:
    own = 'layer { name: "own" type: kUserLayer user_type: "Reporting" srclayers: "ip" }'
    check(VALIDATES, [EarlyStopping("val/oddness", mode="min")], own)
    said = complaint(f'{VALIDATES} extension {{ type: kKeepBest monitor: "val/oddness" }}', (), own)
    assert said.startswith("job.conf:3: extension kKeepBest: say whether lower or higher values of 'val/oddness' are")


class Seldom(Extension):
    def __init__(self, freq: int, state=None):
        self.trigger = EverySteps(freq)
        self._state = state or {}

    def run(self, loop) -> None:
        pass

    def state_dict(self):
        return self._state


def test_a_trigger_that_never_fires() -> None:
    said = complaint("", [Seldom(60)])
    assert said == (
        "extension Seldom: it would never run: it runs for the first time after 60 steps (freq: 60), but train_steps "
        "is 50; give freq: 50 or less, or more train_steps"
    )


@register("extension", "SeldomOfJob")
class SeldomOfJob(Seldom):
    def __init__(self, conf):
        super().__init__(1)


def test_a_trigger_of_the_job_is_told_with_its_line() -> None:
    said = complaint('\nextension { user_type: "SeldomOfJob" freq: 60 }')
    assert said.startswith("job.conf:4: extension SeldomOfJob: it would never run: ")
    said = complaint('\nextension { user_type: "SeldomOfJob" freq: 6 after: 51 }')
    assert "(after: 51), but train_steps is 50; give after: 50 or less" in said


def test_a_state_that_cannot_be_saved() -> None:
    assert "its state_dict() cannot be saved: lock is neither plain" in complaint("", [Seldom(1, {"lock": object()})])


def test_fields_of_singa_may_be_greater_than_the_run() -> None:
    """Everything is done once more at the end, so these jobs have always been right."""
    check("validate_freq: 1000 validate_steps: 1 checkpoint_freq: 1000 disp_freq: 1000 disp_after: 1000")
    assert create_extensions(Job(train_steps=5, disp_freq=9))
