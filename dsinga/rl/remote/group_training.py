"""Trains an agent in groups of workers that share params on the run's parameter servers.

One worker in each of several groups is A3C (Mnih et al. 2016). Several workers in one group are synchronous and
data-parallel. With actors and IMPALA, each of several learners has its own actors.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from dsinga.base.errors import UserError
from dsinga.cluster.dask.dask_workers import task_client
from dsinga.cutting.cluster_topology import group_seed
from dsinga.data.conversion import as_records
from dsinga.extensions import AtEnd, EverySteps, Extension, ExtensionLike, LoopView
from dsinga.job import AlgConf, ClusterConf, Job, Phase, training_phases
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import SparseRows
from dsinga.ops.sparse import scaled
from dsinga.rl.agent import Agent
from dsinga.rl.algorithm import experience_job
from dsinga.rl.algorithms.actor_critic import ActorCritic
from dsinga.rl.algorithms.impala import IMPALA
from dsinga.rl.algorithms.ppo import A2C, PPO
from dsinga.rl.collecting import Collector
from dsinga.rl.environments.registered import Environment, make_environments, without_registered_name
from dsinga.rl.evaluation import evaluate
from dsinga.rl.experience import Episode, Rollout, join_rollouts
from dsinga.rl.from_job import reinforcement_of
from dsinga.rl.remote.actor_pool import ActorPool
from dsinga.rl.remote.rollout_stream import RolloutStream, rollouts_of_update
from dsinga.rl.training import AgentTask, stopping_rules
from dsinga.training import Metrics, bp
from dsinga.training.bp import Push
from dsinga.training.local_updater import norm_of
from dsinga.training.metrics import name_metrics

# Multiplied by a learner's first step, so that a replacement of a lost learner draws other random numbers.
_SEED_OF_STEP = 0x5851_F42D_4C95_7F2D


@dataclass(frozen=True)
class GroupSettings:
    """How each worker of a group gets its rollouts: environments, steps, and actors.

    Attributes:
        environments: environments of each worker or, with actors, of each actor.
        actors: remote actors of each worker; 0 for workers that step environments themselves.
        max_staleness: the most updates between the params of an actor's rollout and its update.
    """

    environment: Environment
    environments: int
    rollout_steps: int
    groups: int = 1
    workers: int = 1
    actors: int = 0
    max_staleness: int = 8
    seed: int = 0


class ExperienceLearner:
    """Lets the workers of a cluster run train a net on rollouts instead of records.

    In each step a worker pulls params, computes the gradient for a batch of its rollout, and pushes it. After the last
    batch, its environments or actors provide a new rollout. The batches of a group's workers form the job's batch.

    Args:
        agent: its algorithm has the method ``batches``; each worker has a copy.

    Attributes:
        waits_for_tasks: whether a step may wait for Dask tasks, here those that create actors.
    """

    def __init__(self, agent: Agent, settings: GroupSettings):
        self._agent, self._settings = agent, settings
        self._workers: dict[int, _Worker] = {}  # by the identity of the params of a worker of a group
        self.waits_for_tasks = settings.actors > 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_workers": {}}

    def __call__(
        self, net: NeuralNet, values: Mapping[str, Any], records: Mapping[str, Records], ctx: Context, push: Push
    ) -> Metrics:
        """Compute and push a worker's gradients for one step; ``records`` are empty."""
        worker = self._workers.get(id(values))
        if worker is None:
            worker = self._workers[id(values)] = _Worker(copy.deepcopy(self._agent), self._settings, ctx)
            # The environments and actors last as long as the group's worker.
            weakref.finalize(values, _close, self._workers, id(values)).atexit = False
        return worker.step(net, values, ctx, push)


def _close(workers: dict[int, _Worker], key: int) -> None:
    workers.pop(key).close()


class _Worker:
    """One worker of a group: its agent, environments or actors, and the batches left of its rollout."""

    def __init__(self, agent: Agent, settings: GroupSettings, ctx: Context):
        self._agent, self._settings = agent, settings
        self._algorithm = cast(ActorCritic, agent.algorithm)
        self._ops = ctx.ops.with_fast_rounding()
        self._seed = (ctx.seed + ctx.step * _SEED_OF_STEP) % 2**63
        self._number = ctx.rows.start // (ctx.rows.stop - ctx.rows.start)
        self._batches: Iterator[dict[str, np.ndarray]] = iter(())
        self._collector: Collector | None = None
        self._stream: RolloutStream | None = None
        count = settings.environments
        if not settings.actors:
            first = self._number * count
            self._collector = Collector(make_environments(settings.environment, count, seed=self._seed, first=first))
            return
        groups = [group_seed(settings.seed, group) for group in range(settings.groups)]
        first = (groups.index(ctx.seed) * settings.workers + self._number) * settings.actors
        client = task_client()
        assert client is not None
        pool = ActorPool(
            *(client, copy.deepcopy(agent), settings.environment), actors=settings.actors, environments=count,
            seed=self._seed, first=first,
        )  # fmt: skip
        self._stream = RolloutStream(pool, max_staleness=settings.max_staleness)

    def step(self, net: NeuralNet, values: Mapping[str, Any], ctx: Context, push: Push) -> Metrics:
        """Compute and push the next batch's gradients; return the metrics."""
        batch, metrics = self._next_batch(values, ctx)
        records = {name: Records(as_records(batch[name])) for name in net.inputs}
        gradients: dict[str, Any] = {}
        losses = bp(net, values, records, replace(ctx, ops=self._ops), gradients.__setitem__)
        factor = self._scale(net, gradients, ctx)
        for name, gradient in gradients.items():
            push(name, scaled(gradient, factor) if factor < 1 and net.params[name].trainable else gradient)
        return {**name_metrics(net, losses), **metrics}

    def _next_batch(self, values: Mapping[str, Any], ctx: Context) -> tuple[dict[str, np.ndarray], Metrics]:
        """Return the next batch; if it is the first of a new rollout, also that rollout's metrics."""
        algorithm, metrics = self._algorithm, Metrics()
        algorithm.mean = _GroupMean(ctx, self._settings.workers)
        batch = next(self._batches, None)
        if batch is None:
            algorithm.params = {name: np.array(ctx.ops.to_numpy(value)) for name, value in values.items()}
            algorithm.updater.steps = ctx.step
            rollout, metrics = self._rollout(ctx)
            self._batches = algorithm.batches(rollout)
            batch = next(self._batches)
        algorithm.mean = np.mean  # or it would keep the worker of the group alive, through its context
        return batch, metrics

    def _rollout(self, ctx: Context) -> tuple[Rollout, Metrics]:
        """Return the next rollout, and the metrics of its episodes."""
        settings, episodes, metrics = self._settings, list[Episode](), Metrics()
        if self._collector is not None:
            rng = np.random.default_rng([ctx.seed, ctx.step])
            part = _RandomNumbersOfWorker(rng, self._number, settings.environments, settings.workers)
            self._agent.rng = cast(np.random.Generator, part)
            rollout = self._collector.rollout(self._agent.sample, settings.rollout_steps, self._algorithm.values)
            episodes = self._collector.ended
        else:
            assert self._stream is not None
            version = self._stream.version
            results = self._stream.take(settings.rollout_steps, self._algorithm.params)
            rollout = join_rollouts([result.rollout for result in results])
            episodes = [episode for result in results for episode in result.episodes]
            metrics["staleness"] = sum(version - result.version for result in results), len(results)
        if episodes:
            metrics["episode_return"] = sum(episode.total_reward for episode in episodes), len(episodes)
        return rollout, metrics

    def _scale(self, net: NeuralNet, gradients: Mapping[str, Any], ctx: Context) -> float:
        """Return the factor that limits the norm of the group's gradient to ``max_gradient_norm``."""
        largest = self._algorithm.settings.max_gradient_norm
        if not largest:
            return 1.0
        trained = [gradient for name, gradient in gradients.items() if net.params[name].trainable]
        if self._settings.workers > 1:
            dense = [gradient.dense() if isinstance(gradient, SparseRows) else gradient for gradient in trained]
            joined = np.concatenate([ctx.ops.to_numpy(gradient).reshape(-1) for gradient in dense])
            trained = [ctx.all_reduce("gradients", joined)]
        return largest / max(norm_of(trained), largest)

    def close(self) -> None:
        if self._collector is not None:
            self._collector.environments.close()
        if self._stream is not None:
            self._stream.close()


class _GroupMean:
    """Computes means over the rows of all workers of a group."""

    def __init__(self, ctx: Context, workers: int):
        self._ctx, self._workers, self._calls = ctx, workers, 0

    def __call__(self, array: np.ndarray) -> Any:
        if self._workers == 1:
            return array.mean()
        self._calls += 1
        sums = self._ctx.all_reduce(f"mean {self._calls}", np.array([array.mean()], np.float32))
        return sums[0] / np.float32(self._workers)


class _RandomNumbersOfWorker:
    """Gives a worker its share of the random numbers for all environments of a group."""

    def __init__(self, rng: np.random.Generator, number: int, count: int, workers: int):
        self._rng, self._first, self._count, self._workers = rng, number * count, count, workers

    def random(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return self._rows(self._rng.random(self._of_all(shape), dtype))

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return self._rows(self._rng.standard_normal(self._of_all(shape), dtype))

    def _of_all(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._count * self._workers, *shape[1:]

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        return numbers[self._first : self._first + self._count]


class AgentEvaluation(Extension):
    """Evaluates the agent during training, and adds its mean return and length to the history.

    Args:
        every: updates between evaluations; 0 evaluates at the end only.
    """

    phase = "test"

    def __init__(self, task: AgentTask, every: int):
        self._task = task
        self.trigger = EverySteps(every) | AtEnd() if every else AtEnd()

    def run(self, loop: LoopView) -> None:
        """Evaluate the agent with the current params."""
        task, conf = self._task, reinforcement_of(self._task.job)
        task.agent.algorithm.take_params(loop.params())
        episodes = evaluate(task.agent, task.environment, conf.evaluation_episodes, seed=task.job.seed)
        loop.record("test", episodes.summary())


class GroupTraining:
    """Prepares a run in which groups of workers train an agent on the cluster.

    A group's workers add up their gradients, as if one worker had all environments. Groups learn independently. The
    topology of servers says whether they share params (Downpour) or average them now and then (Hogwild).

    Attributes:
        job: the job of the net that learns, fed with experience; its steps are updates.

    Raises UserError unless the algorithm is A2C, PPO or IMPALA, and for settings that worker groups do not support.
    """

    def __init__(self, task: AgentTask):
        self._task, conf, steps = task, reinforcement_of(task.job), task.job.train_steps
        if conf.central_inference:
            raise conf.error(
                "reinforcement.central_inference has no effect on worker groups; leave it out", "central_inference"
            )
        algorithm = _check_agent(task.agent, conf.num_actors)
        with contextlib.closing(make_environments(task.environment, 1)) as environments:
            task.agent.check_environments(environments)
        cluster = task.job.cluster or ClusterConf()
        settings = GroupSettings(
            without_registered_name(task.environment), conf.num_environments, conf.rollout_steps,
            cluster.nworker_groups, cluster.nworkers_per_group, conf.num_actors, conf.max_staleness, task.job.seed,
        )  # fmt: skip
        job, updates = _job_of(algorithm, settings, steps)

        def in_updates(every: int) -> int:
            return max(1, every * updates // steps) if every else 0

        learner = ExperienceLearner(task.agent, settings)
        self._evaluate_every = in_updates(task.job.test_freq)
        self.job = job.replace(
            name=task.job.name, cluster=cluster, train_steps=updates, seed=task.job.seed,
            train_one_batch=AlgConf(user_alg="experience").with_function(learner),
            disp_freq=in_updates(task.job.disp_freq or -(-steps // 100)),
            checkpoint_freq=in_updates(task.job.checkpoint_freq), checkpoint_keep=task.job.checkpoint_keep,
            checkpoint_path=task.job.checkpoint_path, extension=task.job.extension,
        )  # fmt: skip

    def extensions(self, given: Sequence[ExtensionLike]) -> list[ExtensionLike]:
        """Return the run's extensions: the evaluation, ``given``, and the end at ``stop_return``."""
        job = self._task.job
        evaluations = [AgentEvaluation(self._task, self._evaluate_every)] if Phase.kTest in training_phases(job) else []
        return [*evaluations, *given, *stopping_rules(job)]


def _check_agent(agent: Agent, actors: int) -> ActorCritic:
    """Return an agent's algorithm; raise UserError if worker groups do not support it."""
    algorithm = agent.algorithm
    if not isinstance(algorithm, A2C | PPO | IMPALA):
        raise UserError(f"worker groups learn by A2C, PPO or IMPALA, not by {type(algorithm).__name__}")
    if actors and not algorithm.corrects_older_actions:
        raise UserError(
            f"the actors of worker groups act by older params, for which {type(algorithm).__name__} does not correct; "
            "learn by IMPALA, or leave actors out"
        )
    if type(agent).learn is not Agent.learn:
        raise UserError(
            f"worker groups do not call the method learn of {type(agent).__name__}; prepare experience in the "
            "environment, as by a wrapper of Gymnasium"
        )
    return algorithm


def _job_of(algorithm: ActorCritic, settings: GroupSettings, steps: int) -> tuple[Job, int]:
    """Return the cluster's job, which trains on experience, and its number of updates."""
    rollouts = rollouts_of_update(settings.actors, settings.max_staleness) or 1
    count = rollouts * settings.environments  # environments of an update of one worker
    rows, updates = count * settings.rollout_steps, 1
    batch = count if isinstance(algorithm, IMPALA) else rows  # its records are sequences
    if isinstance(algorithm, PPO):
        minibatches = algorithm.settings.minibatches
        updates = algorithm.settings.epochs * minibatches
        batch, rest = divmod(rows, minibatches)
        if rest:
            raise UserError(
                f"a rollout of {rows} steps cannot be divided into {minibatches} equal minibatches; change "
                "minibatches, environments or rollout_steps"
            )
    job, examples = algorithm.learning_net(settings.rollout_steps)
    updates *= max(1, steps // (rows * settings.groups * settings.workers))
    return experience_job(job, examples, batch * settings.workers), updates
