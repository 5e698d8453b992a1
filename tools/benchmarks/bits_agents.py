"""The agents of ``python -m tools.benchmarks.bits``: each algorithm here, with actors, in a group, resumed, as a job.

Left out is what depends on which process is faster: several actors of IMPALA or with ``central_inference``, and several
groups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from distributed import Client

from dsinga import loads, nn, rl
from tools.benchmarks.bits_report import Call, Report, report

CART, PENDULUM = "CartPole-v1", "Pendulum-v1"
LENGTHS = {CART: 4, PENDULUM: 3}
JOB = """
name: "cart" train_steps: 384 disp_freq: 64 seed: 1
updater { type: kRMSProp rmsprop_conf { rho: 0.99 } learning_rate { type: kFixed base_lr: 0.002 } }
neuralnet {
  layer { name: "observation" type: kRecordInput store_conf { shape: 4 } }
  layer { name: "fc" type: kInnerProduct srclayers: "observation" innerproduct_conf { num_output: 12 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "tanh" type: kActivation srclayers: "fc" activation_conf { type: TANH } }
  layer { name: "policy" type: kInnerProduct srclayers: "tanh" innerproduct_conf { num_output: 2 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "value" type: kInnerProduct srclayers: "tanh" innerproduct_conf { num_output: 1 }
    param { init { type: kUniformSqrtFanIn } } }
}
reinforcement { environment: "CartPole-v1" algorithm: kA2C num_environments: 4 rollout_steps: 16 evaluation_episodes: 3
"""


def hidden(environment: str, units: int = 12) -> tuple[Any, Any]:
    """Return the input of a net for observations of an environment, and a hidden layer."""
    x = nn.Input(shape=LENGTHS[environment], name="observation")
    return x, nn.Dense(units, activation="tanh", name="hidden")(x)


def policy_and_value(environment: str) -> nn.Model:
    """Return a net with a policy, of a learned deviation for actions that are numbers, and a value."""
    x, features = hidden(environment)
    policy = nn.Dense(2 if environment == CART else 1, name="mean")(features)
    if environment == PENDULUM:
        deviation = nn.Layer("kLearnedVector", name="deviation", learnedvector_conf={"num_output": 1})(features)
        policy = nn.Concatenate(name="policy")([policy, deviation])
    return nn.Model(x, [policy, nn.Dense(1, name="value")(features)])


def values(environment: str) -> nn.Model:
    """Return a net with a value for each action."""
    x, features = hidden(environment)
    return nn.Model(x, [nn.Dense(2, name="values")(features)])


def dueling(environment: str) -> nn.Model:
    """Return a net whose values are those of the state and of each action together."""
    x, features = hidden(environment)
    return nn.Model(x, [nn.Layer("kDueling", name="values")([nn.Dense(1, name="v")(features), nn.Dense(2)(features)])])


def policy_and_critics(environment: str) -> nn.Model:
    """Return a net with an action from -1 to 1, and two values of observation and action."""
    x, features = hidden(environment)
    action = nn.Dense(1, activation="tanh", name="action")(features)
    critics = [
        nn.Dense(1, name=f"value{k}")(
            nn.Dense(12, activation="relu", name=f"critic{k}")(nn.Concatenate(name=f"both{k}")([x, action]))
        )
        for k in range(2)
    ]
    return nn.Model(x, [action, *critics])


def new_agent(kind: Any, net: Callable[[str], nn.Model], environment: str, **settings: Any) -> rl.Agent:
    """Return an agent of an algorithm for an environment."""
    with contextlib.closing(rl.make_environments(environment, 1)) as environments:
        spaces = environments.spaces
    return rl.Agent(kind(rl.Model(net(environment)), spaces, seed=3, **settings), seed=4)


def result_of(agent: rl.Agent, environment: str, rows: Any) -> Report:
    """Return the report of an agent: its params, its actions, which tell the random numbers too, and rows."""
    observations = np.random.default_rng(5).normal(size=(20, LENGTHS[environment])).astype(np.float32)
    sampled = agent.sample(observations)
    actions = {"predicted": agent.predict(observations), "sampled": sampled.actions, **sampled.extras}
    return report({**agent.algorithm.params, **actions}, rows)


def trained(
    kind: Any,
    net: Any = policy_and_value,
    environment: str = CART,
    resume: bool = False,
    run: Any = None,
    **fields: Any,
) -> Call:
    """Return the call that trains an agent here, or on the cluster where there are actors; perhaps in two parts."""
    settings = {"steps": 384, "environments": 4, "rollout_steps": 16, "log_every": 64, "evaluation_episodes": 3}
    settings |= {"progress": False, "seed": 2, **(run or {})}

    def compute(folder: Path, client: Client | None) -> Report:
        agents = [new_agent(kind, net, environment, **fields) for _ in range(1 + resume)]
        if resume:
            parts = {**settings, "workspace": folder / f"agent-{kind.__name__}"}
            rl.train(agents[0], environment, client=client, **{**parts, "steps": settings["steps"] // 2})
            return result_of(
                agents[1], environment, rl.train(agents[1], environment, client=client, resume=True, **parts).history
            )
        return result_of(agents[0], environment, rl.train(agents[0], environment, client=client, **settings).history)

    return Call(compute, processes="actors" in settings)


def in_groups(kind: Any, run: Any = None, resume: bool = False, **fields: Any) -> Call:
    """Return the call that trains an agent by worker groups on the cluster."""
    settings = {"steps": 384, "environments": 2, "rollout_steps": 8, "progress": False, "log_every": 64, "seed": 2}
    settings |= {"evaluation_episodes": 0, **(run or {})}

    def compute(folder: Path, client: Client | None) -> Report:
        agent = new_agent(kind, policy_and_value, CART, **fields)
        options = {**settings, "workspace": folder / f"groups-{kind.__name__}"} if resume else settings
        if resume:
            rl.train(agent, CART, in_groups=True, client=client, **{**options, "steps": 192})
        result = rl.train(agent, CART, in_groups=True, client=client, resume=resume, **options)
        return result_of(agent, CART, result.history)

    return Call(compute, processes=True)


def from_job(text: str, processes: bool = False) -> Call:
    """Return the call that trains the agent of a job, to which ``text`` adds."""

    def compute(folder: Path, client: Client | None) -> Report:
        result = rl.train(loads(f"{JOB} {text}"), client=client, progress=False)
        return result_of(result.agent, CART, result.history)

    return Call(compute, processes=processes)


def cart() -> Any:
    """Return an environment that is wrapped."""
    return gymnasium.wrappers.TransformReward(gymnasium.make(CART), lambda reward: reward / 10)


def own_loop(folder: Path, client: Client | None) -> Report:
    """Learn from rollouts of wrapped environments in a loop without ``rl.train``, save, restore and evaluate."""
    agent, again = (new_agent(rl.PPO, policy_and_value, CART, minibatches=2) for _ in range(2))
    with contextlib.closing(rl.make_environments(cart, 3, seed=6)) as environments:
        collector = rl.Collector(environments)
        rows = [agent.learn(collector.rollout(agent.sample, 16, agent.algorithm.values)) for _ in range(4)]
    agent.save(folder / "own-loop")
    again.restore(folder / "own-loop")
    episodes = rl.evaluate(again, CART, 4, seed=7)
    return result_of(again, CART, [*rows, {"episode_return": episodes.mean_return}])


ONE, TWO = {"actors": 1}, {"actors": 2}
REPLAY = {"environments": 2, "rollout_steps": 16, "replay": rl.ReplaySettings(capacity=200, learn_after=64)}
PRIORITIZED = rl.ReplaySettings(capacity=200, learn_after=64, n_steps=3, prioritized=True, learn_every=2)
NOISY = {"random_steps": 64, "noise_correlation": 0.5}
CRITICS = (policy_and_critics, PENDULUM)

AGENTS: dict[str, Call] = {
    # in this process
    "agent-reinforce": trained(rl.REINFORCE),
    "agent-a2c": trained(rl.A2C),
    "agent-ppo": trained(rl.PPO),
    "agent-ppo-pendulum": trained(rl.PPO, policy_and_value, PENDULUM),
    "agent-impala": trained(rl.IMPALA),
    "agent-dqn": trained(rl.DQN, values, run=REPLAY, epsilon_steps=200, target_every=50),
    "agent-dqn-prioritized": trained(rl.DQN, dueling, run={**REPLAY, "replay": PRIORITIZED}, double=True),
    "agent-ddpg": trained(rl.DDPG, *CRITICS, run=REPLAY, **NOISY),
    "agent-td3": trained(rl.TD3, *CRITICS, run=REPLAY, **NOISY),
    "agent-es": trained(rl.ES, run={"steps": 1500}, population=8),
    "agent-stops": trained(rl.PPO, run={"steps": 2000, "evaluate_every": 256, "stop_return": 15.0}),
    "agent-own-loop": Call(own_loop),
    # in two parts
    "agent-resume": trained(rl.PPO, resume=True),
    "agent-resume-replay": trained(rl.DQN, dueling, resume=True, run={**REPLAY, "replay": PRIORITIZED}),
    "agent-resume-td3": trained(rl.TD3, *CRITICS, resume=True, run=REPLAY, **NOISY),
    # with actors on the cluster
    "actors-reinforce": trained(rl.REINFORCE, run=TWO),
    "actors-a2c": trained(rl.A2C, run=TWO),
    "actors-ppo": trained(rl.PPO, run=TWO),
    "actors-impala": trained(rl.IMPALA, run={**ONE, "max_staleness": 0}),
    "actors-predict-here": trained(rl.PPO, run={**ONE, "central_inference": True}),
    "actors-resume": trained(rl.A2C, resume=True, run=TWO),
    # in a worker group
    "group-a2c": in_groups(rl.A2C),
    "group-a2c-two": in_groups(rl.A2C, {"workers": 2}),
    "group-ppo-two": in_groups(rl.PPO, {"workers": 2}, epochs=2, minibatches=2),
    "group-impala-two": in_groups(rl.IMPALA, {"workers": 2}),
    "group-actors": in_groups(rl.IMPALA, {"actors": 1, "max_staleness": 0}),
    "group-actors-two": in_groups(rl.IMPALA, {"workers": 2, "actors": 1, "max_staleness": 0}),
    "group-resume": in_groups(rl.A2C, {"workers": 2}, resume=True),
    # as a job
    "agent-job": from_job("a2c_conf { decay: 0.95 } } test_freq: 128"),
    "agent-job-actors": from_job("num_actors: 2 } test_freq: 128", processes=True),
    "agent-job-group": from_job("} cluster { nworkers_per_group: 2 }", processes=True),
}
