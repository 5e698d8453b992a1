"""Reinforcement learning: models, algorithms (DQN, PPO, ...) and agents that learn from environments, after PARL.

First values of settings, and when to change them:

- learning rate: 0.0003 to 0.003 (PPO), 0.001 (DQN, DDPG). Raise it if the return rises slowly. Lower it if the return
  falls again, or if PPO's ``kl`` is above 0.03.
- ``environments``: 8. Raise it if the net has idle time.
- ``rollout_steps``: 128, for A2C 5 to 32. Raise it if rewards come late.
- ``discount``: 0.99. Raise it if actions have late effects. With a replay memory it is in ``ReplaySettings``.
- ``decay`` (lambda): 0.95. Lower it if advantages are noisy.
- ``epochs`` and ``minibatches`` of PPO: 4 and 4. Raise them if steps are expensive. Lower them if ``clip_fraction`` is
  above 0.3.
- ``entropy_scale``: 0. Raise it if ``entropy`` falls to 0 too early.
- ``epsilon_steps`` of DQN: a tenth of the run. Raise it if rewards are hard to find.
- ``actor_spread`` of DQN with ``actors``: 7, as in Ape-X, for many actors. Lower it if too few actions are random.
- ``noise_correlation`` of DDPG and TD3: 0. Use 0.99 if only long pushes in one direction are rewarded, as in
  MountainCar.
- ``capacity`` and ``learn_after`` of a replay memory: 100,000 and 1,000. Raise them if returns rise and fall. Memory:
  100,000 stacks of four 84 by 84 images fit in 2.8 GB, because each observation is stored once, as uint8.
- ``n_steps``: transitions end with their rollout, so set ``rollout_steps`` to several times ``n_steps``.

Agents with memory: a ``nn.GRU`` or ``nn.SimpleRNN`` with ``carry=True`` carries its state from step to step. Only PPO
and A2C learn such a net, and not in worker groups or with ``central_inference``. The state is 0 when an episode begins.
The gradient goes back to the beginning of the episode or rollout, so ``rollout_steps`` limits the distance of cause and
effect. A minibatch of PPO has all steps of some environments: use at least as many ``environments`` as ``minibatches``.
In your own loop, pass ``agent.hidden_states(n)`` to ``agent.predict`` or :class:`Collector`, and call its
``reset([i])`` when the episode of environment i ends.

Your own loop needs only ``agent.sample``, ``agent.learn`` and :class:`Collector`.
"""

from typing import TYPE_CHECKING, Any

from dsinga.base.components import lazy_names
from dsinga.base.registry import entries, is_user_code

if TYPE_CHECKING:
    from dsinga.rl.agent import Agent
    from dsinga.rl.agent_training import AgentResult, train
    from dsinga.rl.algorithm import Algorithm
    from dsinga.rl.algorithms.ddpg import DDPG, TD3
    from dsinga.rl.algorithms.dqn import DQN
    from dsinga.rl.algorithms.es import ES
    from dsinga.rl.algorithms.impala import IMPALA
    from dsinga.rl.algorithms.ppo import A2C, PPO
    from dsinga.rl.algorithms.reinforce import REINFORCE
    from dsinga.rl.collecting import Collector
    from dsinga.rl.environments.registered import make_environment, make_environments
    from dsinga.rl.environments.spaces import BoxSpace, DiscreteSpace, Space, Spaces, box
    from dsinga.rl.environments.vector_environment import EnvironmentStep, VectorEnvironment
    from dsinga.rl.evaluation import EvaluatedEpisodes, evaluate, record_episode
    from dsinga.rl.experience import Episode, EpisodeStatistics, Rollout, Sampled, Transitions
    from dsinga.rl.from_job import ReplaySettings
    from dsinga.rl.learning import OffPolicyLearning
    from dsinga.rl.model import Model
    from dsinga.rl.replay_memory import PrioritizedReplay, ReplayMemory

__all__ = [
    "A2C", "DDPG", "DQN", "ES", "IMPALA", "PPO", "REINFORCE", "TD3", "Agent", "AgentResult", "Algorithm", "BoxSpace",
    "Collector", "DiscreteSpace", "EnvironmentStep", "Episode", "EpisodeStatistics", "EvaluatedEpisodes", "Model",
    "OffPolicyLearning", "PrioritizedReplay", "ReplayMemory", "ReplaySettings", "Rollout", "Sampled", "Space", "Spaces",
    "Transitions", "VectorEnvironment", "box", "evaluate", "make_environment", "make_environments", "record_episode",
    "train",
]  # fmt: skip


def _algorithm(name: str) -> Any:
    algorithms = {cls.__name__: cls for cls in entries("learning_algorithm").values() if not is_user_code(cls)}
    if name in algorithms:
        return algorithms[name]
    raise AttributeError(f"module 'dsinga.rl' has no attribute {name!r}")


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _algorithm)
