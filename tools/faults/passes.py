"""A layer of a user's own that sends its process a signal in a given pass of a given step, as a plan in a file says.

Registered like any user's layer: nothing of dsinga is patched. The plan names the process by its id, so a process that
comes in its place does nothing.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import dsinga
from dsinga.job import Phase, Settings, required
from dsinga.layers import Output
from tests.support.user_layers import Identity

PASSES = {Phase.kTrain: "forward", Phase.kTest: "evaluation"}


class Plan(NamedTuple):
    """Which process gets which signal, in which pass, from which step on, and how many seconds later.

    The passes are "forward", "backward" and "evaluation".
    """

    pid: int
    place: str
    step: int
    delay: float
    signal: int = signal.SIGKILL

    def write(self, path: Path) -> None:
        """Write the plan for the processes of workers."""
        path.write_text(json.dumps(self), encoding="utf-8")


@cache
def plan_at(path: str) -> Plan | None:
    """Return the plan in a file for this process, None where there is none; a file is read once."""
    file = Path(path)
    plan = Plan(*json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
    return plan if plan and plan.pid == os.getpid() else None


def moment_of(path: Path) -> float | None:
    """Return when the process has got the signal, by ``time.monotonic``; None while it has not."""
    done = path.with_suffix(".done")
    text = done.read_text(encoding="utf-8") if done.exists() else ""
    return float(text) if text else None  # "" while it is being written


def _strike(path: str, number: int) -> None:
    done = Path(path).with_suffix(".done")
    if not done.exists():  # a process that goes on after a stop comes here again
        done.write_text(repr(time.monotonic()), encoding="utf-8")
        os.kill(os.getpid(), number)


@dsinga.register("layer", "ChaosDoor")
class ChaosDoor(Identity):
    """The identity, unless the plan at ``chaosdoor_conf { plan: "PATH" }`` has come to its pass and step."""

    class Conf(Settings):
        plan: str = required("the path of the plan")

    source_count = 1

    def __init__(self, conf: Any, source_shapes: Any, info: Any = None):
        super().__init__(conf, source_shapes, info)
        self._path = self.settings.plan

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
        self._pass(PASSES.get(ctx.phase, ""), ctx.step)
        return Output(sources[0])

    def compute_gradient(self, params: Any, sources: Any, output: Any, grad: Any, needs: Any, ctx: Any) -> Any:
        self._pass("backward", ctx.step)
        return (grad,), ()

    def _pass(self, place: str, step: int) -> None:
        plan = plan_at(self._path)
        if plan is None or plan.place != place or step < plan.step:
            return
        if not plan.delay:
            _strike(self._path, plan.signal)
        elif not moment_of(Path(self._path)):
            threading.Timer(plan.delay, _strike, (self._path, plan.signal)).start()
