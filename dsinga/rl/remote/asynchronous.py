"""A3C: asynchronous worker groups, each of which learns from environments of its own (Mnih et al. 2016).

The params live on the servers of the run, as for any job; its topology alone says whether the groups share one server
group (Downpour) or have one each (Hogwild). Supervision, recovery and checkpoints are those of :func:`dsinga.train`.
"""

from __future__ import annotations

import copy
import os
import uuid
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from dsinga import api
from dsinga.errors import UserError
from dsinga.job import AlgConf, ClusterConf, Job
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet, Param
from dsinga.registry import forget, register
from dsinga.rl.agent import Agent
from dsinga.rl.algorithms.a2c import A2C
from dsinga.rl.collecting import Collector
from dsinga.rl.environments import Environment, make_environments
from dsinga.training import Metrics
from dsinga.training.bp import Push
from dsinga.worker.local_updater import LocalUpdater, norm_of, scaled


class ExperienceLearner:
    """The algorithm of a job whose worker groups learn from rollouts in place of records.

    In each step a worker steps its environments by the params that it has pulled, computes the gradient of the agent's
    losses for the rollout, and pushes it.

    Args:
        agent: its algorithm does one update by each rollout, as A2C does.
        environment: as for :func:`dsinga.rl.environments.make_environments`.
        count: the number of environments of each worker group.
        steps: steps of each environment in a rollout.
    """

    def __init__(self, agent: Agent, environment: Environment, count: int, steps: int):
        self._agent, self._environment, self._count, self._steps = agent, environment, count, steps
        self._groups: dict[int, tuple[Agent, Collector]] = {}  # by the seed of a worker group

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_groups": {}}

    def __call__(
        self, net: NeuralNet, values: Mapping[str, Any], records: Mapping[str, Records], ctx: Context, push: Push
    ) -> Metrics:
        """Do one step; ``records`` have only the shapes of a rollout, and are not used."""
        if ctx.seed not in self._groups:
            environments = make_environments(self._environment, self._count, seed=ctx.seed % 2**63)
            self._groups[ctx.seed] = copy.deepcopy(self._agent), Collector(environments)
        agent, collector = self._groups[ctx.seed]
        algorithm = cast(A2C, agent.algorithm)
        algorithm.params = {name: np.array(value) for name, value in values.items()}
        algorithm.updater = cast(LocalUpdater, _GradientPush(push, ctx.step, net.params))
        agent.rng = np.random.default_rng([ctx.seed, ctx.step])
        rollout = collector.rollout(agent.sample, self._steps, algorithm.values)
        metrics: Metrics = {name: (value, 1) for name, value in agent.learn(rollout).items()}
        if collector.ended:
            total = sum(episode.total_reward for episode in collector.ended)
            metrics["episode_return"] = (total, len(collector.ended))
        return metrics


class _GradientPush:
    """Stands for an updater: pushes gradients to servers instead of applying them."""

    def __init__(self, push: Push, steps: int, params: Mapping[str, Param]):
        self._push, self.steps, self._params = push, steps, params

    def step(self, params: Mapping[str, np.ndarray], gradients: Mapping[str, Any], max_norm: float = 0.0) -> None:
        """Push each gradient, scaled down so that their norm together is at most ``max_norm`` unless that is 0."""
        trained = {name: gradient for name, gradient in gradients.items() if self._params[name].trainable}
        norm = norm_of([*trained.values()]) if max_norm else 0.0
        for name, gradient in gradients.items():
            self._push(name, scaled(gradient, max_norm / norm) if norm > max_norm and name in trained else gradient)


def train_asynchronously(
    agent: Agent,
    environment: Environment,
    *,
    groups: int,
    steps: int,
    client: Any = None,
    environments: int = 8,
    rollout_steps: int = 5,
    cluster: ClusterConf | None = None,
    workspace: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> api.Result:
    """Train an agent by asynchronous worker groups, and return the result of the run; the agent gets the params.

    Args:
        agent: an agent of A2C.
        environment: as for :func:`dsinga.rl.environments.make_environments`.
        groups: the number of worker groups.
        steps: steps of all environments together.
        client: a Dask client; by default as for :func:`dsinga.train`.
        environments: the number of environments of each group.
        rollout_steps: steps of each environment in a rollout.
        cluster: the topology besides the number of groups, as ``nserver_groups``; by default one server group.
        workspace: folder for metrics and checkpoints.
        seed: determines the random numbers.
        progress: show a progress line.

    Raises UserError for another algorithm, and what :func:`dsinga.train` raises.
    """
    job = _job_of(agent, environment, environments, rollout_steps)
    updates = max(1, steps // (groups * environments * rollout_steps))
    conf = (cluster or ClusterConf()).replace(nworker_groups=groups, nworkers_per_group=1)
    job = job.replace(cluster=conf, train_steps=updates, disp_freq=max(1, updates // 100), seed=seed)
    try:
        result = api.train(job, client, workspace=workspace, params=agent.algorithm.params, progress=progress)
    finally:
        forget("algorithm", str(job.train_one_batch.user_alg))
    agent.algorithm.params = {name: np.array(value) for name, value in result.params.items()}
    return result


def _job_of(agent: Agent, environment: Environment, count: int, steps: int) -> Job:
    """Return the job of an agent's net, whose input layers have the shapes of a rollout."""
    algorithm = agent.algorithm
    if not isinstance(algorithm, A2C):
        raise UserError(
            f"asynchronous worker groups learn by A2C, with one update for each rollout, not by "
            f"{type(algorithm).__name__}"
        )
    name = f"experience-{uuid.uuid4().hex}"
    register("algorithm", name)(ExperienceLearner(agent, environment, count, steps))
    return algorithm.job(count * steps).replace(name="a3c", train_one_batch=AlgConf(user_alg=name))
