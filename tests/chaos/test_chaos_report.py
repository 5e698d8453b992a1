"""What ``python -m tools.chaos.job`` adds up, and what it refuses."""

import numpy as np
import pytest

from dsinga.job import ClusterConf, Job
from tests.support.refusals import refused
from tools.chaos.faults import CausedFault, check_kinds
from tools.chaos.report import goodput, is_good, report, seconds_to_next_step
from tools.chaos.trials import Pair, Recovery, Trial

FAULTS = [
    CausedFault("kill", "a", 10.0),
    CausedFault("exit", "b", 11.0),
    CausedFault("pause", "a", 20.0, "TimeoutError: no answer"),
    CausedFault("kill", "b", 30.0),
    CausedFault("pause", "b", 50.0),
]
RECOVERIES = [Recovery({"step": 7, "steps_again": 4}, 12.5), Recovery({"step": 20, "steps_again": 6}, 31.0)]


def pair(value: float, error: str = "") -> Pair:
    undisturbed = Trial(100, 10.0, {"w": np.ones(3)})
    return Pair(undisturbed, Trial(100, 12.5, {"w": np.full(3, value)}, FAULTS, RECOVERIES, error))


def test_seconds_run_from_each_fault_to_the_recovery_after_it():
    assert seconds_to_next_step(FAULTS, RECOVERIES) == {0: 2.5, 1: 1.5, 3: 1.0}


def test_a_report_says_what_happened():
    assert report(Job(), [pair(1.0)]) == [
        "runs with faults: 1, 100 steps, 12.5 s",
        "faults: 4, 2 kill, 1 exit, 1 pause",
        "recoveries: 2, steps computed again: 10",
        "faults that could not be caused: 1; the first: TimeoutError: no answer",
        "seconds from a fault to the next new step: median 1.50, worst 2.50; 1 faults needed no recovery",
        "goodput: 0.800 of the steps that runs without faults do in the same time",
        "params: equal to those of the run without faults, bit by bit, in 1 of 1 runs",
    ]


def test_goodput_is_that_of_all_runs_together():
    assert goodput([pair(1.0), Pair(Trial(100, 30.0), Trial(100, 27.5))]) == pytest.approx(1.0)


def test_other_bits_or_an_error_are_not_good():
    asynchronous = Job(cluster=ClusterConf(nworker_groups=2))
    assert is_good(Job(), [pair(1.0)])
    assert not is_good(Job(), [pair(1.0), pair(1.0 + 1e-7)])
    assert not is_good(asynchronous, [pair(1.0, "RunError: lost")])
    assert is_good(asynchronous, [pair(2.0)])


def test_an_unknown_kind_is_refused():
    assert check_kinds("kill, retire") == ["kill", "retire"]
    refused(lambda: check_kinds("kill,pauze"), "'pauze' is no kind of fault; did you mean 'pause'")
    refused(lambda: check_kinds(""), "no kind of fault is given")
