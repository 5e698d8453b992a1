"""A job that validates, and an extension that does what a test wants, for tests of extensions on a cluster."""

from collections.abc import Callable
from typing import Any

from dsinga.api import Result
from dsinga.extensions import EverySteps, Extension
from dsinga.job import Job
from tests.support.small_job import with_topology


def validating(job: Job, workers: int = 1, servers: int = 1, **fields: Any) -> Job:
    """Return the job, of 40 steps, with a validation every 4 steps on the records of its test."""
    test = job.neuralnet.layer[1]
    net = job.neuralnet.replace(layer=[test.replace(include=["kVal"]), *job.neuralnet.layer])
    job = job.replace(neuralnet=net, train_steps=40, validate_freq=4, validate_steps=2, disp_freq=7)
    return with_topology(job, workers, servers).replace(**fields)


def rows(result: Result) -> list[dict[str, Any]]:
    """Return the history without times."""
    return [{name: value for name, value in row.items() if name != "time"} for row in result.history]


class Acting(Extension):
    """Calls a function with the view of the run, at the steps of a trigger."""

    def __init__(self, freq: int, act: Callable[..., Any], after: int | None = None):
        self.trigger = EverySteps(freq, after)
        self.act = act
        self.steps: list[int] = []

    def run(self, loop) -> None:
        self.steps.append(loop.step)
        self.act(loop)
