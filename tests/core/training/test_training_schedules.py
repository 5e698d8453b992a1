"""Learning rates against the table of SINGA's page."""

import pytest

from dsinga.base.registry import register
from dsinga.job import LRGenConf, loads
from dsinga.training import schedule
from tests.support.refusals import refused

SHARED = ("minimum_lr", "start_step", "warmup_steps")  # of all schedules


@pytest.mark.parametrize(
    ("kind", "fields", "rates"),
    [
        ("kFixed", {}, {0: 0.4, 7: 0.4, 10**6: 0.4}),
        ("kInverseT", {"final_lr": 100}, {0: 0.4, 50: 0.4 / 1.5, 300: 0.1}),
        ("kInverse", {"gamma": 0.01, "pow": 2}, {0: 0.4, 100: 0.1, 300: 0.025}),
        ("kInverse", {}, {0: 0.4, 9: 0.4}),
        ("kExponential", {"change_freq": 10}, {0: 0.4, 5: 0.4 / 2**0.5, 10: 0.2, 30: 0.05}),
        ("kLinear", {"change_freq": 100, "final_lr": 0.2}, {0: 0.4, 25: 0.35, 100: 0.2, 300: -0.2}),
        ("kStep", {"gamma": 0.5, "change_freq": 60}, {0: 0.4, 59: 0.4, 60: 0.2, 119: 0.2, 180: 0.05}),
        ("kFixedStep", {"step": [0, 60, 65], "step_lr": [3, 2, 1]}, {0: 3, 59: 3, 60: 2, 64: 2, 65: 1, 10**6: 1}),
        ("kFixedStep", {"step": [10, 20], "step_lr": [3, 2]}, {0: 3, 10: 3, 20: 2}),
        ("kCosine", {"change_freq": 6}, {0: 0.4, 2: 0.3, 3: 0.2, 4: 0.1, 6: 0, 10**6: 0}),
        ("kCosine", {"change_freq": 6, "alpha": 0.25, "warmup_steps": 4}, {0: 0, 3: 0.3, 4: 0.4, 7: 0.25, 11: 0.1}),
        # cxxnet's: expdecay, polydecay and factor, each with its floor; and their start
        ("kExponential", {"change_freq": 100, "gamma": 0.25, "minimum_lr": 0.03}, {50: 0.2, 150: 0.05, 200: 0.03}),
        ("kInverse", {"gamma": 0.5, "pow": 2, "change_freq": 10}, {9: 0.4, 10: 0.4 / 2.25, 19: 0.4 / 2.25, 20: 0.1}),
        ("kInverse", {"pow": 2, "gamma": 1, "minimum_lr": 0.02}, {1: 0.1, 100: 0.02}),
        ("kStep", {"gamma": 0.1, "change_freq": 5, "start_step": 8}, {0: 0.4, 7: 0.4, 8: 0.04, 9: 0.04, 10: 0.004}),
        ("kStep", {"gamma": 0.1, "change_freq": 5, "minimum_lr": 0.01}, {4: 0.4, 5: 0.04, 10: 0.01}),
        ("kLinear", {"change_freq": 100, "final_lr": 0, "minimum_lr": 0}, {50: 0.2, 100: 0, 300: 0}),
    ],
)
def test_every_schedule_gives_the_rates_of_the_table(kind, fields, rates):
    own = {name: value for name, value in fields.items() if name not in SHARED}
    shared = {name: value for name, value in fields.items() if name in SHARED}
    confs = {} if kind == "kFixed" else {f"{kind[1:].lower()}_conf": own}
    rate = schedule(LRGenConf(base_lr=0.4, type=kind, **confs, **shared))
    for step, expected in rates.items():
        assert rate(step) == pytest.approx(expected, rel=1e-12, abs=1e-12), step


def test_a_users_schedule_may_be_a_function_or_a_class():
    @register("schedule", "Half")
    def half(conf):
        return lambda step: conf.base_lr / 2

    @register("schedule", "Twice")
    class Twice:
        def __init__(self, conf):
            self.base = conf.base_lr

        def __call__(self, step):
            return self.base * 2

    rates = [schedule(LRGenConf(type="kUserChange", user_type=name, base_lr=0.5))(3) for name in ("Half", "Twice")]
    assert rates == [0.25, 1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: kStep", "job.conf:2: schedule kStep needs step_conf"),
        ("type: kStep step_conf {\nchange_freq: 0 }", "job.conf:3: change_freq must be at least 1, not 0"),
        ("type: kInverseT inverset_conf {\nfinal_lr: 0 }", "job.conf:3: final_lr must be above 0, not 0.0"),
        ("type: kInverse inverse_conf {\ngamma: -1 }", "job.conf:3: gamma must be at least 0, not -1.0"),
        ("type: kUserChange", "job.conf:2: type kUserChange needs user_type"),
        ('type: kUserChange\nuser_type: "Hal"', "job.conf:3: no schedule is registered as 'Hal'"),
    ],
)
def test_mistakes_in_a_job_are_reported_with_file_and_line(text, message):
    conf = loads(f"updater {{ type: kSGD learning_rate {{\n{text} }} }}", "job.conf").updater.learning_rate
    refused(lambda: schedule(conf), message)
