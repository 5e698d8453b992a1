"""The engine of an agent: its steps are those of environments, from whose experience an algorithm learns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.param_arrays import ParamArrays
from dsinga.engine.engine import Engine, StepReport
from dsinga.job import Job, Phase, training_phases
from dsinga.rl.environments.registered import Environment
from dsinga.rl.evaluation import evaluate
from dsinga.rl.from_job import layout_of
from dsinga.rl.learning import Learning
from dsinga.training import Metrics
from dsinga.training.updater import factor_at

# The speed is that of about so many seconds.
SPEED_SECONDS = 1.0


class AgentEngine(Engine):
    """Lets an agent learn, a rollout of its environments after the other; a rollout may go beyond the last step.

    A row of training has the mean return and length of the latest episodes, and the metrics of the last updates. What
    a checkpoint has besides the params goes on with the same bits: environments, random numbers, a replay memory.

    Args:
        job: a job with ``reinforcement``.
        learning: how the agent learns.
        environment: the environment of evaluations.
    """

    def __init__(self, job: Job, learning: Learning, environment: Environment):
        assert job.reinforcement is not None
        self.job = job
        self._conf, self._learning, self._environment = job.reinforcement, learning, environment
        self._algorithm = learning.agent.algorithm
        self.nets = {Phase.kTrain: self._algorithm.net.net}  # with the layers of the algorithm
        self._metrics: Mapping[str, float] = {}  # of the last updates
        self._episodes, self._summary = -1, dict[str, float]()  # how many have ended, and their means
        self._speeds: deque[tuple[int, float]] = deque()  # steps and seconds of the last rollouts
        self._factors: Mapping[int, float] = {}
        self._factor, self._is_closed = 1.0, False
        self._step = learning.statistics.steps

    @property
    def step(self) -> int:
        """The steps of environments that were reported."""
        return self._step

    @property
    def phases(self) -> Collection[Phase]:
        """Training, and the evaluation in episodes, if the job has any."""
        return training_phases(self.job)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state; called before :meth:`open`. Raises UserError where it is that of another layout."""
        saved = state["layout"]
        for name, value in layout_of(self._conf).items():
            if saved.get(name, value) != value:
                raise UserError(
                    f"the saved run had {name} {saved[name]!r}, this one has {value!r}; resume with the same, or begin "
                    "a new run with agent.restore(folder of the saved run)"
                )
        self._learning.restore(state["learning"])
        self._step = self._learning.statistics.steps

    def train(self, stop: int) -> Sequence[StepReport]:
        """Take a rollout, and learn from it."""
        self._use_factor()
        begun = time.perf_counter()
        self._metrics = self._learning.advance(self._conf.rollout_steps)
        seconds = time.perf_counter() - begun
        steps = self._learning.statistics.steps - self.step
        self._speeds.append((steps, seconds))
        while len(self._speeds) > 1 and sum(seconds for _, seconds in self._speeds) > SPEED_SECONDS:
            self._speeds.popleft()
        self._step += steps
        metrics = {name: (float(value), 1.0) for name, value in self._metrics.items()}
        return [StepReport(metrics, {"total": seconds}, steps)]

    @property
    def samples_per_second(self) -> float:
        """Steps of environments in a second."""
        steps, seconds = map(sum, zip(*self._speeds, strict=True)) if self._speeds else (0, 0.0)
        return steps / max(seconds, 1e-9)

    def reach(self) -> tuple[int, float]:
        """Return where a further rollout would end, by the last one, and its seconds."""
        steps, seconds = self._speeds[-1] if self._speeds else (1, 0.0)
        return self.step + steps, seconds

    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        """Return the figures of a row: of training those that hold now, whatever the sums; else the means."""
        if phase != "train":
            return super().means(phase, sums)
        statistics = self._learning.statistics
        if statistics.episodes != self._episodes:  # this is asked for after each rollout
            self._episodes, self._summary = statistics.episodes, statistics.summary()
        return {**self._summary, **self._metrics, "env_steps_per_second": self.samples_per_second}

    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        """Return the sums of returns and lengths of ``batches`` episodes by the best actions, 0 for the job's."""
        episodes = batches or self._conf.evaluation_episodes
        result = evaluate(self._learning.agent, self._environment, episodes, seed=self.job.seed)
        return {
            "episode_return": (float(result.returns.sum()), episodes),
            "episode_length": (float(result.lengths.sum()), episodes),
        }

    def params(self) -> ParamArrays:
        """Return copies of the params of the algorithm."""
        return {name: array.copy() for name, array in self._algorithm.params.items()}

    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Return copies of the params and of the updater's state; the whole state is that of :meth:`state`."""
        state = self._algorithm.updater.state
        return self.params(), {
            name: {slot: array.copy() for slot, array in slots.items()} for name, slots in state.items()
        }

    def state(self) -> Mapping[str, Any]:
        """Return what learning goes on from, and the layout that a resumed run must have."""
        return {"learning": self._learning.state(), "layout": layout_of(self._conf)}

    def learning_rate(self, step: int) -> float:
        """Return the rate of the updater's schedule, which counts updates."""
        return self._algorithm.updater.rate(self._algorithm.updater.steps)

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the rate of the updates by each rollout by the factor that holds at its first step."""
        self._factors = factors

    use_rate_factors = set_rate_factors

    def _use_factor(self) -> None:
        factor = factor_at(sorted(self._factors.items()), self.step)
        if factor != self._factor:
            self._factor = factor
            for updater in self._algorithm.updaters:
                updater.set_rate_factors({0: factor})

    def close(self, message: str | None = None) -> None:
        """Free the environments, or let go of the actors."""
        if not self._is_closed:
            self._is_closed = True
            self._learning.close()
